package syncer

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// View is what a syncer knows of the control plane, and all that it may do there. What
// it gives must not be changed, but for what Desired gives. Nothing but Leaving and
// NamespaceGone is a reason to delete anything: all else may be old, or not known yet.
type View interface {
	// Cluster gives the Cluster that the syncer serves; false if it is not known.
	Cluster() (*v1alpha1.Cluster, bool)
	// Subscribe calls notify with the key of each binding that concerns the cluster:
	// now, and whenever the binding or its object changes; and with a namespace and no
	// name when a namespace of such a binding changes, and where the source of the view
	// can tell when any namespace goes. notify must not block.
	Subscribe(notify func(types.NamespacedName)) (cancel func())
	// Binding gives a binding, which need not concern the cluster (any more). What
	// concerns other clusters may be left out of it.
	Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool)
	// Bindings gives those that choose the cluster or have something there still.
	Bindings() []*v1alpha1.ResourceBinding
	// KindOf gives what is known of the kind of a binding's object; false if it cannot
	// even be addressed in the cluster.
	KindOf(b *v1alpha1.ResourceBinding) (interpret.Kind, bool)
	// TypeVanished tells whether the type of a binding's object is gone, and nobody is
	// known to have deleted it.
	TypeVanished(b *v1alpha1.ResourceBinding) bool
	// Namespace gives the metadata of a namespace of the control plane; false if it is
	// not known.
	Namespace(name string) (metav1.Object, bool)

	// Source tells of the object that a binding is about; false if there is none, or
	// another of its name.
	Source(b *v1alpha1.ResourceBinding) (fleet.Source, bool)
	// Desired gives the object as the cluster should have it, for the caller to keep,
	// and of what state of the source that was made; false if it should have none, or
	// that is not known yet. live is the object as the cluster has it, nil if it does
	// not.
	Desired(ctx context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured) (*unstructured.Unstructured, fleet.Source, bool, error)

	// Leaving makes sure, now, that a binding's object is to leave the cluster: it gives
	// the binding as it is then, and nil if the object is not to leave. decided tells a
	// removal that nobody asked for: a decision changed, or a type vanished with its
	// objects, and the binding does not say that it is on somebody's request.
	Leaving(ctx context.Context, b *v1alpha1.ResourceBinding) (now *v1alpha1.ResourceBinding, decided bool, err error)
	// NamespaceGone makes sure, now, that the control plane has a namespace no more, or
	// is about to have it no more.
	NamespaceGone(ctx context.Context, name string) (bool, error)

	// Report writes the cluster's entry in the binding's status, or takes it out if it
	// is nil. It is safe to repeat.
	Report(ctx context.Context, b *v1alpha1.ResourceBinding, entry *v1alpha1.ClusterState) error
	// Halt writes the Cluster's condition DeletionsHalted.
	Halt(ctx context.Context, condition metav1.Condition) error
	// Event tells the owner of a binding's object of something. It does not wait.
	Event(b *v1alpha1.ResourceBinding, kind, reason, message string)
}
