package terminal

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Carrying is how a plan is carried out.
type Carrying struct {
	// AutoApprove approves without a question.
	AutoApprove bool
	Parallelism int32
	// Detached does not wait until it is done.
	Detached bool
	// Format is of what is shown of the apply in the end: "" for people, else json, yaml or name.
	Format string
}

// ErrIncomplete is of an apply that did not do everything. What it did stays done.
var ErrIncomplete = errors.New("not everything was done")

// ApplyPlan carries out a plan that is there already.
func (s *Session) ApplyPlan(ctx context.Context, name string, how Carrying) error {
	p, err := s.planned(ctx, name)
	if err != nil {
		return err
	}
	if !ToDo(p) {
		s.tell("Plan %s has nothing to do.", name)
		return nil
	}
	approved, err := s.approved(ctx, p)
	switch {
	case err != nil:
		return err
	case !approved && !how.AutoApprove:
		return fmt.Errorf("plan %s is not approved: `%s` shows it, `%s` approves it", name, s.command("show "+name), s.command("approve "+name))
	case !approved:
		if err := s.approve(ctx, p, ""); err != nil {
			return err
		}
	}
	return s.carry(ctx, p, how)
}

// PlanAndApply plans, shows, asks, approves, and carries out.
func (s *Session) PlanAndApply(ctx context.Context, r *Request, how Carrying) error {
	made, err := s.MakePlan(ctx, r)
	if err != nil {
		return err
	}
	p, err := s.FollowPlan(ctx, made.Name)
	if err != nil {
		return err
	}
	shown := *s
	if how.Format != "" {
		shown.Out, shown.Color = s.Err, false // Out is for the result alone
	}
	if err := shown.ShowPlan(ctx, p, Filter{}, ""); err != nil {
		return err
	}
	if !ToDo(p) {
		return incomplete(p)
	}
	if err := s.agreed(ctx, p, how); err != nil {
		return err
	}
	if p, err = s.judged(ctx, p); err != nil {
		return err
	}
	approved, err := s.approved(ctx, p)
	if err != nil {
		return err
	}
	if !approved {
		if err := s.approve(ctx, p, ""); err != nil {
			return fmt.Errorf("%w\nThe plan stays: once it is approved, `%s` carries it out", err, s.command("apply "+p.Name))
		}
	}
	if err := s.carry(ctx, p, how); err != nil {
		return err
	}
	return incomplete(p)
}

// incomplete is of a plan that leaves something out.
func incomplete(p *v1alpha1.Plan) error {
	if len(p.Status.Problems) == 0 {
		return nil
	}
	words := fmt.Sprintf("%d problems kept resources", len(p.Status.Problems))
	if len(p.Status.Problems) == 1 {
		words = "a problem kept resources"
	}
	return fmt.Errorf("%s from being planned: put right what is said above, and plan again", words)
}

// agreed asks whether to go on.
func (s *Session) agreed(ctx context.Context, p *v1alpha1.Plan, how Carrying) error {
	stays := fmt.Sprintf("the plan stays: `%s` and `%s` carry it out", s.command("approve "+p.Name), s.command("apply "+p.Name))
	if how.AutoApprove {
		if len(p.Status.Problems) > 0 {
			return fmt.Errorf("not applied, because not everything could be planned and nobody looks at what is left out: put right what is said above; or, for the rest alone, %s", stays)
		}
		return nil
	}
	question := "\nDo these actions? Only \"yes\" does: "
	if p.Spec.Mode == v1alpha1.PlanDestroy {
		question = "\nDestroy all of these? There is no way back. Only \"yes\" does: "
	}
	answer, err := s.ask(ctx, question)
	switch {
	case errors.Is(err, errUnattended):
		return fmt.Errorf("not applied: %w: say --auto-approve; or %s", err, stays)
	case err != nil:
		return fmt.Errorf("not applied: %w; %s", err, stays)
	case answer != "yes":
		return fmt.Errorf("not applied, as you said; %s", stays)
	}
	return nil
}

// carry makes an apply and follows it.
func (s *Session) carry(ctx context.Context, p *v1alpha1.Plan, how Carrying) error {
	a, err := create[v1alpha1.Apply](ctx, s, anApply(), "apply-",
		&v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest, Parallelism: how.Parallelism})
	if err != nil {
		return s.explained(ctx, "apply plan "+p.Name, anApply(), "", err)
	}
	s.tell("%s made", anApply().id(a.Name))
	if how.Detached {
		if how.Format != "" {
			return s.ShowApply(a, how.Format)
		}
		s.tell("`%s` says how far it is.", s.command("show "+a.Name))
		return nil
	}
	return s.Finish(ctx, a.Name, how.Format)
}

// Finish follows an apply to its end, and says what came of it. The error is ErrIncomplete if not
// everything was done.
func (s *Session) Finish(ctx context.Context, name, format string) error {
	a, err := s.FollowApply(ctx, name)
	if err != nil {
		return err
	}
	if format != "" {
		if err := s.ShowApply(a, format); err != nil {
			return err
		}
	} else {
		s.problems("Warnings", a.Status.Warnings)
		s.problems("Not done", a.Status.Problems)
		s.printf("\n%s\n", outcome(a))
	}
	return s.ended(a)
}

// ended is what is to be said of an apply that did not do everything.
func (s *Session) ended(a *v1alpha1.Apply) error {
	st := a.Status
	if st.Phase == v1alpha1.ApplySucceeded {
		return nil
	}
	text := ""
	for _, part := range []struct {
		count int64
		words string
	}{{st.Failed, "failed"}, {st.Refused, "refused, as they had moved since the plan"}, {st.Blocked, "not begun, as they need those"}} {
		if part.count > 0 {
			text += fmt.Sprintf(", %d %s", part.count, part.words)
		}
	}
	if st.Phase == v1alpha1.ApplyCanceled {
		return fmt.Errorf("%w: apply %s was cancelled after %d of %d%s: `%s` does the rest", ErrIncomplete, a.Name, st.Progress.Done, st.Progress.Total, text, s.command("apply"))
	}
	if text == "" {
		text = ", " + complete(a)
	}
	return fmt.Errorf("%w%s: what is done stays done: put right what is said above, and `%s` does the rest", ErrIncomplete, text, s.command("apply"))
}
