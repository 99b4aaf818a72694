package syncer

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// View is the syncer's access to the control plane: all that it may read and write there. The
// results must not be modified, except those of Desired. Only ConfirmRemoval and
// ConfirmNamespaceGone justify a deletion: everything else may be stale or incomplete.
type View interface {
	// Cluster returns the Cluster that the syncer serves; false if it is not known.
	Cluster() (*v1alpha1.Cluster, bool)
	// Subscribe calls notify with the key of each binding that concerns the cluster: now, and
	// whenever the binding or its object changes. When a namespace of such a binding changes,
	// it calls notify with the namespace and no name; a view whose source can see them also
	// does so for every namespace that is deleted. notify must not block.
	Subscribe(notify func(types.NamespacedName)) (cancel func())
	// Binding returns a binding, which need not concern the cluster (any more). Parts of it
	// that concern other clusters may be omitted.
	Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool)
	// Bindings returns the bindings that choose the cluster or still have an object there.
	Bindings() []*v1alpha1.ResourceBinding
	// KindOf returns the known facts about the kind of a binding's object; false if objects of
	// the kind cannot even be addressed in the cluster.
	KindOf(b *v1alpha1.ResourceBinding) (interpret.KindInfo, bool)
	// TypeVanished reports whether the type of a binding's object is gone although no one is
	// known to have deleted it.
	TypeVanished(b *v1alpha1.ResourceBinding) bool
	// Namespace returns the metadata of a namespace of the control plane; false if it is not
	// known.
	Namespace(name string) (metav1.Object, bool)

	// Source returns the identity and state of the binding's object; false if the object does
	// not exist or was replaced by another of the same name.
	Source(b *v1alpha1.ResourceBinding) (fleet.SourceObject, bool)
	// Desired returns the object as the cluster should have it, and the state of the source
	// that it was computed from. The caller owns the object. It returns false if the cluster
	// should have none, or if that is not known yet. live is the object in the cluster, nil if
	// there is none.
	Desired(ctx context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured) (*unstructured.Unstructured, fleet.SourceObject, bool, error)

	// ConfirmRemoval verifies with a live read that a binding's object is to leave the cluster.
	// A removal is decided if no one requested it: a decision changed, or a type vanished with
	// its objects, and the binding records no request.
	ConfirmRemoval(ctx context.Context, b *v1alpha1.ResourceBinding) (fleet.Removal, error)
	// ConfirmNamespaceGone verifies with a live read that the control plane no longer has a
	// namespace, or is deleting it.
	ConfirmNamespaceGone(ctx context.Context, name string) (bool, error)

	// Report writes the cluster's entry in the binding's status, or removes it if entry is nil.
	// It is idempotent.
	Report(ctx context.Context, b *v1alpha1.ResourceBinding, entry *v1alpha1.ClusterState) error
	// ReportEndpoints writes which endpoints an exported Service has in the cluster. It is idempotent.
	ReportEndpoints(ctx context.Context, b *v1alpha1.ResourceBinding, found multicluster.Endpoints) error
	// SetDeletionsHalted writes the Cluster's condition DeletionsHalted.
	SetDeletionsHalted(ctx context.Context, condition metav1.Condition) error
	// Event records an event on the binding's object. It does not wait.
	Event(b *v1alpha1.ResourceBinding, kind, reason, message string)
}
