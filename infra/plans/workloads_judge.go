package plans

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/infra/plan"
)

// lookAtWorkloads is how often a plan that is of workloads is compared with what is proposed for them.
const lookAtWorkloads = 10 * time.Second

// bindings of the namespace that is looked at, read once.
func (d *desk) bindings(ctx context.Context, s *scene) ([]*bound, error) {
	if s.looked || d.placements == nil {
		return s.bound, nil
	}
	all, err := d.placements.bindings(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	s.bound, s.looked = all, true
	return all, nil
}

// movedWorkload tells whether something else is proposed than what a change is of.
func (d *desk) movedWorkload(ctx context.Context, s *scene, c *plan.Change) (bool, error) {
	all, err := d.bindings(ctx, s)
	return err == nil && !proposed(all, c), err
}

// concernedOfWorkloads adds the policies that workloads in a plan are under. Of one that is gone nobody knows the labels:
// it is under all that want plans.
func (d *desk) concernedOfWorkloads(ctx context.Context, s *scene, waiting []plan.Address, out []*policy) ([]*policy, error) {
	if len(waiting) == 0 {
		return out, nil
	}
	add := func(p *policy) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if only, is := uniform(s.workloads); is {
		add(only)
		return out, nil
	}
	all, err := d.bindings(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, address := range waiting {
		at := slices.IndexFunc(all, func(b *bound) bool { return b.address() == address })
		if at >= 0 {
			if err := d.placements.withObject(ctx, all[at]); err != nil {
				return nil, err
			}
		}
		if at >= 0 && all[at].object != nil {
			add(governing(s.workloads, labelsOf(all[at].object), ""))
			continue
		}
		for _, p := range s.workloads {
			if !p.auto() {
				add(p)
			}
		}
	}
	return out, nil
}
