package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Labels of what policies make.
const (
	// policyLabel has the name of the policy that made a plan, whyLabel what for.
	policyLabel = v1alpha1.Group + "/policy"
	whyLabel    = v1alpha1.Group + "/made-for"

	forWrite = "write"
	forDrift = "drift"
)

const (
	// settle is how long nothing has to be written before a policy plans, and patience how long it waits for that at most.
	settle   = 3 * time.Second
	patience = 30 * time.Second
	// A policy's own plans go after a while, if nobody applies them. Those of an hour ago say little.
	autoTTL = 3600
	// retryFailed is after what time a policy plans what is left of something that failed.
	retryFailed = 5 * time.Minute
	// shortestDrift is how often providers are asked at most.
	shortestDrift = time.Minute
)

// follow does what the policies of the namespace say by themselves: it plans what was written, looks for drift, and
// applies what may be.
func (d *desk) follow(ctx context.Context, s *scene) error {
	if s.ending || len(s.policies) == 0 {
		return nil
	}
	return errors.Join(d.planWritten(ctx, s), d.lookForDrift(ctx, s), d.applyApproved(ctx, s))
}

// made tells whether a policy made the plan for that.
func made(p *v1alpha1.Plan, by *policy, why string) bool {
	return p.Labels[policyLabel] == by.label() && p.Labels[whyLabel] == why
}

// label is the name of a policy as a label can have it.
func (p *policy) label() string {
	kind := "namespace."
	if p.cluster {
		kind = "cluster."
	}
	name := kind + p.name
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	return name
}

// busy tells whether a plan by the policy is being made or carried out: until then there is nothing new to plan.
func (s *scene) busy(by *policy) bool {
	for _, p := range s.plans {
		if p.Labels[policyLabel] == by.label() && p.DeletionTimestamp == nil && !finished(p) {
			return true
		}
	}
	return slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return begun(a) })
}

// planWritten has each policy of mode Auto plan once nothing was written for a while.
func (d *desk) planWritten(ctx context.Context, s *scene) error {
	autos := slices.DeleteFunc(slices.Clone(s.policies), func(p *policy) bool { return !p.auto() })
	d.mu.Lock()
	notes := d.notesOf(s.namespace)
	first, last := notes.firstWrite, notes.lastWrite
	if len(autos) == 0 {
		// Nobody asks: when somebody does, all of it counts.
		d.mu.Unlock()
		return nil
	}
	d.mu.Unlock()
	if first.IsZero() {
		if !d.failedBefore(s, autos) {
			return nil
		}
		first, last = s.now.Add(-patience), s.now.Add(-patience)
	}
	if wait := min(settle-s.now.Sub(last), patience-s.now.Sub(first)); wait > 0 {
		d.later(s.namespace, wait)
		return nil
	}
	for _, p := range autos {
		if s.busy(p) {
			d.later(s.namespace, settle)
			return nil
		}
	}
	// What is written from here on is for the next time, even if this plan has it.
	d.mu.Lock()
	notes.firstWrite, notes.lastWrite = time.Time{}, time.Time{}
	d.mu.Unlock()
	for _, p := range autos {
		if err := d.makePlan(ctx, s, p, forWrite, false); err != nil {
			d.mu.Lock()
			notes.firstWrite, notes.lastWrite = first, last
			d.mu.Unlock()
			return err
		}
	}
	return nil
}

// failedBefore tells whether what a policy applied last has failed, and it is time to plan what is left of it.
func (d *desk) failedBefore(s *scene, autos []*policy) bool {
	for _, by := range autos {
		var last *v1alpha1.Apply
		for _, a := range s.applies {
			if a.Labels[policyLabel] == by.label() {
				last = a
			}
		}
		if last == nil || last.Status.Phase != v1alpha1.ApplyFailed || last.Status.CompletionTime == nil {
			continue
		}
		planned := slices.ContainsFunc(s.plans, func(p *v1alpha1.Plan) bool {
			return made(p, by, forWrite) && p.CreationTimestamp.After(last.Status.CompletionTime.Time)
		})
		if planned {
			continue
		}
		if wait := retryFailed - s.now.Sub(last.Status.CompletionTime.Time); wait > 0 {
			d.later(s.namespace, wait)
			continue
		}
		return true
	}
	return false
}

// makePlan makes one for a policy, in the place of those that it made before and nobody wants.
func (d *desk) makePlan(ctx context.Context, s *scene, by *policy, why string, refresh bool) error {
	ttl := int32(autoTTL)
	p := &v1alpha1.Plan{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "auto-" + why + "-", Namespace: s.namespace,
			Labels: map[string]string{policyLabel: by.label(), whyLabel: why},
		},
		Spec: v1alpha1.PlanSpec{Mode: v1alpha1.PlanNormal, Selector: by.spec.Selector, Refresh: refresh, TTLSecondsAfterFinished: &ttl},
	}
	if why == forDrift {
		// It is the memory of when providers were last asked, and what they found is to be looked at.
		ttl = max(ttl, int32(2*by.driftInterval()/time.Second))
	}
	if _, err := d.api.plans.create(ctx, s.namespace, p); err != nil {
		return fmt.Errorf("make a plan for %s: %w", by, err)
	}
	var errs []error
	for _, old := range s.plans {
		superseded := made(old, by, why) && old.Status.Phase != v1alpha1.PlanApplied && finished(old) && old.DeletionTimestamp == nil
		wanted := slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return a.Spec.Plan == old.Name && !ended(a) })
		if superseded && !wanted {
			if err := d.api.plans.delete(ctx, old.Namespace, old.Name, old.UID, ""); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (p *policy) driftInterval() time.Duration {
	if p.spec.DriftInterval == nil || p.spec.DriftInterval.Duration <= 0 {
		return 0
	}
	return max(p.spec.DriftInterval.Duration, shortestDrift)
}

// lookForDrift has providers asked, as often as policies say, what became of resources.
func (d *desk) lookForDrift(ctx context.Context, s *scene) error {
	var errs []error
	for _, p := range s.policies {
		every := p.driftInterval()
		if every == 0 || p.broken != nil {
			continue
		}
		last := p.created
		for _, one := range s.plans {
			if made(one, p, forDrift) && one.CreationTimestamp.After(last) {
				last = one.CreationTimestamp.Time
			}
		}
		d.mu.Lock()
		if at := d.notesOf(s.namespace).drift[p.label()]; at.After(last) {
			last = at
		}
		d.mu.Unlock()
		if wait := every - s.now.Sub(last); wait > 0 {
			d.later(s.namespace, wait)
			continue
		}
		if s.busy(p) {
			d.later(s.namespace, settle)
			continue
		}
		// The cache may not have the plan when this namespace is looked at next.
		d.mu.Lock()
		n := d.notesOf(s.namespace)
		if n.drift == nil {
			n.drift = map[string]time.Time{}
		}
		n.drift[p.label()] = s.now
		d.mu.Unlock()
		if err := d.makePlan(ctx, s, p, forDrift, true); err != nil {
			errs = append(errs, err)
			continue
		}
		d.later(s.namespace, every)
	}
	return errors.Join(errs...)
}

// applyApproved applies plans of Auto policies that are approved, where everything in them is under such a
// policy. Which plan it is was the policy's choice, so persons decide about all others.
func (d *desk) applyApproved(ctx context.Context, s *scene) error {
	var errs []error
	for _, p := range s.plans {
		by := slices.IndexFunc(s.policies, func(one *policy) bool {
			return one.auto() && (made(p, one, forWrite) || made(p, one, forDrift))
		})
		if by < 0 || p.Status.Phase != v1alpha1.PlanPlanned || p.DeletionTimestamp != nil || p.Spec.Rollback != "" || nothingToDo(p) || !still(p) {
			continue
		}
		if slices.ContainsFunc(s.applies, func(a *v1alpha1.Apply) bool { return a.Spec.Plan == p.Name }) {
			continue
		}
		policies, err := d.concerned(ctx, s, p, false)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if v := judge(ctx, p, s.approvals, policies, s.now); !v.approved || !v.auto {
			continue
		}
		// Of the plan's own name: it cannot be made twice.
		_, err = d.api.applies.create(ctx, s.namespace, &v1alpha1.Apply{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: s.namespace, Labels: map[string]string{policyLabel: p.Labels[policyLabel]}},
			Spec:       v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest, Parallelism: defaultParallelism},
		})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("apply plan %s for %s: %w", p.Name, s.policies[by], err))
		}
	}
	return errors.Join(errs...)
}

// still tells whether a plan is what it was, as far as its status says: what has moved is planned again.
func still(p *v1alpha1.Plan) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1alpha1.PlanCurrent && c.Status == metav1.ConditionFalse {
			return false
		}
	}
	return true
}
