package placement

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// HasLost reports whether a cluster has been unreachable for longer than a policy tolerates for an object: its replicas
// count as lost.
func (p *Policy) HasLost(c *Cluster, o *Object, now time.Time) bool {
	if !c.Confirmed || !c.isUnreachable() || c.isHeld() {
		return false
	}
	at, ends := c.lostAt(p.tolerates(c, o))
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

// tolerates returns how long an object stays in an unreachable cluster; less than 0 means for ever. If the cluster is to
// stop the replicas itself, it gets the time for that. One that does not stop them may run them for as long as it is
// unreachable.
func (p *Policy) tolerates(c *Cluster, o *Object) time.Duration {
	tolerated := c.EvictAfter
	if p == nil {
		return tolerated
	}
	if p.notReady != nil {
		tolerated = *p.notReady
	}
	if p.spec.Fencing == nil || tolerated < 0 {
		return tolerated
	}
	if p.unfenced(c, o) {
		return -1
	}
	_, takeover := p.spec.Fencing.Times()
	return max(tolerated, takeover)
}

// unfenced reports whether a policy fences an object, and a cluster cannot.
func (p *Policy) unfenced(c *Cluster, o *Object) bool {
	return p.spec.Fencing != nil && (!c.fences() || !o.Divisible)
}

func (c *Cluster) fences() bool { return c.Object != nil && c.Object.Status.Fences }

// Fencing returns the fencing of an object; nil if clusters do not stop it.
func (p *Policy) Fencing(o *Object) *v1alpha1.BindingFencing {
	if p == nil || p.spec.Fencing == nil || !o.Divisible {
		return nil
	}
	lease, _ := p.spec.Fencing.Times()
	return &v1alpha1.BindingFencing{Lease: metav1.Duration{Duration: lease}}
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
