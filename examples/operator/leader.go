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

const beatPeriod = 2 * time.Second // how often a cluster renews its lease
const beatTimeout = 5 * beatPeriod // when the others give it up

// Leader divides replicas among clusters. One process of all clusters runs it.
type Leader struct {
	client.Client
	clusters *Clusters
	lock     *coordination.Lock
	stop     func() // ends the process
}

// Reconcile brings one App's assignments up to date, and looks again soon.
func (l *Leader) Reconcile(ctx context.Context, app *App) (ctrl.Result, error) {
	alive, again := *l.clusters.alive.Load(), ctrl.Result{RequeueAfter: beatPeriod}
	token, err := l.lock.Token()
	// Who leads no more does nothing. Nor who does not hear of itself: it may not have
	// heard of the others either, for leases arrive in the order of their renewal.
	if err != nil || !slices.Contains(alive, l.clusters.self) {
		return again, nil
	}
	part := app.part()
	part.Spec.Assignments = Divide(app.Spec.Replicas, alive, app.Spec.Assignments)
	coordination.Fence(part, token)
	// A new leader writes each App even if nothing changes but the token: from then
	// on nothing that an earlier leader still has to say is accepted.
	if maps.Equal(part.Spec.Assignments, app.Spec.Assignments) && app.Annotations[coordination.FenceAnnotation] == token.String() {
		return again, nil
	}
	if err = l.Patch(ctx, part, apply(part), owner("leader"), client.ForceOwnership); coordination.IsFenced(err) {
		l.stop() // another one leads, and this process does not know it yet
	}
	return ctrl.Result{}, err
}

// Divide spreads replicas evenly. What remains goes to where more are already.
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

// Clusters knows where the operator is alive. Each cluster renews a shared lease,
// as a kubelet does for its node. Whoever looks measures, by its own clock, how
// long a lease has not changed: clocks may be wrong.
type Clusters struct {
	client.Client
	self  string
	alive atomic.Pointer[[]string] // none while this process cannot tell
}

// NeedLeaderElection is false: all keep watch, so a new leader knows who is gone.
func (c *Clusters) NeedLeaderElection() bool { return false }

// Start renews this cluster's lease, and looks at all, until ctx ends.
func (c *Clusters) Start(ctx context.Context) error {
	seen := map[string]coordinationv1.Lease{}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		alive, err := c.beat(ctx, seen)
		if err != nil {
			klog.ErrorS(err, "Cannot tell which clusters are alive")
		}
		c.alive.Store(&alive)
	}, beatPeriod)
	return nil
}

func (c *Clusters) beat(ctx context.Context, seen map[string]coordinationv1.Lease) (alive []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout/2)
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
			l.Spec.RenewTime = new(metav1.NowMicro()) // by this clock, not by that which wrote it
			seen[l.Name] = l
		}
		if time.Since(seen[l.Name].Spec.RenewTime.Time) < beatTimeout {
			alive = append(alive, l.Labels[clusterLabel])
		}
	}
	return alive, nil
}
