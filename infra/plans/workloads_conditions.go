package plans

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
)

// workloadCheckInterval is how often a plan with workloads is compared with their proposals.
const workloadCheckInterval = 10 * time.Second

// bindings returns the bindings of the snapshot's namespace, listed once.
func (r *reconciler) bindings(ctx context.Context, s *snapshot) ([]*binding, error) {
	if s.listed || r.workloads == nil {
		return s.bindings, nil
	}
	all, err := r.workloads.bindings(ctx, s.namespace)
	if err != nil {
		return nil, err
	}
	s.bindings, s.listed = all, true
	return all, nil
}

// isStaleWorkload reports whether the proposal differs from a change's.
func (r *reconciler) isStaleWorkload(ctx context.Context, s *snapshot, c *change.Change) (bool, error) {
	all, err := r.bindings(ctx, s)
	return err == nil && !isProposed(all, c), err
}

// addWorkloadPolicies adds the policies that apply to workloads in a plan. The labels of a deleted workload
// are unknown: all manual policies apply to it.
func (r *reconciler) addWorkloadPolicies(ctx context.Context, s *snapshot, waiting []change.Address, out []*approval.Policy) ([]*approval.Policy, error) {
	if len(waiting) == 0 {
		return out, nil
	}
	add := func(p *approval.Policy) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if only, is := approval.Single(s.workloads); is {
		add(only)
		return out, nil
	}
	all, err := r.bindings(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, address := range waiting {
		at := slices.IndexFunc(all, func(b *binding) bool { return b.address() == address })
		if at >= 0 {
			if err := r.workloads.loadObject(ctx, all[at]); err != nil {
				return nil, err
			}
		}
		if at >= 0 && all[at].object != nil {
			add(approval.Effective(s.workloads, labelsOf(all[at].object), ""))
			continue
		}
		for _, p := range s.workloads {
			if !p.Auto() {
				add(p)
			}
		}
	}
	return out, nil
}
