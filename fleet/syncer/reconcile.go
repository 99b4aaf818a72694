package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// errLater asks for another attempt without anything having failed.
var errLater = errors.New("not yet")

// reconcile brings one object in the member in line with its binding.
func (s *Syncer) reconcile(ctx context.Context, key types.NamespacedName) error {
	b, ok := s.Binding(key)
	if !ok {
		s.forget(key)
		return nil
	}
	k, known := interpret.Find(b.Spec.Resource.GroupVersionKind().GroupKind())
	if !known {
		return nil // a newer Atoll may know it: leave it alone
	}
	m := s.remember(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uid != b.UID {
		m.begin(b.UID)
	}
	// The cache may lag behind what this syncer wrote, so what it wrote counts.
	if !m.set {
		m.set = true
		if entry, have := b.State(s.cluster); have {
			m.entry = &entry
		}
	}
	obj, exists := s.Object(k.GroupKind(), types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name})
	exists = exists && obj.GetUID() == b.Spec.Resource.UID
	share, chosen := b.Share(s.cluster)
	if !chosen || b.DeletionTimestamp != nil && !(exists && obj.GetDeletionTimestamp() == nil) {
		if m.entry == nil {
			return nil
		}
		return s.remove(ctx, k, b, m)
	}
	if !exists {
		// Gone, or replaced, or not seen yet: the scheduler finds out which and
		// then says so in the binding. Until then everything stays as it is.
		return nil
	}
	whole, exists, err := s.Whole(ctx, k, obj)
	if err != nil || !exists {
		return err
	}
	if err := s.apply(ctx, k, b, whole, share, m); err != nil {
		return s.reportTrouble(ctx, b, whole, m, err)
	}
	return nil
}

// apply makes the member's object as it should be and reports what it is.
func (s *Syncer) apply(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured, share v1alpha1.ClusterShare, m *memory) error {
	if m.entry == nil {
		// Say so before doing so.
		m.gone.Store(false)
		intent := v1alpha1.ClusterState{Name: s.cluster, Health: v1alpha1.Unknown, Reason: v1alpha1.StateApplying}
		if err := s.report(ctx, b, m, &intent); err != nil {
			return err
		}
	}
	live, err := s.live(ctx, k, b, m)
	if err != nil {
		return err
	}
	if live != nil && live.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%w: the object is being deleted in the cluster", errLater)
	}
	if live != nil && m.outdated(live) {
		return nil // the cache has yet to see what was applied; that will be an event
	}
	desired := k.Prepare(obj, s.cluster, share.Replicas)
	digest := digestOf(desired.Object)
	if live == nil || digest != m.applied || digestLive(live, desired) != m.settled {
		drifted := live != nil && m.entry.UID == live.GetUID() && digest == m.applied
		if drifted {
			if pause := m.drift.pause(s.Clock.Now()); pause > 0 {
				// Somebody else keeps changing it: do not fight at full speed.
				s.queue.AddAfter(keyOf(b), pause)
				return s.reportLive(ctx, k, b, obj, share, live, m)
			}
		}
		applied, err := s.member.apply(ctx, k, desired, live)
		if err != nil {
			return err
		}
		if drifted && digestLive(live, desired) != digestLive(applied, desired) {
			m.drift.corrected(s.Clock.Now())
			s.Events.Eventf(obj, corev1.EventTypeNormal, "DriftCorrected", "Put right in cluster %s what was changed there", s.cluster)
		}
		if live == nil && m.entry.UID != "" {
			s.Events.Eventf(obj, corev1.EventTypeNormal, "Recreated", "Made again in cluster %s what was deleted there", s.cluster)
		}
		live = applied
		m.settle(digest, desired, live)
	}
	return s.reportLive(ctx, k, b, obj, share, live, m)
}

// live gives the object as the member has it, nil if it has none. An object that
// is not this syncer's is an error, unless it may be adopted.
func (s *Syncer) live(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, m *memory) (*unstructured.Unstructured, error) {
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
	if live, ok := s.member.cached(k, name); ok && s.ours(live, b) {
		return live, nil
	}
	// Not in the cache: new, or without our mark, or the cache is young.
	live, err := s.member.get(ctx, k, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s.ours(live, b) {
		return live, nil
	}
	if m.entry != nil && m.entry.UID != "" && m.entry.UID == live.GetUID() {
		return live, nil // ours; somebody took the marks off, which is drift
	}
	obj, ok := s.Object(k.GroupKind(), name)
	if ok && obj.GetAnnotations()[v1alpha1.AdoptAnnotation] == "true" {
		return live, nil
	}
	return nil, conflictError{s.cluster, live}
}

// ours tells whether an object of the member was made by this syncer for this
// binding.
func (s *Syncer) ours(live *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	a := live.GetAnnotations()
	return live.GetLabels()[v1alpha1.ManagedLabel] == "true" &&
		a[v1alpha1.SourceUIDAnnotation] == string(b.Spec.Resource.UID) &&
		a[v1alpha1.ClusterAnnotation] == s.cluster
}

// conflictError: an object that is somebody else's has the name.
type conflictError struct {
	cluster string
	live    *unstructured.Unstructured
}

func (e conflictError) Error() string {
	whose := "was not made by this fleet"
	if other := e.live.GetAnnotations()[v1alpha1.ClusterAnnotation]; other != "" && other != e.cluster {
		whose = fmt.Sprintf("belongs to cluster %s: two clusters of this fleet are the same one", other)
	} else if e.live.GetLabels()[v1alpha1.ManagedLabel] == "true" {
		whose = "was made by a fleet for another object"
	}
	return fmt.Sprintf("%s %s/%s already exists in cluster %s and %s; delete or rename it there, or take it over with the annotation %s=true on the object here",
		e.live.GetKind(), e.live.GetNamespace(), e.live.GetName(), e.cluster, whose, v1alpha1.AdoptAnnotation)
}

// remove takes the object out of the member, or the marks off it, and then the
// entry out of the binding.
func (s *Syncer) remove(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding, m *memory) error {
	// What is to be deleted depends on this answer, so it is asked for live.
	b, err := s.confirmed(ctx, k, b)
	if err != nil || b == nil {
		return err
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
	live, err := s.member.get(ctx, k, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return s.reportRemoving(ctx, b, m, err)
	}
	orphan := s.orphans(b)
	switch {
	case apierrors.IsNotFound(err) || !s.ours(live, b):
		return s.removed(ctx, b, m)
	case orphan:
		if err := s.member.release(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
		return s.removed(ctx, b, m)
	case live.GetDeletionTimestamp() == nil:
		if err := s.member.delete(ctx, k, live); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
	}
	// Its disappearance is an event; this is for the case that it is missed.
	s.queue.AddAfter(keyOf(b), 2*time.Second)
	return s.reportRemoving(ctx, b, m, nil)
}

// confirmed gives the binding as it is now if the object is to leave this
// cluster, else nil. It is to leave if the decision says so, or if the binding is
// deleted because the object is. A binding that somebody deleted on its own goes
// when its object goes: until then the object runs on.
func (s *Syncer) confirmed(ctx context.Context, k interpret.Kind, b *v1alpha1.ResourceBinding) (*v1alpha1.ResourceBinding, error) {
	ref := b.Spec.Resource
	u, err := s.Dynamic.Resource(v1alpha1.ResourceBindingResource).Namespace(b.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("confirm that %s %s/%s is to leave cluster %s: %w", ref.Kind, b.Namespace, ref.Name, s.cluster, err)
	}
	now := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, now); err != nil {
		return nil, fmt.Errorf("read binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	_, chosen := now.Share(s.cluster)
	switch {
	case now.UID != b.UID:
		return nil, nil // the cache will catch up and call again
	case !chosen:
		return now, nil
	case now.DeletionTimestamp == nil:
		return nil, nil
	}
	obj, err := s.Dynamic.Resource(k.GVR()).Namespace(b.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return now, nil
	case err != nil:
		return nil, fmt.Errorf("confirm that %s %s/%s is gone: %w", ref.Kind, b.Namespace, ref.Name, err)
	case obj.GetUID() == ref.UID && obj.GetDeletionTimestamp() == nil:
		return nil, nil
	}
	return now, nil
}

// orphans tells whether what leaves the cluster is left running.
func (s *Syncer) orphans(b *v1alpha1.ResourceBinding) bool {
	if b.Annotations[v1alpha1.LeaveAnnotation] == v1alpha1.LeaveOrphan {
		return true
	}
	c, ok := s.Cluster(s.cluster)
	if !ok {
		return true // without a Cluster nobody said that anything may be deleted
	}
	leaving, orphan := c.Leaves()
	return leaving && orphan
}

// removed is called when nothing of ours is left of the object.
func (s *Syncer) removed(ctx context.Context, b *v1alpha1.ResourceBinding, m *memory) error {
	s.last.Lock()
	defer s.last.Unlock()
	if s.lastOf(b) {
		if err := s.removeNamespace(ctx, b.Namespace); err != nil {
			return s.reportRemoving(ctx, b, m, err)
		}
	}
	if err := s.report(ctx, b, m, nil); err != nil {
		return err
	}
	m.gone.Store(true)
	m.unsettle()
	return nil
}

func keyOf(b *v1alpha1.ResourceBinding) types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}
