package plancontroller

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// planPolicies finds the policies that apply to plans, and the authors whose approvals these may exclude.
type planPolicies struct {
	*session
	chosen perPlan[chosenPolicies]
}

// judged has the policies of a plan and its authors. With the approvals, they decide about it.
type judged struct {
	policies []*approval.Policy
	// authors are empty if no policy excludes them.
	authors approval.Authors
}

// chosenPolicies are the policies that applied to a plan when it was last read.
type chosenPolicies struct {
	judged
	at         time.Time
	candidates []*approval.Policy // the policies that were chosen from; an edited policy is a new pointer
}

// of returns the policies that apply to anything in a plan. They include nil if none applies to some of it.
// fresh bypasses the result of a recent call.
func (f *planPolicies) of(ctx context.Context, s *snapshot, p *v1alpha1.Plan, fresh bool) (judged, error) {
	if only, is := approval.Single(s.policies); is && !only.ExcludesAuthors() && (!includesWorkloads(p, s) || p.Status.Summary.Place+p.Status.Summary.Delete == 0) {
		return judged{policies: []*approval.Policy{only}}, nil
	}
	holding := slices.Concat(s.policies, s.workloads)
	last := f.chosen.of(p)
	if !fresh && slices.Equal(last.candidates, holding) && s.now.Sub(last.at) < checkInterval {
		return last.judged, nil
	}
	var out judged
	add := func(all []*approval.Policy) {
		for _, one := range all {
			if !slices.Contains(out.policies, one) {
				out.policies = append(out.policies, one)
			}
		}
	}
	var workloads []change.Address
	err := effectiveChanges(ctx, f.dynamic, p, func(c *change.Change) bool {
		if _, _, is := c.Address.Workload(); is {
			workloads = append(workloads, c.Address)
			return true
		}
		sets, provider := f.subject(p.Namespace, c)
		add(approval.EffectiveOnAll(s.policies, sets, provider))
		f.addAuthors(&out.authors, p.Namespace, c)
		return true
	})
	if err != nil {
		return judged{}, err
	}
	ofWorkloads, err := s.proposals.Policies(ctx, s.workloads, workloads)
	if err != nil {
		return judged{}, err
	}
	add(ofWorkloads)
	*last = chosenPolicies{judged: out, at: s.now, candidates: holding}
	return out, nil
}

// refs returns the resource of a change, and the one from which its state moves, if it does.
func refs(namespace string, c *change.Change) []expr.Ref {
	out := []expr.Ref{refOf(namespace, c.Address)}
	if c.MovedFrom != nil {
		out = append(out, refOf(namespace, *c.MovedFrom))
	}
	return out
}

// subject returns the labels and the Provider by which policies select a change: the labels of its object, and
// those that it had when it was last applied.
func (f *planPolicies) subject(namespace string, c *change.Change) (sets []labels.Set, provider string) {
	for _, ref := range refs(namespace, c) {
		if o := f.inventory.Object(ref); o != nil {
			sets = append(sets, o.Labels)
			provider = strings.TrimSuffix(o.Group, "."+v1alpha1.ProvidersDomain)
		}
		if state := f.inventory.State(ref); state != nil {
			if state.Spec.Applied != nil {
				sets = append(sets, state.Spec.Applied.Labels)
			}
			if provider == "" {
				provider = state.Spec.Provider
			}
		}
	}
	if len(sets) == 0 {
		sets = []labels.Set{nil}
	}
	return sets, provider
}

// addAuthors adds the users who last changed the object of a change.
func (f *planPolicies) addAuthors(authors *approval.Authors, namespace string, c *change.Change) {
	if c.RestoreSpec != nil || c.Address.Deposed != "" {
		return // the plan's author restores the spec; a predecessor was replaced by an earlier plan
	}
	for _, ref := range refs(namespace, c) {
		object, state := f.inventory.Object(ref), f.inventory.State(ref)
		if object == nil {
			// Its finalizers were removed by force, so that the server could not record who deleted it.
			authors.Unknown = authors.Unknown || state != nil
			continue
		}
		names, known := infra.ChangeAuthors(object)
		for _, name := range names {
			if !slices.Contains(authors.Names, name) {
				authors.Names = append(authors.Names, name)
			}
		}
		// A spec that is as it was last applied has no author in this plan. The change has another cause, such
		// as drift.
		unchanged := state != nil && !object.Deleting && bytes.Equal(object.Spec, state.Spec.Written)
		authors.Unknown = authors.Unknown || !known && !unchanged
	}
}
