package plancontroller

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// planPolicies finds the policies that apply to plans.
type planPolicies struct {
	*session
	chosen perPlan[chosenPolicies]
}

// chosenPolicies are the policies that applied to a plan when it was last read.
type chosenPolicies struct {
	policies   []*approval.Policy
	at         time.Time
	candidates []*approval.Policy // the policies that were chosen from; an edited policy is a new pointer
}

// of returns the policies that apply to anything in a plan. It includes nil if none applies to some
// of it. fresh bypasses the result of a recent call.
func (f *planPolicies) of(ctx context.Context, s *snapshot, p *v1alpha1.Plan, fresh bool) ([]*approval.Policy, error) {
	if only, is := approval.Single(s.policies); is && (!includesWorkloads(p, s) || p.Status.Summary.Place+p.Status.Summary.Delete == 0) {
		return []*approval.Policy{only}, nil
	}
	holding := slices.Concat(s.policies, s.workloads)
	last := f.chosen.of(p)
	if !fresh && slices.Equal(last.candidates, holding) && s.now.Sub(last.at) < checkInterval {
		return last.policies, nil
	}
	var out []*approval.Policy
	var workloads []change.Address
	err := effectiveChanges(ctx, f.dynamic, p, func(c *change.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			workloads = append(workloads, c.Address)
			return true
		}
		set, provider := f.subject(refOf(p.Namespace, c.Address))
		if one := approval.Effective(s.policies, set, provider); !slices.Contains(out, one) {
			out = append(out, one)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	ofWorkloads, err := s.proposals.Policies(ctx, s.workloads, workloads)
	if err != nil {
		return nil, err
	}
	for _, one := range ofWorkloads {
		if !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	*last = chosenPolicies{policies: out, at: s.now, candidates: holding}
	return out, nil
}

// subject returns the labels and the Provider by which policies select a change.
func (f *planPolicies) subject(ref expr.Ref) (labels.Set, string) {
	if o := f.inventory.Object(ref); o != nil {
		return o.Labels, strings.TrimSuffix(o.Group, "."+v1alpha1.ProvidersDomain)
	}
	if state := f.inventory.State(ref); state != nil {
		return nil, state.Spec.Provider
	}
	return nil, ""
}
