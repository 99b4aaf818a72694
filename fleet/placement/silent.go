package placement

import (
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// IsSilent reports whether nothing is known about what happens in a cluster now. One that answers, and says that it is
// not ready, is not silent.
func (c *Cluster) IsSilent() bool {
	return !c.Ready && c.Why != v1alpha1.ReasonClusterNotReady
}

// LeavesAsIs reports whether a cluster leaves the fleet and keeps its objects, or cannot report whether it removed them.
func (c *Cluster) LeavesAsIs() bool {
	if c.Object == nil {
		return false
	}
	leaving, orphan := c.Object.Leaving()
	return leaving && (orphan || !c.Ready)
}

// HasLost reports whether a cluster has been unreachable for longer than a policy tolerates: its replicas count as lost.
func (p *Policy) HasLost(c *Cluster, now time.Time) bool {
	if !c.Confirmed || !c.isUnreachable() || c.isHeld() {
		return false
	}
	tolerated, since := c.EvictAfter, c.Since
	if p != nil && p.notReady != nil {
		tolerated = *p.notReady
	}
	if c.HeldUntil.After(since) {
		since = c.HeldUntil
	}
	return tolerated >= 0 && !now.Before(since.Add(tolerated))
}

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
