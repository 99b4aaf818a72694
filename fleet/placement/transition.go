package placement

import "github.com/atoll-dev/atoll/api/fleet/v1alpha1"

// Transition returns how objects of the policy get to other clusters; nil if it does not say.
func (p *Policy) Transition() *v1alpha1.TransitionPolicy {
	if p == nil {
		return nil
	}
	return p.spec.Transition
}

// DefaultTransition returns the setting of the default policy, which applies to all objects whose policies have none.
func (p *Policies) DefaultTransition() *v1alpha1.TransitionPolicy {
	for _, r := range p.cluster {
		if r.ref.Name == v1alpha1.DefaultPlacementName && r.policy != nil {
			return r.policy.spec.Transition
		}
	}
	return nil
}
