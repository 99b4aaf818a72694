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

// LeavesAsIs reports whether a cluster leaves the fleet and keeps its objects, or cannot say what becomes of them.
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
	tolerated := c.EvictAfter
	if p != nil && p.notReady != nil {
		tolerated = *p.notReady
	}
	at, ends := c.lostAt(tolerated)
	return ends && !now.Before(at)
}

// leastTolerated is how long an unreachable cluster keeps its share at least: a fault of Atoll's own network is noticed
// in one cluster up to so much later than in another, and until then a failover would not be held.
const leastTolerated = 20 * time.Second

// lostAt returns when an unreachable cluster loses its share, if that is tolerated for so long. ends is false if it
// keeps the share for ever.
func (c *Cluster) lostAt(tolerated time.Duration) (at time.Time, ends bool) {
	since := c.Since
	if c.HeldUntil.After(since) {
		since = c.HeldUntil // others that were held may come back a moment later
	}
	return since.Add(max(tolerated, leastTolerated)), tolerated >= 0
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
