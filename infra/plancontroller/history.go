package plancontroller

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// keptPlans and keptApplies are how many finished ones are kept in each namespace. Applies that changed
	// nothing are counted by themselves. Otherwise a user could push out the others without an approval.
	keptPlans   = 100
	keptApplies = 100
	// keptCarriedOut is how long a plan that was carried out is kept at least, whatever its TTL, unless its
	// Apply exceeds keptApplies before. Otherwise its author could have the record deleted at once.
	keptCarriedOut = 7 * 24 * time.Hour
	// orphanTTL is how long an approval is kept whose plan is gone, or does not exist yet.
	orphanTTL = time.Hour
)

// history deletes plans, applies and approvals that need not be kept.
type history struct{ *session }

// collect deletes plans, applies and approvals that have expired or exceed the number that is kept.
func (h *history) collect(ctx context.Context, s *snapshot) error {
	var errs []error
	remove := func(deleting error) {
		if deleting != nil && !apierrors.IsNotFound(deleting) && !apierrors.IsConflict(deleting) {
			errs = append(errs, deleting)
		}
	}
	deleted := map[string]bool{}
	plans, next := expiredPlans(s)
	for _, p := range plans {
		deleted[p.Name] = true
		remove(h.api.plans.Delete(ctx, p.Namespace, p.Name, p.UID, p.ResourceVersion))
	}
	if next > 0 {
		h.requeueAfter(s.namespace, next)
	}
	for _, a := range expiredApplies(s) {
		remove(h.api.applies.Delete(ctx, a.Namespace, a.Name, a.UID, ""))
	}
	for _, a := range s.approvals {
		if a.DeletionTimestamp != nil || s.now.Sub(a.CreationTimestamp.Time) < orphanTTL && !deleted[a.Spec.Plan] {
			continue
		}
		if deleted[a.Spec.Plan] || s.plan(a.Spec.Plan) == nil {
			remove(h.api.approvals.Delete(ctx, a.Namespace, a.Name, a.UID, ""))
		}
	}
	h.backoffs.dropOld(s.now)
	return errors.Join(errs...)
}

// carriedOut reports whether an Apply changed anything, or tried to.
func carriedOut(a *v1alpha1.Apply) bool {
	return a.Status.StartTime != nil && a.Status.Done.Changes()+a.Status.Failed > 0
}

// expiredApplies returns the finished Applies that exceed keptApplies. It counts those that were carried out by
// themselves.
func expiredApplies(s *snapshot) (out []*v1alpha1.Apply) {
	kept := map[bool]int{}
	for i := len(s.applies) - 1; i >= 0; i-- {
		a := s.applies[i]
		if a.DeletionTimestamp != nil || !ended(a) {
			continue
		}
		if kept[carriedOut(a)]++; kept[carriedOut(a)] > keptApplies {
			out = append(out, a)
		}
	}
	return out
}

// expiredPlans returns the plans whose TTL has passed or that exceed keptPlans, oldest first, and the time
// until the next one expires, or 0. Plans of an Apply that has not ended are kept.
func expiredPlans(s *snapshot) (out []*v1alpha1.Plan, next time.Duration) {
	inUse, applied, changed, appliedAt := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	for _, a := range s.applies {
		if !ended(a) {
			inUse[a.Spec.Plan] = true
		}
		if a.Status.StartTime != nil {
			applied[a.Spec.Plan] = true
		}
		changed[a.Spec.Plan] = changed[a.Spec.Plan] || carriedOut(a)
		if a.Status.CompletionTime != nil && a.Status.CompletionTime.After(appliedAt[a.Spec.Plan]) {
			appliedAt[a.Spec.Plan] = a.Status.CompletionTime.Time
		}
	}
	kept := 0
	for i := len(s.plans) - 1; i >= 0; i-- {
		p := s.plans[i]
		if !finished(p) || p.DeletionTimestamp != nil || inUse[p.Name] {
			continue
		}
		// Plans of Applies that are kept are the history for rollbacks. The other plans do not push them out:
		// each drift check may make one.
		if !applied[p.Name] {
			if kept++; kept > keptPlans {
				out = append([]*v1alpha1.Plan{p}, out...)
				continue
			}
		}
		if p.Spec.TTLSecondsAfterFinished == nil || p.Status.CompletionTime == nil {
			continue
		}
		from := p.Status.CompletionTime.Time
		if at, done := appliedAt[p.Name]; done && p.Status.Phase == v1alpha1.PlanApplied {
			from = at
		}
		ttl := time.Duration(*p.Spec.TTLSecondsAfterFinished) * time.Second
		if changed[p.Name] {
			ttl = max(ttl, keptCarriedOut)
		}
		left := from.Add(ttl).Sub(s.now)
		switch {
		case left <= 0:
			out = append([]*v1alpha1.Plan{p}, out...)
		case next == 0 || left < next:
			next = left
		}
	}
	return out, next
}
