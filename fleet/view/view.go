// Package view implements the part of the control plane that one cluster may see: exactly the
// objects that are bound to it, already transformed for it. A syncer has no other access,
// wherever it runs.
//
// Local is the view of a syncer in the same process. Host serves views over HTTPS to syncers
// that run elsewhere, and Remote is the client of such a view. Both have the same methods, so
// that there is one syncer and not two. See DESIGN.md.
package view

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/override"
)

// reporterOf returns the field manager of a cluster's entry in bindings.
func reporterOf(cluster string) string { return v1alpha1.SyncerFieldManager + "-" + cluster }

// Local is one cluster's view, read from the caches of a session.
type Local struct {
	session *fleet.Session
	cluster string
}

// NewLocal returns the view of a cluster.
func NewLocal(session *fleet.Session, cluster string) *Local {
	return &Local{session: session, cluster: cluster}
}

// Cluster returns the Cluster itself; false if it is not known.
func (v *Local) Cluster() (*v1alpha1.Cluster, bool) { return v.session.Clusters.Get(v.cluster) }

// Subscribe calls notify with the key of each binding that concerns the cluster:
// now, and whenever the binding or its object changes. notify must not block.
func (v *Local) Subscribe(notify func(types.NamespacedName)) (cancel func()) {
	return v.session.Subscribe(v.cluster, notify)
}

// Binding returns a binding, which need not concern the cluster. A binding that waits for a
// plan is suspended.
func (v *Local) Binding(key types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	b, ok := v.session.Bindings.Get(key)
	if !ok {
		return nil, false
	}
	return v.withSuspend(b), true
}

// Bindings returns the bindings that choose the cluster or still have an object there.
func (v *Local) Bindings() []*v1alpha1.ResourceBinding {
	out := v.session.Bindings.On(v.cluster)
	for i, b := range out {
		out[i] = v.withSuspend(b)
	}
	return out
}

// withSuspend suspends a binding whose object differs from the content that a plan allowed.
func (v *Local) withSuspend(b *v1alpha1.ResourceBinding) *v1alpha1.ResourceBinding {
	if b.Spec.Manual == nil {
		return b
	}
	_, obj, ok := v.source(b)
	if !ok {
		obj = nil
	}
	return fleet.SuspendIfAwaitingPlan(b, obj)
}

// KindOf returns the known facts about the kind of a binding's object.
func (v *Local) KindOf(b *v1alpha1.ResourceBinding) (interpret.KindInfo, bool) {
	return v.session.Kinds.Of(b)
}

// TypeVanished reports whether the type of a binding's object is gone although no one is known
// to have deleted it.
func (v *Local) TypeVanished(b *v1alpha1.ResourceBinding) bool {
	return v.session.Types.Vanished(b.Spec.Resource.GroupVersionKind().GroupKind())
}

// Namespace returns the metadata of a namespace; false if it is not known.
func (v *Local) Namespace(name string) (metav1.Object, bool) { return v.session.Namespaces.Get(name) }

// Source returns the identity and state of the binding's object; false if it does not exist or
// was replaced by another of the same name.
func (v *Local) Source(b *v1alpha1.ResourceBinding) (fleet.SourceObject, bool) {
	k, known := v.KindOf(b)
	if !known {
		return fleet.SourceObject{}, false
	}
	obj, ok := v.metadata(k, b)
	if !ok || obj.GetUID() != b.Spec.Resource.UID {
		return fleet.SourceObject{}, false
	}
	return v.sourceOf(obj), true
}

// metadata returns the metadata of a binding's object.
func (v *Local) metadata(k interpret.KindInfo, b *v1alpha1.ResourceBinding) (metav1.Object, bool) {
	if interpret.IsNamespace(k.GroupKind()) {
		return v.session.Namespaces.Get(b.Spec.Resource.Name)
	}
	return v.session.Objects.Metadata(k.GroupKind(), b.ObjectName())
}

func (v *Local) sourceOf(obj metav1.Object) fleet.SourceObject {
	adopt := obj.GetAnnotations()[v1alpha1.AdoptAnnotation]
	return fleet.SourceObject{UID: obj.GetUID(), Generation: obj.GetGeneration(),
		Deleting: obj.GetDeletionTimestamp() != nil, Adopt: v1alpha1.Adopts(adopt, v.cluster)}
}

func (v *Local) source(b *v1alpha1.ResourceBinding) (interpret.KindInfo, *unstructured.Unstructured, bool) {
	k, known := v.KindOf(b)
	if !known {
		return k, nil, false
	}
	if interpret.IsNamespace(k.GroupKind()) {
		ns, ok := v.metadata(k, b)
		if !ok {
			return k, nil, false
		}
		return k, interpret.NamespaceObject(ns), ns.GetUID() == b.Spec.Resource.UID
	}
	obj, ok := v.session.Objects.Get(k.GroupKind(), b.ObjectName())
	return k, obj, ok && obj.GetUID() == b.Spec.Resource.UID
}

// Desired returns the object as the cluster should have it, and the state of the source that it
// was computed from. It returns false if the object does not exist or is not placed in this
// cluster. live is the object in the cluster, nil if there is no such object.
func (v *Local) Desired(ctx context.Context, b *v1alpha1.ResourceBinding, live *unstructured.Unstructured) (*unstructured.Unstructured, fleet.SourceObject, bool, error) {
	share, chosen := b.Share(v.cluster)
	k, obj, ok := v.source(b)
	if !chosen || !ok {
		return nil, fleet.SourceObject{}, false, nil
	}
	whole, ok, err := v.session.Objects.Complete(ctx, k, obj)
	if err != nil || !ok {
		return nil, fleet.SourceObject{}, false, err
	}
	desired, err := v.prepare(k, b, share, whole, live)
	return desired, v.sourceOf(whole), err == nil, err
}

// prepare computes the cluster's version of an object.
func (v *Local) prepare(k interpret.KindInfo, b *v1alpha1.ResourceBinding, share v1alpha1.ClusterShare, obj, live *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	how := interpret.Share{Cluster: v.cluster, Replicas: share.Replicas, OrdinalStart: share.OrdinalStart,
		Autoscaled: b.Spec.ScaledBy != nil, Live: live, Manager: v1alpha1.SyncerFieldManager, Wanted: b.Spec.WantedReplicas}
	for _, c := range b.Spec.Clusters {
		if c.Replicas != nil {
			if how.Target == nil {
				how.Target = map[string]int32{}
			}
			how.Target[c.Name] = *c.Replicas
		}
	}
	revised, err := k.Revise(obj, how)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fleet.ErrTransform, err)
	}
	prepared := k.PrepareShare(revised, how)
	if interpret.IsNamespace(k.GroupKind()) && b.Spec.Policy == nil {
		// Policies only override it: it is in the cluster for its objects, and is not the cluster's copy of the
		// binding's object, which goes with the binding.
		withoutSource(prepared)
	}
	out, err := override.Apply(prepared, b.OverridesOf(share))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fleet.ErrTransform, err)
	}
	return out, nil
}

func withoutSource(obj *unstructured.Unstructured) {
	annotations := obj.GetAnnotations()
	delete(annotations, v1alpha1.SourceUIDAnnotation)
	obj.SetAnnotations(annotations)
}

// ConfirmRemoval returns the current binding if its object is to leave the cluster, otherwise
// nil. It reads live, because a deletion depends on it. The object is to leave if the decision
// no longer names the cluster, or if the binding is deleted because the object is. A binding
// that a user deleted directly is removed together with its object: until then the object keeps
// running.
//
// A removal is decided if no one requested it: a decision changed, or a type vanished with its
// objects, and the binding records no request.
func (v *Local) ConfirmRemoval(ctx context.Context, b *v1alpha1.ResourceBinding) (fleet.Removal, error) {
	ref := b.Spec.Resource
	now, err := v.session.LiveBinding(ctx, b.Key())
	if err != nil {
		return fleet.Removal{}, fmt.Errorf("confirm that %s %s is to leave cluster %s: %w", ref.Kind, controllers.CacheKey(b.ObjectName()), v.cluster, err)
	}
	if now == nil || now.UID != b.UID {
		return fleet.Removal{}, nil // the cache will catch up and trigger another call
	}
	now = v.withSuspend(now)
	_, requested := now.RequestedRemoval(v.cluster)
	if _, chosen := now.Share(v.cluster); !chosen {
		return fleet.Removal{Binding: now, Decided: !requested, Waits: v.waitsFor(now)}, nil
	}
	k, known := v.KindOf(now)
	if now.DeletionTimestamp == nil || !known {
		return fleet.Removal{}, nil
	}
	obj, err := v.session.Objects.Live(ctx, k, b.ObjectName())
	switch {
	case err != nil:
		return fleet.Removal{}, fmt.Errorf("confirm that %s %s is gone: %w", ref.Kind, controllers.CacheKey(b.ObjectName()), err)
	case obj != nil && obj.GetUID() == ref.UID && obj.GetDeletionTimestamp() == nil:
		return fleet.Removal{}, nil
	}
	return fleet.Removal{Binding: now, Decided: !requested && v.TypeVanished(now)}, nil
}

// ConfirmNamespaceGone reports, by a live read, whether the control plane no longer has a
// namespace or is deleting it.
func (v *Local) ConfirmNamespaceGone(ctx context.Context, name string) (bool, error) {
	ns, err := v.session.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("confirm that namespace %s is gone: %w", name, err)
	}
	return ns.DeletionTimestamp != nil, nil
}

// Report writes the cluster's entry in the binding's status, or removes it if entry is nil.
// Each cluster's entry is applied under its own field manager, so that many clusters report on
// one binding without conflicts.
func (v *Local) Report(ctx context.Context, b *v1alpha1.ResourceBinding, entry *v1alpha1.ClusterState) error {
	status := map[string]any{}
	if entry != nil {
		stated, err := runtime.DefaultUnstructuredConverter.ToUnstructured(entry)
		if err != nil {
			return fmt.Errorf("encode the report on %s %s: %w", b.Spec.Resource.Kind, b.Spec.Resource.Name, err)
		}
		status["clusters"] = []any{stated}
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": v1alpha1.BindingKind(b.Namespace),
		// With the UID, an apply never recreates a deleted binding.
		"metadata": fleet.BindingIdentity(b),
		"status":   status,
	}}
	if err := fleet.ApplyStatus(ctx, v.session.BindingAPI(b.Namespace), apply, reporterOf(v.cluster)); err != nil {
		return fmt.Errorf("report on %s %s/%s from cluster %s: %w", b.Spec.Resource.Kind, b.Namespace, b.Spec.Resource.Name, v.cluster, err)
	}
	return nil
}

// SetDeletionsHalted writes the Cluster's condition DeletionsHalted: whether the syncer waits
// for an approval before it removes more objects.
func (v *Local) SetDeletionsHalted(ctx context.Context, condition metav1.Condition) error {
	c, ok := v.Cluster()
	if !ok {
		return nil // there is no Cluster to write it to
	}
	condition.Type = v1alpha1.ClusterDeletionsHalted
	stated, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
	if err != nil {
		return fmt.Errorf("encode the condition %s of cluster %s: %w", condition.Type, v.cluster, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": clusterKind,
		"metadata": map[string]any{"name": c.Name, "uid": string(c.UID)},
		"status":   map[string]any{"conditions": []any{stated}},
	}}
	_, err = v.session.Dynamic.Resource(v1alpha1.ClusterResource).
		ApplyStatus(ctx, c.Name, apply, metav1.ApplyOptions{FieldManager: reporterOf(v.cluster), Force: true})
	if err != nil {
		return fmt.Errorf("write the condition %s of cluster %s: %w", condition.Type, v.cluster, err)
	}
	switch was := meta.IsStatusConditionTrue(c.Status.Conditions, condition.Type); {
	case !was && condition.Status == metav1.ConditionTrue:
		v.session.Events.Event(c, corev1.EventTypeWarning, v1alpha1.EventDeletionsHalted, condition.Message)
	case was && condition.Status == metav1.ConditionFalse:
		v.session.Events.Event(c, corev1.EventTypeNormal, v1alpha1.EventDeletionsResumed, condition.Message)
	}
	return nil
}

// Event records an event on a binding's object.
func (v *Local) Event(b *v1alpha1.ResourceBinding, kind, reason, message string) {
	ref := b.Spec.Resource
	v.session.Events.Event(&corev1.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind,
		Namespace: b.Namespace, Name: ref.Name, UID: ref.UID}, kind, reason, message)
}
