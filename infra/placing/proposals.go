package placing

import (
	"context"
	"slices"

	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
)

// Proposals are the scheduler's proposals for one namespace. They are listed when they are first needed, and
// then stay the same.
type Proposals struct {
	workloads *Workloads
	namespace string
	bindings  []*binding
	listed    bool
}

// Proposals returns the proposals for a namespace.
func (w *Workloads) Proposals(namespace string) *Proposals {
	return &Proposals{workloads: w, namespace: namespace}
}

func (p *Proposals) list(ctx context.Context) ([]*binding, error) {
	if p.listed {
		return p.bindings, nil
	}
	all, err := p.workloads.bindings(ctx, p.namespace)
	if err != nil {
		return nil, err
	}
	p.bindings, p.listed = all, true
	return all, nil
}

// IsStale reports whether the scheduler's proposal differs from the change of a workload.
func (p *Proposals) IsStale(ctx context.Context, c *change.Change) (bool, error) {
	all, err := p.list(ctx)
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(all, func(b *binding) bool {
		return b.address() == c.Address && b.awaitsApproval() && slices.Equal(b.preconditions(), c.Preconditions)
	}), nil
}

// Policies returns those of the ranked policies that apply to workloads of a plan. The labels of a deleted
// workload are unknown: all manual policies apply to it.
func (p *Proposals) Policies(ctx context.Context, ranked []*approval.Policy, workloads []change.Address) ([]*approval.Policy, error) {
	if len(workloads) == 0 {
		return nil, nil
	}
	if only, is := approval.Single(ranked); is {
		return []*approval.Policy{only}, nil
	}
	all, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []*approval.Policy
	add := func(policies ...*approval.Policy) {
		for _, policy := range policies {
			if !slices.Contains(out, policy) {
				out = append(out, policy)
			}
		}
	}
	for _, address := range workloads {
		at := slices.IndexFunc(all, func(b *binding) bool { return b.address() == address })
		if at >= 0 {
			if err := p.workloads.loadObject(ctx, all[at]); err != nil {
				return nil, err
			}
		}
		if at >= 0 && all[at].object != nil {
			add(approval.EffectiveOnAll(ranked, all[at].labelSets(), "")...)
			continue
		}
		for _, policy := range ranked {
			if !policy.Auto() {
				add(policy)
			}
		}
	}
	return out, nil
}
