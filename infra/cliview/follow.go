package cliview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// firstPoll is the interval before the second poll.
const firstPoll = 50 * time.Millisecond

// follow polls an object until look returns true, and waits while servers are unavailable.
func follow[T any](ctx context.Context, s *Session, m *meter, n objectKind, name string, look func(*T) bool) error {
	wait, silent := min(firstPoll, s.PollInterval), false
	for {
		is, err := get[T](ctx, s, n, name)
		switch {
		case err == nil:
			if silent {
				m.say("Connection to Atoll restored.")
				silent = false
			}
			if look(is) {
				return nil
			}
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%s %s was deleted meanwhile", n.one, name)
		case !transient(err):
			return s.explain(ctx, "read "+n.one+" "+name, n, name, err)
		case !silent:
			m.say("Atoll is not responding (%v); retrying.", err)
			silent = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Clock.After(wait):
			wait = min(wait*3/2, s.PollInterval)
		}
	}
}

// FollowPlan waits until a plan is computed or has failed.
func (s *Session) FollowPlan(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	m := s.meter()
	defer m.end()
	var last *v1alpha1.Plan
	err := follow(ctx, s, m, planKind(), name, func(p *v1alpha1.Plan) bool {
		last = p
		if planEnded(p.Status.Phase) {
			return true
		}
		what := "Planning"
		if p.Status.Phase != v1alpha1.PlanPlanning {
			what = "Waiting to be planned"
			if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanComplete); c != nil && c.Message != "" {
				what += ": " + c.Message
			}
			if m.took() > hintAfter {
				what += fmt.Sprintf(" (for %s; is a leader running? check `kubectl get leases -n kube-system atoll-infra`)", m.took().Round(time.Second))
			}
		}
		m.show(what, p.Status.Progress)
		return false
	})
	switch {
	case err != nil && ctx.Err() != nil:
		m.end()
		return nil, fmt.Errorf("plan %s is not ready: %w; planning continues: to show it, run `%s`", name, interrupted(ctx), s.command("show "+name))
	case err != nil:
		return nil, err
	}
	return last, nil
}

// hintAfter is the time after which a hint about the cause is shown.
const hintAfter = 20 * time.Second

func planEnded(phase v1alpha1.PlanPhase) bool {
	return phase == v1alpha1.PlanPlanned || phase == v1alpha1.PlanApplied || phase == v1alpha1.PlanFailed
}

func applyEnded(phase v1alpha1.ApplyPhase) bool {
	return phase == v1alpha1.ApplySucceeded || phase == v1alpha1.ApplyFailed || phase == v1alpha1.ApplyCanceled
}

// interrupted returns a message for the end of ctx.
func interrupted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return errors.New("--timeout exceeded")
	}
	return errors.New("interrupted")
}

// FollowApply waits until an apply has ended. When ctx ends, it cancels the apply and keeps waiting for
// running changes. Errors concern the polling, not the apply.
func (s *Session) FollowApply(ctx context.Context, name string) (*v1alpha1.Apply, error) {
	m := s.meter()
	defer m.end()
	var last *v1alpha1.Apply
	why := ""
	look := func(a *v1alpha1.Apply) bool {
		last = a
		if applyEnded(a.Status.Phase) {
			return true
		}
		if text := s.waiting(a); text != why {
			if why = text; why != "" {
				m.say("Waiting: %s", why)
			}
		}
		m.show(applyText(a), a.Status.Progress)
		return false
	}
	err := follow(ctx, s, m, applyKind(), name, look)
	if err == nil || ctx.Err() == nil {
		return last, err
	}
	// The first interruption cancels the apply, the second ends this program.
	lasting := context.WithoutCancel(ctx)
	m.say("\nInterrupted: running changes finish, and no others start. Interrupt again to exit; the apply ends in the background.")
	if err := s.cancel(lasting, name); err != nil {
		return nil, err
	}
	err = follow(lasting, s, m, applyKind(), name, look)
	return last, err
}

func applyText(a *v1alpha1.Apply) string {
	text := "Applying"
	switch {
	case a.Status.Phase == v1alpha1.ApplyCanceling || a.Spec.Cancel:
		text = "Cancelling"
	case a.Status.Phase != v1alpha1.ApplyRunning:
		text = "Waiting"
	}
	if bad := a.Status.Failed + a.Status.Refused; bad > 0 {
		text += fmt.Sprintf(" (%d failed)", bad)
	}
	return text
}

// waiting returns the reason why an apply is pending, if it is.
func (s *Session) waiting(a *v1alpha1.Apply) string {
	c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ApplyComplete)
	if c == nil || c.Status == metav1.ConditionTrue || a.Status.Phase != v1alpha1.ApplyPending && a.Status.Phase != "" {
		return ""
	}
	text := c.Message
	if text == "" {
		text = c.Reason
	}
	if c.Reason == v1alpha1.ReasonNotApproved {
		text += fmt.Sprintf(" (`%s`)", s.command("approve "+a.Spec.Plan))
	}
	return text
}
