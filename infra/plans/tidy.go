package plans

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

const (
	// keptPlans and keptApplies are how many of a namespace are kept that are over.
	keptPlans   = 100
	keptApplies = 100
	// orphaned is how long an approval is kept of a plan that is gone, or not there yet.
	orphaned = time.Hour
)

// tidy deletes what is older than it was to become, and more than is kept.
func (d *desk) tidy(ctx context.Context, s *scene) error {
	var errs []error
	remove := func(deleting error) {
		if deleting != nil && !apierrors.IsNotFound(deleting) && !apierrors.IsConflict(deleting) {
			errs = append(errs, deleting)
		}
	}
	gone := map[string]bool{}
	plans, next := expired(s)
	for _, p := range plans {
		gone[p.Name] = true
		remove(d.api.plans.delete(ctx, p.Namespace, p.Name, p.UID, p.ResourceVersion))
	}
	if next > 0 {
		d.later(s.namespace, next)
	}
	over := 0
	for i := len(s.applies) - 1; i >= 0; i-- {
		a := s.applies[i]
		if a.DeletionTimestamp != nil || !ended(a) {
			continue
		}
		if over++; over > keptApplies {
			remove(d.api.applies.delete(ctx, a.Namespace, a.Name, a.UID, ""))
		}
	}
	for _, a := range s.approvals {
		if a.DeletionTimestamp != nil || s.now.Sub(a.CreationTimestamp.Time) < orphaned && !gone[a.Spec.Plan] {
			continue
		}
		if gone[a.Spec.Plan] || s.plan(a.Spec.Plan) == nil {
			remove(d.api.approvals.delete(ctx, a.Namespace, a.Name, a.UID, ""))
		}
	}
	d.forgetPauses(s)
	return errors.Join(errs...)
}

// expired are the plans whose time is over, or of which there are too many, the oldest first, and how long it takes until
// the next is over; 0 if none will be. What an Apply wants that has not ended stays.
func expired(s *scene) (out []*v1alpha1.Plan, next time.Duration) {
	wanted, carried, appliedAt := map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	for _, a := range s.applies {
		if !ended(a) {
			wanted[a.Spec.Plan] = true
		}
		if a.Status.StartTime != nil {
			carried[a.Spec.Plan] = true
		}
		if a.Status.CompletionTime != nil && a.Status.CompletionTime.After(appliedAt[a.Spec.Plan]) {
			appliedAt[a.Spec.Plan] = a.Status.CompletionTime.Time
		}
	}
	kept := 0
	for i := len(s.plans) - 1; i >= 0; i-- {
		p := s.plans[i]
		if !finished(p) || p.DeletionTimestamp != nil || wanted[p.Name] {
			continue
		}
		// What an Apply carried out that is kept is the history that a rollback goes by: the others, of which there may be one for
		// each look at what has drifted, do not push it out.
		if !carried[p.Name] {
			if kept++; kept > keptPlans {
				out = append([]*v1alpha1.Plan{p}, out...)
				continue
			}
		}
		if p.Spec.TTLSecondsAfterFinished == nil || p.Status.CompletionTime == nil {
			continue
		}
		from := p.Status.CompletionTime.Time
		if at, applied := appliedAt[p.Name]; applied && p.Status.Phase == v1alpha1.PlanApplied {
			from = at
		}
		left := from.Add(time.Duration(*p.Spec.TTLSecondsAfterFinished) * time.Second).Sub(s.now)
		switch {
		case left <= 0:
			out = append([]*v1alpha1.Plan{p}, out...)
		case next == 0 || left < next:
			next = left
		}
	}
	return out, next
}

// forgetPauses drops those of what is gone. Only one looks at a namespace at a time; what is of others is
// dropped by those, or with the term.
func (d *desk) forgetPauses(s *scene) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, p := range d.pauses {
		if s.now.Sub(p.until) > orphaned {
			delete(d.pauses, uid)
		}
	}
}
