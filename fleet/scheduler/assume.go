package scheduler

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// eventTimeout is how long the event of a written binding may take before the binding is read: if it was removed while the
// watch was interrupted, there is no event.
const eventTimeout = time.Minute

// assume makes a decision known to the next ones, before it is written. The caller holds allocationsMu.
func (s *scheduler) assume(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	switch {
	case a.Choice.Err != nil:
		return
	case b != nil && b.Spec.Manual != nil:
		return // it changes when a plan is applied
	case b != nil && equality.Semantic.DeepEqual(b.Decided(), a.Shares) && equality.Semantic.DeepEqual(b.Spec.Preemption, a.Preemption):
		return
	}
	s.assumed.decide(refOf(k.GroupKind(), obj).binding(), b, a.binding(k, obj, b), s.Clock.Now())
}

// binding returns the binding of an object with the decision. b is the present one, or nil.
func (a *Result) binding(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) *v1alpha1.ResourceBinding {
	out := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), obj.GetName())}}
	if b != nil {
		out = b.DeepCopy()
	}
	out.Spec.Resource = v1alpha1.ObjectReference{APIVersion: k.GroupVersion().String(), Kind: k.GroupVersionKind.Kind, Name: obj.GetName(), UID: obj.GetUID(), Resource: k.Resource}
	out.Spec.Goal, out.Spec.Transition, out.Spec.RequiredBy = nil, nil, nil
	out.Spec.Clusters, out.Spec.Inputs, out.Spec.ScaledBy, out.Spec.Preemption = slices.Clone(a.Shares), a.Decision.Inputs, a.scaledBy(), a.Preemption
	return out
}

// writeAssumed writes a binding that other decisions take into account from now on. base is the binding that it replaces, or nil.
func (s *scheduler) writeAssumed(base, desired *v1alpha1.ResourceBinding, write func() (*v1alpha1.ResourceBinding, error)) (*v1alpha1.ResourceBinding, error) {
	key := desired.Key()
	s.assumed.decide(key, base, desired, s.Clock.Now())
	written, err := write()
	switch {
	case err == nil:
		s.assumed.wrote(key, written, s.Clock.Now())
	case !isRejection(err):
		s.assumed.doubt(key)
	}
	return written, err
}

// isRejection reports whether the API server answered that it did not store a write. Without an answer, it may have. After a
// conflict the cache is older than the stored binding, which may be of an earlier try.
func isRejection(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusConflict
}

// undo takes back a decision that was not stored: the room for its object is again that of the cached binding, and objects that
// may wait because of the decision are decided again.
func (s *scheduler) undo(o object, decided *v1alpha1.ResourceBinding) {
	k, served := s.Kinds.Get(o.GroupKind)
	obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
	if served && exists && k.Placed {
		s.restoreRoom(k, obj, decided)
	}
	s.requeueWaiting(o.Namespace)
}

func (s *scheduler) restoreRoom(k interpret.KindInfo, obj *unstructured.Unstructured, decided *v1alpha1.ResourceBinding) {
	of := objectOf(k, obj)
	b, bound := s.Bindings.Get(refOf(k.GroupKind(), obj).binding())
	var shares []placement.Share
	var preemption *v1alpha1.Preemption
	if bound {
		shares, preemption = previous(b), b.Spec.Preemption
	}
	s.cache.allocationsMu.Lock()
	s.cache.allocations.Set(of, shares)
	s.cache.rooms.Grant(&of, shares, shares, s.Clock.Now())
	promise(s.cache.rooms, &of, preemption, shares)
	s.cache.allocationsMu.Unlock()
	s.roomChanged(clusterNames(decided.Decided())...)
}

// awaitEvent does nothing as long as the event of a written binding may arrive, which has its object reconciled. Later it forgets
// the binding if it does not exist.
func (s *scheduler) awaitEvent(ctx context.Context, o object, written *v1alpha1.ResourceBinding, since time.Time) error {
	if s.Clock.Since(since) < eventTimeout {
		return nil
	}
	live, err := s.LiveBinding(ctx, o.binding())
	if err != nil {
		return err
	}
	if live != nil && live.UID == written.UID {
		s.assumed.wrote(o.binding(), live, s.Clock.Now()) // the watch is late
		return nil
	}
	s.assumed.forget(o.binding())
	s.undo(o, written)
	s.queue.Add(o)
	return nil
}

// reviewAssumed queues the objects whose bindings were written long ago and whose events have not arrived, until ctx ends.
func (s *scheduler) reviewAssumed(ctx context.Context) {
	for {
		timer := s.Clock.NewTimer(eventTimeout)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		for _, b := range s.assumed.unseenSince(s.Clock.Now().Add(-eventTimeout)) {
			s.queue.Add(boundBy(b))
		}
	}
}
