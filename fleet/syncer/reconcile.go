package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// errRequeue asks for another attempt although nothing has failed.
var errRequeue = errors.New("not yet")

// reconcile brings one object in the member in line with its binding.
func (s *Syncer) reconcile(ctx context.Context, key types.NamespacedName) (err error) {
	heard := s.changes.take(key)
	defer func() {
		if err != nil && ctx.Err() == nil {
			s.changes.putBack(key, heard)
			s.metrics.failed(s.cluster, err)
		}
	}()
	if key.Name == "" {
		return s.reconcileNamespace(ctx, key.Namespace)
	}
	b, ok := s.Binding(key)
	if !ok {
		s.endpoints.end(key)
		s.endpoints.expire(key, s.clock.Now())
		s.forget(key)
		return s.unguard(ctx, key)
	}
	k, known := s.KindOf(b)
	if !known {
		return nil // a newer version of Atoll may know the kind: leave the object alone
	}
	m := s.recordOf(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.uid != b.UID {
		m.reset(b.UID)
	}
	// The cache may lag behind this syncer's own writes, so the recorded entry takes
	// precedence.
	if !m.loaded {
		m.loaded = true
		if entry, have := b.State(s.cluster); have {
			entry.Stale = nil // not written by the syncer
			m.entry, m.drain = &entry, entry.Drain
			m.restoreApplied(entry.Applied)
		}
	}
	s.transferVolumes(ctx, b, m)
	s.drainEndpoints(ctx, k, b, m)
	source, exists := s.Source(b)
	share, chosen := b.Share(s.cluster)
	if !chosen || b.DeletionTimestamp != nil && !(exists && !source.Deleting) {
		s.endpoints.end(key)
		m.endpoints = reportedEndpoints{}
		if m.entry == nil {
			return nil
		}
		if interpret.IsNamespace(k.GroupKind()) {
			return s.releaseNamespace(ctx, k, b, m)
		}
		return s.remove(ctx, k, b, m)
	}
	m.removalStart = time.Time{}
	if !exists {
		// Deleted, replaced, or not seen yet: the scheduler finds out which and records it in
		// the binding. Until then nothing changes.
		return nil
	}
	if interpret.IsNamespace(k.GroupKind()) && source.Deleting {
		return nil // it is not created again: its binding goes with it
	}
	desired, source, exists, err := s.Desired(ctx, b, nil)
	if interpret.IsPending(err) {
		return nil // the answer of the webhook causes another attempt
	}
	if interpret.IsWaiting(err) && m.entry != nil && m.entry.UID != "" {
		return s.unrevised(ctx, &target{KindInfo: k, binding: b, source: source, share: share, record: m}, err)
	}
	if errors.Is(err, fleet.ErrTransform) {
		return s.reportImpossible(ctx, b, m, err)
	}
	if err != nil || !exists {
		return err
	}
	t := &target{KindInfo: k, binding: b, desired: desired, source: source, share: share, record: m, heard: heard}
	if wait, err := s.guard(ctx, t); err != nil {
		return s.reportFailure(ctx, b, m, err)
	} else if wait > 0 {
		s.queue.AddAfter(key, wait)
		return nil
	}
	if b.Spec.Suspend {
		err = s.suspended(ctx, t)
	} else {
		err = s.apply(ctx, t)
	}
	if interpret.IsPending(err) {
		return nil
	}
	var taken conflictError
	if errors.As(err, &taken) && interpret.IsNamespace(k.GroupKind()) && m.entry != nil {
		return s.reportForeignNamespace(ctx, t, taken)
	}
	if err != nil {
		return s.reportFailure(ctx, b, m, err)
	}
	return errors.Join(s.reportVolumes(ctx, b, m), s.reportEndpoints(ctx, b, m))
}

// live returns the member's object, nil if there is none. An object that does not belong to
// this syncer is an error, unless it may be adopted.
func (s *Syncer) live(ctx context.Context, k interpret.KindInfo, b *v1alpha1.ResourceBinding, m *record) (*unstructured.Unstructured, error) {
	if interpret.IsNamespace(k.GroupKind()) {
		return s.liveNamespace(ctx, k, b)
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
	if m.entry != nil && m.entry.UID != "" {
		// The object exists, so the cache is about to contain it. Without this wait, a syncer
		// that starts would get all objects from the member one by one.
		s.member.waitForSync(ctx, k)
	}
	if live, ok := s.member.cached(k, name); ok && s.owns(live, b) {
		return live, nil
	}
	// Not in the cache: the object is new, has no label of Atoll's, or the cache is not synced.
	live, err := s.member.get(ctx, k, name)
	if err != nil || live == nil {
		return nil, err
	}
	if s.owns(live, b) {
		return live, nil
	}
	if m.entry != nil && m.entry.UID != "" && m.entry.UID == live.GetUID() {
		return live, nil // ours; the labels were removed, which is drift
	}
	if source, ok := s.Source(b); ok && source.Adopt || s.wasLeft(live, b) {
		return live, nil
	}
	return nil, conflictError{s.cluster, live}
}

// owns reports whether this syncer created an object of the member for this binding.
func (s *Syncer) owns(live *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	a := live.GetAnnotations()
	return live.GetLabels()[v1alpha1.ManagedLabel] == "true" &&
		a[v1alpha1.SourceUIDAnnotation] == string(b.Spec.Resource.UID) &&
		a[v1alpha1.ClusterAnnotation] == s.cluster
}

// wasLeft reports whether this fleet left an object in the member when its cluster was not joined, and is
// to take it over again. If the cluster did not answer when it left, the object still has all marks, perhaps
// with the name that the cluster had then.
func (s *Syncer) wasLeft(live *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	c, ok := s.Cluster()
	if !ok || c.Annotations[v1alpha1.AdoptAnnotation] != "true" {
		return false
	}
	a, uid := live.GetAnnotations(), string(b.Spec.Resource.UID)
	return a[v1alpha1.LeftAnnotation] == uid || a[v1alpha1.SourceUIDAnnotation] == uid
}

// conflictError reports that an object of another owner has the name.
type conflictError struct {
	cluster string
	live    *unstructured.Unstructured
}

func (e conflictError) Error() string {
	whose := "was not created by this fleet"
	if other := e.live.GetAnnotations()[v1alpha1.ClusterAnnotation]; other != "" && other != e.cluster {
		whose = fmt.Sprintf("belongs to cluster %s: two Clusters of this fleet point to the same cluster", other)
	} else if e.live.GetLabels()[v1alpha1.ManagedLabel] == "true" {
		whose = "was created by a fleet for another object"
	}
	if e.live.GetKind() == "Namespace" {
		name := e.live.GetName()
		if interpret.ReservedNamespace(name) != "" {
			return fmt.Sprintf("%s%s and %s. An administrator of the fleet can permit objects in it with the annotation %s=true on the namespace here",
				v1alpha1.NamespaceConflict(name), e.cluster, whose, v1alpha1.AdoptAnnotation)
		}
		return fmt.Sprintf("%s%s and %s. It may have accounts and rights of its own there, so no object is put into it. An administrator of the fleet can adopt it with `atoll adopt namespace/%s` (annotation %s=true on the namespace here)",
			v1alpha1.NamespaceConflict(name), e.cluster, whose, name, v1alpha1.AdoptAnnotation)
	}
	return fmt.Sprintf("%s %s already exists in cluster %s and %s; delete or rename it there, or adopt it with `atoll adopt` (annotation %s=true on the object here)",
		e.live.GetKind(), controllers.CacheKey(types.NamespacedName{Namespace: e.live.GetNamespace(), Name: e.live.GetName()}), e.cluster, whose, v1alpha1.AdoptAnnotation)
}
