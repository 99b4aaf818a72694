package placement

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// A policy that has overrides and nothing else changes what clusters get, and not where objects run. It
// applies beside the one policy that decides.

// onlyOverrides reports whether a policy has overrides and nothing else.
func onlyOverrides(spec *v1alpha1.PlacementSpec) bool {
	rest := *spec
	rest.Overrides = nil
	return len(spec.Overrides) > 0 && isEmpty(&rest)
}

// isEmpty reports whether a policy says nothing of its own about the objects that it selects.
func isEmpty(spec *v1alpha1.PlacementSpec) bool {
	rest := *spec
	rest.Selector, rest.Priority, rest.Changes = v1alpha1.ObjectSelector{}, 0, nil
	if rest.Drift == v1alpha1.DriftCorrect { // the default, which the API server sets
		rest.Drift = ""
	}
	return reflect.ValueOf(rest).IsZero()
}

// before orders policies whose overrides apply to one object: the last one counts. A ClusterPlacement comes
// before a Placement, then the lower priority, a wider policy before a more specific one, and of equals the
// newer one first, because the older one takes precedence.
func (r *rule) before(o *rule) int {
	return cmp.Or(compareBool(r.ref.Kind != "ClusterPlacement", o.ref.Kind != "ClusterPlacement"), compareBool(o.isDefault(), r.isDefault()),
		cmp.Compare(r.priority, o.priority), cmp.Compare(o.narrowness(), r.narrowness()), o.created.Compare(r.created.Time), strings.Compare(o.ref.Name, r.ref.Name))
}

// beside returns the policies that apply to an object with their overrides alone, in their order.
func (p *Policies) beside(t *PolicyTarget) (out []*rule) {
	for _, list := range [][]*rule{p.overriding[""], p.overriding[t.Namespace]} {
		for _, r := range list {
			if r.selects(t) && !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out
}

// merged is a policy with the overrides of others.
type merged struct {
	policy *Policy
	with   string
}

// merge returns a policy with the overrides of others. own is the rule of the policy, nil for the built-in one.
func (p *Policies) merge(policy *Policy, own *rule, beside []*rule) *Policy {
	order := slices.Clone(beside)
	if own != nil {
		order = append(order, own)
		slices.SortFunc(order, (*rule).before)
	}
	var with strings.Builder
	for _, r := range order {
		with.WriteString(r.ref.Kind + "/" + string(r.ref.UID) + "/" + r.ref.Name + "/" + strconv.FormatInt(r.ref.Generation, 10) + ",")
	}
	key := merged{policy, with.String()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if out := p.merges[key]; out != nil {
		return out
	}
	out := *policy
	out.fixed, out.changes = nil, nil
	for _, r := range order {
		from := r.policy
		if r == own {
			from = policy
		}
		for _, o := range from.fixed {
			o.from = r.ref
			out.fixed = append(out.fixed, o)
		}
		for _, o := range from.changes {
			o.from = r.ref
			out.changes = append(out.changes, o)
		}
		out.named = append(slices.Clone(out.named), from.named...)
	}
	out.readsObject = out.usesObject()
	p.merges[key] = &out
	return &out
}

// OverriddenBy returns the policies whose overrides apply to objects of a kind in a cluster, in their order.
// own is the policy that decides.
func (p *Policy) OverriddenBy(f *Fleet, group, kind, cluster string, own v1alpha1.PolicyReference) (out []v1alpha1.PolicyReference) {
	i, ok := f.index[cluster]
	if p == nil || !ok {
		return nil
	}
	add := func(s *selector, kinds []string, from v1alpha1.PolicyReference) {
		if from.Name == "" {
			from = own
		}
		from.Why, from.Generation = "", 0
		if ofKinds(kinds, group, kind) && s.selects(&f.clusters[i], f.object(i)) && !slices.Contains(out, from) {
			out = append(out, from)
		}
	}
	for _, o := range p.fixed {
		add(o.selector, o.kinds, o.from)
	}
	for _, o := range p.changes {
		add(o.selector, o.kinds, o.from)
	}
	return out
}
