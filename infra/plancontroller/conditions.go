package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
)

// checkInterval is the least time between two checks of a plan for staleness, or for the policies that apply
// to it.
const checkInterval = 3 * time.Second

// conditions keeps the conditions Approved and Current of plans.
type conditions struct {
	*session
	approvals *planPolicies
	checks    perPlan[staleCheck]
}

// staleCheck is the last check of a plan for staleness.
type staleCheck struct {
	changes int64 // of the namespace
	at      time.Time
}

// isSpeculative reports whether a plan supposes objects that do not exist.
func isSpeculative(p *v1alpha1.Plan) bool { return len(p.Spec.Objects) > 0 }

// hasNoEffect reports whether applying a plan would do nothing at all.
func hasNoEffect(p *v1alpha1.Plan) bool {
	s := p.Status.Summary
	return s.Changes() == 0 && s.Read == 0 && s.Drift == 0
}

// update sets the conditions Approved and Current of all plans that can still be applied.
func (c *conditions) update(ctx context.Context, s *snapshot) error {
	var errs []error
	for _, p := range s.plans {
		if p.Status.Phase != v1alpha1.PlanPlanned || p.DeletionTimestamp != nil {
			continue
		}
		if err := c.updateOne(ctx, s, p); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("update the conditions of plan %s: %w", p.Name, err))
		}
	}
	c.checks.dropGone(s)
	c.approvals.chosen.dropGone(s)
	return errors.Join(errs...)
}

func (c *conditions) updateOne(ctx context.Context, s *snapshot, p *v1alpha1.Plan) error {
	approved, err := c.approved(ctx, s, p)
	if err != nil {
		return err
	}
	stale, err := c.staleReason(ctx, s, p)
	if err != nil {
		return err
	}
	change := func(p *v1alpha1.Plan) bool {
		if p.Status.Phase != v1alpha1.PlanPlanned {
			return false
		}
		changed := setCondition(&p.Status.Conditions, p.Generation, s.now, approved)
		if stale != "" {
			changed = setCondition(&p.Status.Conditions, p.Generation, s.now, controllers.Condition(v1alpha1.PlanCurrent, false, v1alpha1.ReasonMoved, stale)) || changed
		}
		return changed
	}
	if !change(p.DeepCopy()) {
		return nil
	}
	_, err = c.api.plans.UpdateStatus(ctx, p.Namespace, p.Name, p.UID, change)
	return err
}

func (c *conditions) approved(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (metav1.Condition, error) {
	switch {
	case isSpeculative(p):
		return controllers.Condition(v1alpha1.PlanApproved, false, v1alpha1.ReasonSpeculative,
			"The plan is speculative and cannot be applied: create its objects with kubectl apply, then create another plan."), nil
	case hasNoEffect(p):
		return controllers.Condition(v1alpha1.PlanApproved, true, v1alpha1.ReasonNothingToDo, "No changes to apply."), nil
	}
	by, err := c.approvals.of(ctx, s, p, false)
	if err != nil {
		return metav1.Condition{}, err
	}
	v := approval.Decide(p, s.approvals, by.policies, by.authors, s.now, evaluateWithin(ctx))
	return controllers.Condition(v1alpha1.PlanApproved, v.Approved, v.Reason, v.Message), nil
}

// staleReason returns a message that names the first change whose preconditions no longer hold, or the empty
// string. A stale plan stays stale.
func (c *conditions) staleReason(ctx context.Context, s *snapshot, p *v1alpha1.Plan) (string, error) {
	for _, one := range p.Status.Conditions {
		if one.Type == v1alpha1.PlanCurrent && one.Status == metav1.ConditionFalse {
			return one.Message, nil
		}
	}
	last, changes := c.checks.of(p), c.writes.changes(p.Namespace)
	withWorkloads := includesWorkloads(p, s) && p.Status.Summary.Place+p.Status.Summary.Delete > 0
	if !last.at.IsZero() && last.changes == changes && !withWorkloads || isSpeculative(p) {
		return "", nil
	}
	if wait := checkInterval - s.now.Sub(last.at); !last.at.IsZero() && wait > 0 {
		c.requeueAfter(s.namespace, wait)
		return "", nil
	}
	var found string
	var failed error
	err := effectiveChanges(ctx, c.dynamic, p, func(one *change.Change) bool {
		if _, _, is := one.Address.Workload(); is {
			var stale bool
			if stale, failed = s.proposals.IsStale(ctx, one); stale {
				found = fmt.Sprintf("%s or its proposal changed after it was planned and would be rejected. Create another plan.", one.Address)
			}
			return found == "" && failed == nil
		}
		ref := refOf(p.Namespace, one.Address)
		state := c.inventory.State(ref)
		if one.MovedFrom != nil {
			state = c.inventory.State(infra.RefOf(*one.MovedFrom))
		}
		if infra.IsStale(c.inventory.Object(ref), state, one.Preconditions) {
			found = fmt.Sprintf("%s changed after it was planned and would be rejected. Create another plan.", one.Address)
		}
		return found == ""
	})
	if err := errors.Join(err, failed); err != nil {
		return "", err
	}
	if withWorkloads {
		c.requeueAfter(s.namespace, workloadCheckInterval) // proposals are not watched
	}
	last.changes, last.at = changes, s.now
	return found, nil
}

// setCondition sets a condition, and reports whether that changed anything.
func setCondition(all *[]metav1.Condition, generation int64, now time.Time, c metav1.Condition) bool {
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
	return meta.SetStatusCondition(all, c)
}
