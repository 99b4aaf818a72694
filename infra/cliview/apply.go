package cliview

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// ApplyOptions configure an apply.
type ApplyOptions struct {
	// AutoApprove approves without a prompt.
	AutoApprove bool
	Parallelism int32
	// Detached does not wait for the end.
	Detached bool
	// Format of the final output: "" for text, json, yaml or name.
	Format string
}

// ErrIncomplete is returned for an apply that did not carry out all changes. Completed changes remain.
var ErrIncomplete = errors.New("apply incomplete")

// ApplyPlan applies an existing plan.
func (s *Session) ApplyPlan(ctx context.Context, name string, opts ApplyOptions) error {
	p, err := s.applicablePlan(ctx, name)
	if err != nil {
		return err
	}
	if !hasEffect(p) {
		s.infof("Plan %s has no changes.", name)
		return nil
	}
	approved, err := s.approved(ctx, p)
	switch {
	case err != nil:
		return err
	case !approved && !opts.AutoApprove:
		return fmt.Errorf("plan %s is not approved: review it with `%s`, then approve it with `%s`", name, s.command("show "+name), s.command("approve "+name))
	case !approved:
		if err := s.approve(ctx, p, ""); err != nil {
			return err
		}
	}
	return s.apply(ctx, p, opts)
}

// PlanAndApply creates a plan, shows it, prompts, approves and applies.
func (s *Session) PlanAndApply(ctx context.Context, r *Request, opts ApplyOptions) error {
	made, err := s.CreatePlan(ctx, r)
	if err != nil {
		return err
	}
	p, err := s.FollowPlan(ctx, made.Name)
	if err != nil {
		return err
	}
	shown := *s
	if opts.Format != "" {
		shown.Out, shown.Color = s.Err, false // Out is only for the result
	}
	if err := shown.ShowPlan(ctx, p, Filter{}, ""); err != nil {
		return err
	}
	if !HasChanges(p) && (!hasEffect(p) || len(p.Status.Problems) > 0) {
		return incomplete(p)
	}
	if HasChanges(p) {
		if err := s.confirmApply(ctx, p, opts); err != nil {
			return err
		}
	}
	approved, err := s.approved(ctx, p)
	if err != nil {
		return err
	}
	if !approved {
		if err := s.approve(ctx, p, ""); err != nil {
			return fmt.Errorf("%w\nThe plan is kept: once it is approved, apply it with `%s`", err, s.command("apply "+p.Name))
		}
	}
	if err := s.apply(ctx, p, opts); err != nil {
		return err
	}
	return incomplete(p)
}

// incomplete returns an error if some resources could not be planned.
func incomplete(p *v1alpha1.Plan) error {
	if len(p.Status.Problems) == 0 {
		return nil
	}
	words := fmt.Sprintf("%d problems prevented resources", len(p.Status.Problems))
	if len(p.Status.Problems) == 1 {
		words = "a problem prevented resources"
	}
	return fmt.Errorf("%s from being planned: fix the errors above and plan again", words)
}

// confirmApply prompts before an apply.
func (s *Session) confirmApply(ctx context.Context, p *v1alpha1.Plan, opts ApplyOptions) error {
	stays := fmt.Sprintf("the plan is kept: to apply it, run `%s` and `%s`", s.command("approve "+p.Name), s.command("apply "+p.Name))
	if opts.AutoApprove {
		if len(p.Status.Problems) > 0 {
			return fmt.Errorf("not applied: --auto-approve does not apply a plan that leaves out resources: fix the errors above; or, to apply only the rest, %s", stays)
		}
		return nil
	}
	question := "\nDo you want to perform these actions? Only \"yes\" will be accepted: "
	if p.Spec.Mode == v1alpha1.PlanDestroy {
		question = "\nDo you really want to destroy all of these resources? There is no undo. Only \"yes\" will be accepted: "
	}
	answer, err := s.prompt(ctx, question)
	switch {
	case errors.Is(err, errNotInteractive):
		return fmt.Errorf("not applied: %w: use --auto-approve; or %s", err, stays)
	case err != nil:
		return fmt.Errorf("not applied: %w; %s", err, stays)
	case answer != "yes":
		return fmt.Errorf("apply cancelled; %s", stays)
	}
	return nil
}

// apply creates an Apply and follows it.
func (s *Session) apply(ctx context.Context, p *v1alpha1.Plan, opts ApplyOptions) error {
	a, err := create[v1alpha1.Apply](ctx, s, applyKind(), "apply-",
		&v1alpha1.ApplySpec{Plan: p.Name, Digest: p.Status.Digest, Parallelism: opts.Parallelism})
	if err != nil {
		return s.explain(ctx, "apply plan "+p.Name, applyKind(), "", err)
	}
	s.infof("%s created", applyKind().id(a.Name))
	if opts.Detached {
		if opts.Format != "" {
			return s.ShowApply(a, opts.Format)
		}
		s.infof("To see its progress, run `%s`.", s.command("show "+a.Name))
		return nil
	}
	return s.WaitApply(ctx, a.Name, opts.Format)
}

// WaitApply follows an apply to its end and prints the result. The error is ErrIncomplete if some changes
// were not carried out.
func (s *Session) WaitApply(ctx context.Context, name, format string) error {
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
		s.problems("Not applied", a.Status.Problems)
		s.printf("\n%s\n", outcome(a))
	}
	return s.ended(a)
}

// ended returns an error for an apply that did not carry out all changes.
func (s *Session) ended(a *v1alpha1.Apply) error {
	st := a.Status
	if st.Phase == v1alpha1.ApplySucceeded {
		return nil
	}
	text := ""
	for _, part := range []struct {
		count int64
		words string
	}{{st.Failed, "failed"}, {st.Refused, "rejected as stale"}, {st.Blocked, "blocked by those"}} {
		if part.count > 0 {
			text += fmt.Sprintf(", %d %s", part.count, part.words)
		}
	}
	if st.Phase == v1alpha1.ApplyCanceled {
		return fmt.Errorf("%w: apply %s was cancelled after %d of %d changes%s: to apply the rest, run `%s`", ErrIncomplete, a.Name, st.Progress.Done, st.Progress.Total, text, s.command("apply"))
	}
	if text == "" {
		text = ", " + completeMessage(a)
	}
	return fmt.Errorf("%w%s: completed changes remain; fix the errors above, then run `%s` for the rest", ErrIncomplete, text, s.command("apply"))
}
