package terminal

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// Consent is how somebody approves.
type Consent struct {
	// Digest, if it is given, is the one that was looked at: nothing else is approved.
	Digest string
	Reason string
	// Yes approves without a question.
	Yes bool
}

// Approve approves a plan, as it is.
func (s *Session) Approve(ctx context.Context, name string, how Consent) error {
	p, err := s.planned(ctx, name)
	if err != nil {
		return err
	}
	if how.Digest != "" && how.Digest != p.Status.Digest {
		return fmt.Errorf("the digest of plan %s is %s, and not %s: look at it again with `%s`", name, p.Status.Digest, how.Digest, s.command("show "+name))
	}
	if !ToDo(p) {
		return fmt.Errorf("plan %s has nothing to approve: it changes nothing", name)
	}
	if how.Digest == "" && !how.Yes {
		if err := s.consent(ctx, p); err != nil {
			return err
		}
	}
	return s.approve(ctx, p, how.Reason)
}

// planned reads a plan of which something is to be done.
func (s *Session) planned(ctx context.Context, name string) (*v1alpha1.Plan, error) {
	p, err := get[v1alpha1.Plan](ctx, s, aPlan(), name)
	if err != nil {
		return nil, s.explained(ctx, "read plan "+name, aPlan(), name, err)
	}
	switch {
	case p.Status.Phase == v1alpha1.PlanFailed:
		return nil, failedPlan(p)
	case p.Status.Phase == v1alpha1.PlanApplied:
		return nil, fmt.Errorf("plan %s was applied already: plan again, with `%s`", name, s.command("plan"))
	case !planEnded(p.Status.Phase):
		return nil, fmt.Errorf("plan %s is not ready: `%s` says how far it is", name, s.command("show "+name))
	case len(p.Spec.Objects) > 0:
		return nil, fmt.Errorf("plan %s is of files, and says what would be if they were applied: `kubectl apply` them, and plan again without -f", name)
	}
	return p, nil
}

// destructive is how many of the worst are shown before somebody approves.
const destructive = 10

// consent shows what it is about, and asks.
func (s *Session) consent(ctx context.Context, p *v1alpha1.Plan) error {
	c := counts(p)
	summary := c.Summary()
	if p.Spec.Mode == v1alpha1.PlanRefreshOnly {
		summary = fmt.Sprintf("%d changes from outside would be taken in.", p.Status.Summary.Drift)
	}
	s.tell("%s\n%s of plan %s (all of it: `%s`)", summary, p.Status.Digest, p.Name, s.command("show "+p.Name))
	if c.Delete+c.Replace > 0 {
		left := destructive
		stop := errors.New("enough")
		err := s.changes(ctx, p.Name, Filter{Actions: []string{string(plan.Delete), string(plan.Replace)}}, func(c *plan.Change) error {
			if left--; left < 0 {
				return stop
			}
			address := c.Address
			if address.Namespace == s.Namespace {
				address.Namespace = ""
			}
			s.tell("  %s %s", c.Action, printable(address.String()))
			return nil
		})
		if errors.Is(err, stop) {
			s.tell("  and %d more", c.Delete+c.Replace-destructive)
		} else if err != nil {
			return err
		}
	}
	answer, err := s.ask(ctx, "Approve? Only \"yes\" does: ")
	switch {
	case errors.Is(err, errUnattended):
		return fmt.Errorf("approve plan %s: %w: say --yes, or --digest with the digest that you looked at", p.Name, err)
	case err != nil:
		return fmt.Errorf("approve plan %s: %w", p.Name, err)
	case answer != "yes":
		return fmt.Errorf("plan %s is not approved, as you said", p.Name)
	}
	return nil
}

func (s *Session) approve(ctx context.Context, p *v1alpha1.Plan, reason string) error {
	doing := "approve plan " + p.Name
	made, err := create[v1alpha1.Approval](ctx, s, anApproval(), p.Name+"-", &v1alpha1.ApprovalSpec{Plan: p.Name, Digest: p.Status.Digest, Reason: reason})
	if err != nil {
		return s.explained(ctx, doing, anApproval(), "", err)
	}
	s.tell("%s made, of %s", anApproval().id(made.Name), p.Status.Digest)
	// Who it was the server knows, and says now. That it cannot be looked up is no mistake.
	all, err := list[v1alpha1.Approval](ctx, s, anApproval())
	if err != nil || made.Spec.Approver == nil {
		return nil
	}
	for _, a := range all {
		if a.Name != made.Name && a.Spec.Plan == p.Name && a.Spec.Digest == p.Status.Digest && a.Spec.Approver != nil && a.Spec.Approver.Username == made.Spec.Approver.Username {
			s.tell("You had approved of it before (%s): a person counts once.", anApproval().id(a.Name))
			break
		}
	}
	return nil
}

// approved tells whether somebody approved of a plan, or nobody has to. Whether that is enough is for
// the server to say: an apply waits for what is missing.
func (s *Session) approved(ctx context.Context, p *v1alpha1.Plan) (bool, error) {
	if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.PlanApproved) {
		return true, nil
	}
	all, err := list[v1alpha1.Approval](ctx, s, anApproval())
	if err != nil {
		return false, s.explained(ctx, "look for approvals of plan "+p.Name, anApproval(), "", err)
	}
	for _, a := range all {
		if a.Spec.Plan == p.Name && a.Spec.Digest == p.Status.Digest {
			return true, nil
		}
	}
	return false, nil
}

// judged gives a plan as it is once the server has said whether a policy approves it by itself: then nobody has
// to, and who may not is not asked to. The server says so right after it has planned.
func (s *Session) judged(ctx context.Context, p *v1alpha1.Plan) (*v1alpha1.Plan, error) {
	wait := min(soon, s.Every)
	for range 8 { // some five seconds
		if meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlanApproved) != nil {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("approve plan %s: %w", p.Name, interrupted(ctx))
		case <-s.Clock.After(wait):
			wait = min(wait*2, s.Every)
		}
		is, err := get[v1alpha1.Plan](ctx, s, aPlan(), p.Name)
		switch {
		case err == nil:
			p = is
		case !transient(err):
			return nil, s.explained(ctx, "read plan "+p.Name, aPlan(), p.Name, err)
		}
	}
	return p, nil
}
