package terminal

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

// soon is how long it is until something is looked at for the second time.
const soon = 50 * time.Millisecond

// follow looks at an object until look says that it has seen enough. Servers may go and come meanwhile.
func follow[T any](ctx context.Context, s *Session, m *meter, n noun, name string, look func(*T) bool) error {
	wait, silent := min(soon, s.Every), false
	for {
		is, err := get[T](ctx, s, n, name)
		switch {
		case err == nil:
			if silent {
				m.say("Atoll answers again.")
				silent = false
			}
			if look(is) {
				return nil
			}
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%s %s has been deleted meanwhile", n.one, name)
		case !transient(err):
			return s.explained(ctx, "look at "+n.one+" "+name, n, name, err)
		case !silent:
			m.say("Atoll does not answer (%v); it is asked again and again.", err)
			silent = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Clock.After(wait):
			wait = min(wait*3/2, s.Every)
		}
	}
}

// FollowPlan waits until a plan is made, or failed.
func (s *Session) FollowPlan(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	m := s.meter()
	defer m.end()
	var last *v1alpha1.Plan
	err := follow(ctx, s, m, aPlan(), name, func(p *v1alpha1.Plan) bool {
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
			if m.took() > patience {
				what += fmt.Sprintf(" (for %s; is a server running that plans? see `kubectl get leases -n kube-system atoll-infra`)", m.took().Round(time.Second))
			}
		}
		m.show(what, p.Status.Progress)
		return false
	})
	switch {
	case err != nil && ctx.Err() != nil:
		m.end()
		return nil, fmt.Errorf("plan %s is not ready: %w; it goes on without you: `%s` shows it", name, interrupted(ctx), s.command("show "+name))
	case err != nil:
		return nil, err
	}
	return last, nil
}

// patience is after how long it is said what may be missing.
const patience = 20 * time.Second

func planEnded(phase v1alpha1.PlanPhase) bool {
	return phase == v1alpha1.PlanPlanned || phase == v1alpha1.PlanApplied || phase == v1alpha1.PlanFailed
}

func applyEnded(phase v1alpha1.ApplyPhase) bool {
	return phase == v1alpha1.ApplySucceeded || phase == v1alpha1.ApplyFailed || phase == v1alpha1.ApplyCanceled
}

// interrupted says why ctx ended in words for people.
func interrupted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return errors.New("the time given with --timeout is over")
	}
	return errors.New("interrupted")
}

// FollowApply waits until an apply has ended. The end of ctx cancels the apply, and waits on: what
// runs comes to its end. Its errors are of the following, and not of the apply.
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
	err := follow(ctx, s, m, anApply(), name, look)
	if err == nil || ctx.Err() == nil {
		return last, err
	}
	// The first interruption is a wish to end it, the second ends this program.
	lasting := context.WithoutCancel(ctx)
	m.say("\nInterrupted: what runs comes to its end, and nothing else begins. Interrupt once more to leave; it ends without you.")
	if err := s.cancel(lasting, name); err != nil {
		return nil, err
	}
	err = follow(lasting, s, m, anApply(), name, look)
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
		text += fmt.Sprintf(" (%d not done)", bad)
	}
	return text
}

// waiting says what an apply waits for, if it waits for something.
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
