package clusters

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// heartbeats has the heartbeats of the syncers in mode Pull. Their age is measured from when this
// leader received them, because the syncers have other clocks.
type heartbeats struct {
	leases cache.SharedIndexInformer
	clock  clock.PassiveClock

	mu   sync.Mutex
	last map[string]lastHeartbeat // by cluster
}

// lastHeartbeat is the last heartbeat of a cluster.
type lastHeartbeat struct {
	renewed     metav1.MicroTime
	at          time.Time
	observation fleet.Observation
	err         error
}

func newHeartbeats(kube kubernetes.Interface, clock clock.PassiveClock, tell func(cluster string)) (*heartbeats, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(v1alpha1.SystemNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.HeartbeatLabel }))
	h := &heartbeats{leases: factory.Coordination().V1().Leases().Informer(), clock: clock, last: map[string]lastHeartbeat{}}
	hear := func(obj any) {
		if lease, ok := obj.(*coordinationv1.Lease); ok && h.record(lease) {
			tell(lease.Labels[v1alpha1.HeartbeatLabel])
		}
	}
	_, err := h.leases.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: hear, UpdateFunc: func(_, is any) { hear(is) }})
	if err != nil {
		return nil, fmt.Errorf("watch heartbeats: %w", err)
	}
	return h, nil
}

// record records a heartbeat, and reports whether it is new.
func (h *heartbeats) record(lease *coordinationv1.Lease) bool {
	cluster := lease.Labels[v1alpha1.HeartbeatLabel]
	if lease.Name != v1alpha1.HeartbeatLease(cluster) || lease.Spec.RenewTime == nil {
		return false // not the Lease of a syncer
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last, known := h.last[cluster]
	if known && last.renewed.Equal(lease.Spec.RenewTime) {
		return false
	}
	said, err := fleet.ObservationOf(lease)
	h.last[cluster] = lastHeartbeat{renewed: *lease.Spec.RenewTime, at: h.clock.Now(), observation: said, err: err}
	return true
}

func (h *heartbeats) of(cluster string) (lastHeartbeat, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.last[cluster]
	return b, ok
}

// run watches until ctx ends.
func (h *heartbeats) run(ctx context.Context) { h.leases.RunWithContext(ctx) }

// heartbeat handles a new heartbeat of a cluster.
func (c *controller) heartbeat(cluster string) {
	last, heard := c.heartbeats.of(cluster)
	if _, joined := c.Clusters.Get(cluster); heard && joined {
		c.metrics.heard(cluster, last.at)
	}
	c.queue.Add(cluster)
}

// observePull returns the observed state of a cluster in mode Pull, from its heartbeats.
func (c *controller) observePull(cluster *v1alpha1.Cluster) observation {
	now := c.Clock.Now()
	last, heard := c.heartbeats.of(cluster.Name)
	since := last.at
	if !heard {
		since = c.Started
	}
	left := v1alpha1.HeartbeatExpiry - now.Sub(since)
	if left > 0 {
		c.queue.AddAfter(cluster.Name, left+time.Millisecond)
	}
	ready := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterReady)
	switch {
	case heard && last.err != nil:
		return notReady(last.at, v1alpha1.ReasonClusterStatusUnknown, last.err.Error()+": run a syncer of the same version as the servers")
	case heard && c.identityProblem(cluster, last.observation.ID) != "":
		return notReady(last.at, v1alpha1.ReasonWrongCluster, c.identityProblem(cluster, last.observation.ID))
	case heard && left > 0 && last.observation.Reason == v1alpha1.ReasonWrongCluster:
		return notReady(last.at, v1alpha1.ReasonClusterStatusUnknown, "the cluster is accepted, and its syncer is starting again")
	case heard && left > 0:
		return observation{health: health{probed: last.at, last: result{at: last.at, ready: last.observation.Ready, reason: last.observation.Reason,
			message: last.observation.Message, version: last.observation.Version, id: last.observation.ID,
			claim: last.observation.Claim}}, count: c.counted(last.observation)}
	case !heard && !c.heartbeats.leases.HasSynced(), !heard && left > 0 && ready != nil && ready.Reason != v1alpha1.ReasonErrorInstallingSyncer:
		return observation{count: func(*v1alpha1.ClusterStatus) {}} // a previous leader may have received more
	case !heard && (ready == nil || ready.Reason == v1alpha1.ReasonErrorInstallingSyncer || ready.Status == metav1.ConditionUnknown):
		return notReady(now, v1alpha1.ReasonErrorInstallingSyncer,
			"no syncer of this cluster has connected: run `atoll syncer` there, with the output of `atoll join "+cluster.Name+" --mode pull`")
	}
	return notReady(now, v1alpha1.ReasonClusterUnreachable, fmt.Sprintf(
		"the cluster's syncer has sent no heartbeat for more than %s; running objects keep running. The syncer does not run (see the log of its Pod), cannot reach Atoll, or its credential is no longer valid: "+
			"in that case issue a new one with `atoll join %s --mode pull`", v1alpha1.HeartbeatExpiry, cluster.Name))
}

func notReady(at time.Time, reason, message string) observation {
	return observation{health: health{probed: at, last: result{at: at, reason: reason, message: message}},
		count: func(*v1alpha1.ClusterStatus) {}}
}

// counted copies the counts of a syncer into a status.
func (c *controller) counted(said fleet.Observation) func(*v1alpha1.ClusterStatus) {
	return func(status *v1alpha1.ClusterStatus) {
		status.Fences = said.Fences
		if said.Nodes != nil {
			status.Nodes, status.Capacity, status.Allocatable, status.NodeShapes = said.Nodes, said.Capacity, said.Allocatable, said.NodeShapes
			status.PendingPods = said.PendingPods
			status.NamespaceQuotas = slices.DeleteFunc(slices.Clone(said.NamespaceQuotas), func(q v1alpha1.NamespaceQuota) bool { return !c.hasNamespace(q.Namespace) })
		}
	}
}
