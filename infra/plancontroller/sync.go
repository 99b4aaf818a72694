package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/approval"
)

// Labels of plans and applies that policies create.
const (
	// policyLabel names the policy that created a plan, purposeLabel its purpose.
	policyLabel  = v1alpha1.Group + "/policy"
	purposeLabel = v1alpha1.Group + "/made-for"

	purposeWrite = "write"
	purposeDrift = "drift"
)

const (
	// A policy plans once nothing was written for quietPeriod, or at the latest after maxWait.
	quietPeriod = 3 * time.Second
	maxWait     = 30 * time.Second
	// A policy's own plans expire soon if they are not applied: after an hour they say little.
	autoTTL = 3600
	// retryFailed is how long after a failed apply a policy plans the rest.
	retryFailed = 5 * time.Minute
)

// syncing does what policies ask for without a user: it plans writes, checks for drift, and applies approved
// plans.
type syncing struct {
	*session
	approvals *planPolicies

	mu     sync.Mutex
	checks map[driftCheck]time.Time
}

// driftCheck identifies the drift checks of a policy in a namespace.
type driftCheck struct{ namespace, policy string }

// follow acts on the namespace's policies: it plans writes, checks for drift, and applies approved
// plans.
func (y *syncing) follow(ctx context.Context, s *snapshot) error {
	if s.terminating || len(s.policies) == 0 {
		return nil
	}
	return errors.Join(y.planWrites(ctx, s), y.checkDrift(ctx, s), y.applyApproved(ctx, s))
}

// createdBy reports whether a policy created the plan for a purpose.
func createdBy(p *v1alpha1.Plan, by *approval.Policy, purpose string) bool {
	return p.Labels[policyLabel] == by.Label() && p.Labels[purposeLabel] == purpose
}

// busy reports whether a plan by the policy, or any apply, is unfinished. Until then there is nothing new to
// plan.
func (s *snapshot) busy(by *approval.Policy) bool {
	for _, p := range s.plans {
		if p.Labels[policyLabel] == by.Label() && p.DeletionTimestamp == nil && !finished(p) {
			return true
		}
	}
	return slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return begun(a) })
}

// planWrites creates a plan for each policy of mode Auto once nothing was written for a while.
func (y *syncing) planWrites(ctx context.Context, s *snapshot) error {
	autos := slices.DeleteFunc(slices.Clone(s.policies), func(p *approval.Policy) bool { return !p.Auto() })
	if len(autos) == 0 {
		return nil // all writes count once a policy turns Auto
	}
	first, last := y.writes.unplanned(s.namespace)
	if first.IsZero() {
		if !y.retryDue(s, autos) {
			return nil
		}
		first, last = s.now.Add(-maxWait), s.now.Add(-maxWait)
	}
	if wait := min(quietPeriod-s.now.Sub(last), maxWait-s.now.Sub(first)); wait > 0 {
		y.requeueAfter(s.namespace, wait)
		return nil
	}
	for _, p := range autos {
		if s.busy(p) {
			y.requeueAfter(s.namespace, quietPeriod)
			return nil
		}
	}
	// Writes from here on belong to the next plan, even if this one includes them.
	y.writes.setUnplanned(s.namespace, time.Time{}, time.Time{})
	for _, p := range autos {
		if err := y.createPlan(ctx, s, p, purposeWrite, false); err != nil {
			y.writes.setUnplanned(s.namespace, first, last)
			return err
		}
	}
	return nil
}

// retryDue reports whether a policy's last apply failed, and it is time to plan the rest.
func (y *syncing) retryDue(s *snapshot, autos []*approval.Policy) bool {
	for _, by := range autos {
		var last *v1alpha1.Apply
		for _, a := range s.applies {
			if a.Labels[policyLabel] == by.Label() {
				last = a
			}
		}
		if last == nil || last.Status.Phase != v1alpha1.ApplyFailed || last.Status.CompletionTime == nil {
			continue
		}
		planned := slices.ContainsFunc(s.plans, func(p *v1alpha1.Plan) bool {
			return createdBy(p, by, purposeWrite) && p.CreationTimestamp.After(last.Status.CompletionTime.Time)
		})
		if planned {
			continue
		}
		if wait := retryFailed - s.now.Sub(last.Status.CompletionTime.Time); wait > 0 {
			y.requeueAfter(s.namespace, wait)
			continue
		}
		return true
	}
	return false
}

// createPlan creates a plan for a policy. It replaces the policy's earlier plans that no apply uses.
func (y *syncing) createPlan(ctx context.Context, s *snapshot, by *approval.Policy, purpose string, refresh bool) error {
	ttl := int32(autoTTL)
	p := &v1alpha1.Plan{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "auto-" + purpose + "-", Namespace: s.namespace,
			Labels: map[string]string{policyLabel: by.Label(), purposeLabel: purpose},
		},
		Spec: v1alpha1.PlanSpec{Mode: v1alpha1.PlanNormal, Selector: by.Spec.Selector, Refresh: refresh, TTLSecondsAfterFinished: &ttl},
	}
	if purpose == purposeDrift {
		// This plan records when the providers were last read, and its findings should be seen.
		ttl = max(ttl, int32(2*by.DriftInterval()/time.Second))
	}
	if _, err := y.api.plans.Create(ctx, s.namespace, p); err != nil {
		return fmt.Errorf("create a plan for %s: %w", by, err)
	}
	var errs []error
	for _, old := range s.plans {
		superseded := createdBy(old, by, purpose) && old.Status.Phase != v1alpha1.PlanApplied && finished(old) && old.DeletionTimestamp == nil
		wanted := slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return a.Spec.Plan == old.Name && !ended(a) })
		if superseded && !wanted {
			if err := y.api.plans.Delete(ctx, old.Namespace, old.Name, old.UID, ""); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// checkDrift creates plans with refresh at the interval of each policy.
func (y *syncing) checkDrift(ctx context.Context, s *snapshot) error {
	var errs []error
	for _, p := range s.policies {
		every := p.DriftInterval()
		if every == 0 || p.Invalid != nil {
			continue
		}
		last := p.Created
		for _, one := range s.plans {
			if createdBy(one, p, purposeDrift) && one.CreationTimestamp.After(last) {
				last = one.CreationTimestamp.Time
			}
		}
		check := driftCheck{s.namespace, p.Label()}
		y.mu.Lock()
		if at := y.checks[check]; at.After(last) {
			last = at
		}
		y.mu.Unlock()
		if wait := every - s.now.Sub(last); wait > 0 {
			y.requeueAfter(s.namespace, wait)
			continue
		}
		if s.busy(p) {
			y.requeueAfter(s.namespace, quietPeriod)
			continue
		}
		// The cache may not have the plan yet when this namespace is reconciled next.
		y.mu.Lock()
		y.checks[check] = s.now
		y.mu.Unlock()
		if err := y.createPlan(ctx, s, p, purposeDrift, true); err != nil {
			errs = append(errs, err)
			continue
		}
		y.requeueAfter(s.namespace, every)
	}
	return errors.Join(errs...)
}

// applyApproved applies approved plans that an Auto policy created, if all changes are under policies of that
// mode. Other plans are chosen by users, who also decide when to apply them.
func (y *syncing) applyApproved(ctx context.Context, s *snapshot) error {
	var errs []error
	for _, p := range s.plans {
		by := slices.IndexFunc(s.policies, func(one *approval.Policy) bool {
			return one.Auto() && (createdBy(p, one, purposeWrite) || createdBy(p, one, purposeDrift))
		})
		if by < 0 || p.Status.Phase != v1alpha1.PlanPlanned || p.DeletionTimestamp != nil || p.Spec.Rollback != "" || hasNoEffect(p) || !isCurrent(p) {
			continue
		}
		if slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return a.Spec.Plan == p.Name }) {
			continue
		}
		judgedBy, err := y.approvals.of(ctx, s, p, false)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if v := approval.Decide(p, s.approvals, judgedBy.policies, judgedBy.authors, s.now, evaluateWithin(ctx)); !v.Approved || !v.Auto {
			continue
		}
		// The plan's own name makes a second Apply impossible.
		_, err = y.api.applies.Create(ctx, s.namespace, &v1alpha1.Apply{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: s.namespace, Labels: map[string]string{policyLabel: p.Labels[policyLabel]}},
			Spec:       v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest, Parallelism: defaultParallelism},
		})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("apply plan %s for %s: %w", p.Name, s.policies[by], err))
		}
	}
	return errors.Join(errs...)
}

// isCurrent reports whether a plan's status does not call it stale. Stale plans are planned again.
func isCurrent(p *v1alpha1.Plan) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.PlanCurrent && c.Status == metav1.ConditionFalse {
			return false
		}
	}
	return true
}
