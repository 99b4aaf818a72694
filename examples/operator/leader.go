package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	leaseapply "k8s.io/client-go/applyconfigurations/coordination/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-dev/atoll/coordination"
)

const renewPeriod = 2 * time.Second  // how often a cluster renews its lease
const aliveTimeout = 5 * renewPeriod // when the others consider it dead

// Leader divides replicas among clusters. It runs in one process of all clusters.
type Leader struct {
	client.Client
	clusters *Clusters
	lock     *coordination.Lock
	stop     func() // stops the process
}

// Reconcile updates the assignments of one App and requeues it.
func (l *Leader) Reconcile(ctx context.Context, app *App) (ctrl.Result, error) {
	alive, again := *l.clusters.alive.Load(), ctrl.Result{RequeueAfter: renewPeriod}
	token, err := l.lock.Token()
	// Do nothing if this process no longer leads, or if its view of the leases is stale: it
	// must contain this cluster's own, because leases arrive in the order of their renewal.
	if err != nil || !slices.Contains(alive, l.clusters.self) {
		return again, nil
	}
	part := app.part()
	part.Spec.Assignments = Divide(app.Spec.Replicas, alive, app.Spec.Assignments)
	coordination.Fence(part, token)
	// A new leader writes each App even if only the token changes. From then on the server
	// rejects writes of an earlier leader.
	if maps.Equal(part.Spec.Assignments, app.Spec.Assignments) && app.Annotations[coordination.FenceAnnotation] == token.String() {
		return again, nil
	}
	if err = l.Patch(ctx, part, apply(part), owner("leader"), client.ForceOwnership); coordination.IsFenced(err) {
		l.stop() // another process leads, and this one has not noticed yet
	}
	return ctrl.Result{}, err
}

// Divide spreads replicas evenly. The remainder goes to the clusters with most replicas.
func Divide(replicas int32, clusters []string, current map[string]int32) map[string]int32 {
	order := slices.SortedFunc(slices.Values(clusters), func(a, b string) int {
		return cmp.Or(cmp.Compare(current[b], current[a]), cmp.Compare(a, b))
	})
	out := map[string]int32{}
	for i, cluster := range order {
		rest := int32(len(order) - i)
		out[cluster] = (replicas + rest - 1) / rest
		replicas -= out[cluster]
	}
	return out
}

// Clusters tracks the clusters in which the operator is alive. Each cluster renews a
// shared lease, as a kubelet does for its node. Each observer measures with its own clock
// how long a lease has not changed, because other clocks may be wrong.
type Clusters struct {
	client.Client
	self  string
	alive atomic.Pointer[[]string] // empty while the leases cannot be read
}

// NeedLeaderElection returns false: every process tracks leases, so that a new leader knows
// the dead clusters at once.
func (c *Clusters) NeedLeaderElection() bool { return false }

// Start renews this cluster's lease and reads all leases until ctx is done.
func (c *Clusters) Start(ctx context.Context) error {
	seen := map[string]coordinationv1.Lease{}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		alive, err := c.renew(ctx, seen)
		if err != nil {
			klog.ErrorS(err, "lease renewal failed; no cluster counts as alive")
		}
		c.alive.Store(&alive)
	}, renewPeriod)
	return nil
}

func (c *Clusters) renew(ctx context.Context, seen map[string]coordinationv1.Lease) (alive []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout/2)
	defer cancel()
	lease := leaseapply.Lease("cluster-"+c.self, namespace).WithAPIVersion(leaseVersion.String()).
		WithLabels(map[string]string{clusterLabel: c.self}).
		WithSpec(leaseapply.LeaseSpec().WithRenewTime(metav1.NowMicro()))
	if err := c.Apply(ctx, lease, owner(c.self), client.ForceOwnership); err != nil {
		return nil, err
	}
	leases := &coordinationv1.LeaseList{}
	if err := c.List(ctx, leases, client.HasLabels{clusterLabel}); err != nil {
		return nil, err
	}
	for _, l := range leases.Items {
		if seen[l.Name].ResourceVersion != l.ResourceVersion {
			l.Spec.RenewTime = new(metav1.NowMicro()) // by this clock, not the writer's
			seen[l.Name] = l
		}
		if time.Since(seen[l.Name].Spec.RenewTime.Time) < aliveTimeout {
			alive = append(alive, l.Labels[clusterLabel])
		}
	}
	return alive, nil
}
