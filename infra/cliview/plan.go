package cliview

import (
	"context"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// PlanOptions configure the output of a plan.
type PlanOptions struct {
	// Detached does not wait for the plan.
	Detached bool
	Format   string
}

// Plan creates a plan and shows it. It reports whether there are changes. The error also covers resources
// that could not be planned.
func (s *Session) Plan(ctx context.Context, r *Request, opts PlanOptions) (bool, error) {
	p, err := s.createPlan(ctx, r, opts)
	if err != nil || opts.Detached {
		return false, err
	}
	if err := s.ShowPlan(ctx, p, Filter{}, opts.Format); err != nil {
		return false, err
	}
	if opts.Format == "" {
		s.printNextSteps(p)
	}
	return HasChanges(p), incomplete(p)
}

// createPlan creates a plan and waits for it.
func (s *Session) createPlan(ctx context.Context, r *Request, opts PlanOptions) (*v1alpha1.Plan, error) {
	p, err := s.CreatePlan(ctx, r)
	if err != nil {
		return nil, err
	}
	if !opts.Detached {
		return s.FollowPlan(ctx, p.Name)
	}
	if opts.Format != "" && opts.Format != "wide" {
		return p, s.ShowPlan(ctx, p, Filter{}, opts.Format)
	}
	s.printf("%s created; to show it when it is ready, run `%s`\n", planKind().id(p.Name), s.command("show "+p.Name))
	return p, nil
}

// printNextSteps suggests the commands that apply a plan.
func (s *Session) printNextSteps(p *v1alpha1.Plan) {
	refresh := p.Spec.Mode == v1alpha1.PlanRefreshOnly
	switch {
	case len(p.Spec.Objects) > 0:
		s.printf("This plan is speculative and cannot be applied: `kubectl apply` the files, then run `%s`.\n", s.command("apply"))
	case hasEffect(p):
		s.printf("To perform exactly these actions, run:\n  %s\n  %s\n", s.command("approve "+p.Name), s.command("apply "+p.Name))
	}
	if !p.Spec.Refresh && !refresh {
		s.printf("The plan uses the stored state. To check resources for changes outside of Atoll, run `%s`.\n", s.command("drift"))
	}
}

// Drift refreshes resources, shows changes made outside of Atoll, and reports whether there are any.
func (s *Session) Drift(ctx context.Context, r *Request, opts PlanOptions) (bool, error) {
	r.Mode = v1alpha1.PlanRefreshOnly
	p, err := s.createPlan(ctx, r, opts)
	if err != nil || opts.Detached {
		return false, err
	}
	filter := Filter{}
	if opts.Format != "" {
		filter.Drift = true
	}
	if err := s.ShowPlan(ctx, p, filter, opts.Format); err != nil {
		return false, err
	}
	drifted := p.Status.Summary.Drift > 0
	if opts.Format == "" && drifted {
		s.printf("To revert these changes to the configuration, run:\n  %s\n", s.command("apply --refresh"))
		s.printf("To accept them into the state, before you change the configuration, run:\n  %s\n  %s\n", s.command("approve "+p.Name), s.command("apply "+p.Name))
	}
	return drifted, incomplete(p)
}
