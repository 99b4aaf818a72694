package placement

import (
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// isUnreachable reports whether no connection to the cluster can be made, so its workloads may be lost. For all other
// reasons why it is not Ready, something there answers, or the fault is here: its nodes go on running their pods.
func (c *Cluster) isUnreachable() bool { return !c.Ready && c.Why == v1alpha1.ReasonClusterUnreachable }

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

// mayRun explains why the workloads of a cluster that is not Ready, and not unreachable, may run.
func mayRun(why string) string {
	switch why {
	case v1alpha1.ReasonInvalidKubeConfig:
		return "its kubeconfig or credentials are refused, but its workloads may run"
	case v1alpha1.ReasonErrorCreatingClient:
		return "no client can be created from its kubeconfig, but its workloads may run"
	case v1alpha1.ReasonInvalidServerCertificate:
		return "the certificate of its API server is not valid, but its workloads may run"
	case v1alpha1.ReasonClusterNotReady:
		return "its API server answers that it is not ready, and its workloads run without it"
	case v1alpha1.ReasonClusterSlow:
		return "its API server accepts connections and answers too late, but its workloads may run"
	case v1alpha1.ReasonErrorInstallingSyncer, v1alpha1.ReasonErrorStartingSyncer:
		return "its syncer does not run, but its workloads may"
	case v1alpha1.ReasonWrongCluster:
		return "another cluster answers under its name, and its workloads may run"
	case v1alpha1.ReasonOtherControlPlane:
		return "another control plane has it, and its workloads may run"
	}
	return "its state is not known" + because(why)
}
