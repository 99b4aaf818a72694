package terminal

import (
	"context"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// Planning is how a plan is waited for and shown.
type Planning struct {
	// Detached does not wait until it is made.
	Detached bool
	Format   string
}

// Plan has a plan made, and shows it. It tells whether there is something to do; the error is also of what could
// not be planned.
func (s *Session) Plan(ctx context.Context, r *Request, how Planning) (bool, error) {
	p, err := s.make(ctx, r, how)
	if err != nil || how.Detached {
		return false, err
	}
	if err := s.ShowPlan(ctx, p, Filter{}, how.Format); err != nil {
		return false, err
	}
	if how.Format == "" {
		s.next(p)
	}
	return ToDo(p), incomplete(p)
}

// make has a plan made and waits for it.
func (s *Session) make(ctx context.Context, r *Request, how Planning) (*v1alpha1.Plan, error) {
	p, err := s.MakePlan(ctx, r)
	if err != nil {
		return nil, err
	}
	if !how.Detached {
		return s.FollowPlan(ctx, p.Name)
	}
	if how.Format != "" && how.Format != "wide" {
		return p, s.ShowPlan(ctx, p, Filter{}, how.Format)
	}
	s.printf("%s made; `%s` shows it when it is ready\n", aPlan().id(p.Name), s.command("show "+p.Name))
	return p, nil
}

// next says what can be done with a plan that was shown.
func (s *Session) next(p *v1alpha1.Plan) {
	refresh := p.Spec.Mode == v1alpha1.PlanRefreshOnly
	switch {
	case len(p.Spec.Objects) > 0:
		s.printf("It says what would be if the files were applied, and cannot be carried out: `kubectl apply` them, and `%s`.\n", s.command("apply"))
	case ToDo(p):
		s.printf("To have exactly this done:\n  %s\n  %s\n", s.command("approve "+p.Name), s.command("apply "+p.Name))
	}
	if !p.Spec.Refresh && !refresh {
		s.printf("What Atoll knows was taken for what is there: `%s` looks what became of it.\n", s.command("drift"))
	}
}

// Drift looks what became of resources, shows what was changed outside, and tells whether there is any.
func (s *Session) Drift(ctx context.Context, r *Request, how Planning) (bool, error) {
	r.Mode = v1alpha1.PlanRefreshOnly
	p, err := s.make(ctx, r, how)
	if err != nil || how.Detached {
		return false, err
	}
	filter := Filter{}
	if how.Format != "" {
		filter.Drift = true
	}
	if err := s.ShowPlan(ctx, p, filter, how.Format); err != nil {
		return false, err
	}
	drifted := p.Status.Summary.Drift > 0
	if how.Format == "" && drifted {
		s.printf("To undo it, so that what is there is what is written again:\n  %s\n", s.command("apply --refresh"))
		s.printf("To take it in as it is, for what is written to be changed then:\n  %s\n  %s\n", s.command("approve "+p.Name), s.command("apply "+p.Name))
	}
	return drifted, incomplete(p)
}
