// Package clusters looks after the registered Clusters: it probes each, counts
// what it has, runs its syncer, and sees it off when it leaves.
package clusters

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// FieldManager owns a Cluster's status and its finalizer.
const FieldManager = "atoll-clusters"

// Each cluster is probed every probeEvery. It turns not Ready when failures
// probes in a row fail, so at most failures * (probeEvery + probeTimeout) after
// it stopped answering, and Ready with the first that succeeds.
const (
	probeEvery   = 5 * time.Second
	probeTimeout = 5 * time.Second
	failures     = 3
	// heartbeat is how old LastProbeTime may become while nothing changes. A
	// write per probe and cluster would be most of the load of a large fleet.
	heartbeat = time.Minute
	// warnBefore is how long before the client certificate of a kubeconfig expires the
	// Cluster says so.
	warnBefore = 7 * 24 * time.Hour
	// askWho is after how many probes a member is asked again which version it is.
	askWho = int(heartbeat / probeEvery)
	// retrySyncer is the pause before a syncer that did not start is tried again.
	retrySyncer = 10 * time.Second

	workers = 8
)

// StartSyncer serves one cluster until ctx ends. It calls caughtUp when it has looked at
// all that was bound there when it began.
type StartSyncer func(ctx context.Context, term *fleet.Term, cluster string, member *rest.Config, caughtUp func()) error

type controller struct {
	*fleet.Term
	syncer StartSyncer
	queue  workqueue.TypedRateLimitingInterface[string]
	// heartbeats of clusters in mode Pull.
	heartbeats *heartbeats
	// probing and catching are whose turn it is to be probed for the first time, and to
	// have its syncer catch up.
	probing, catching *turns
	// lifetime of everything that minders start.
	ctx     context.Context
	running sync.WaitGroup

	mu      sync.Mutex
	minders map[string]*minder
	// leavers are the clusters on their way out. Each event of a binding asks for them.
	leavers map[string]bool
}

// With makes the controller of Clusters, with the syncer that each gets.
func With(syncer StartSyncer) fleet.Controller {
	return func(ctx context.Context, term *fleet.Term) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		c := newController(ctx, term, syncer)
		var err error
		if c.heartbeats, err = newHeartbeats(term.Kube, term.Clock, c.queue.Add); err != nil {
			return err
		}
		c.running.Go(func() { c.heartbeats.run(ctx) })
		defer c.running.Wait()
		defer stop()
		return c.run(ctx)
	}
}

func newController(ctx context.Context, term *fleet.Term, syncer StartSyncer) *controller {
	return &controller{Term: term, syncer: syncer, ctx: ctx, minders: map[string]*minder{}, leavers: map[string]bool{},
		probing: newTurns(longestProbe), catching: newTurns(longestCatch),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "fleet_clusters", Clock: term.Clock}),
	}
}

func (c *controller) run(ctx context.Context) error {
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return err
	}
	fleet.Work(ctx, c.queue, workers, c.reconcile, c.failed)
	return nil
}

func (c *controller) listen() error {
	if err := c.OnCluster(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			is = was
		}
		c.queue.Add(is.Name)
	}); err != nil {
		return err
	}
	if err := c.OnBinding(func(was, is *v1alpha1.ResourceBinding) {
		// A cluster that leaves waits for its bindings to go.
		b := is
		if b == nil {
			b = was
		}
		for _, m := range c.leaving() {
			if onCluster(b, m) || was != nil && onCluster(was, m) {
				c.queue.AddAfter(m, time.Second)
			}
		}
	}); err != nil {
		return err
	}
	return c.OnObject(schema.GroupKind{Kind: "Secret"}, func(was, is metav1.Object) {
		if is == nil {
			is = was
		}
		for _, cluster := range c.Clusters() {
			ref := cluster.Spec.KubeconfigSecretRef
			if ref.Namespace == is.GetNamespace() && ref.Name == is.GetName() {
				c.queue.Add(cluster.Name)
			}
		}
	})
}

func onCluster(b *v1alpha1.ResourceBinding, cluster string) bool {
	_, chosen := b.Share(cluster)
	_, reported := b.State(cluster)
	return chosen || reported
}

// leaving names the clusters on their way out.
func (c *controller) leaving() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.leavers))
}

func (c *controller) failed(name string, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("cannot look after a cluster; will try again", "cluster", name, "error", err)
	}
	return true
}

// reconcile brings what runs for a cluster, and what its status says, in line
// with the Cluster, its Secret and the last probe.
func (c *controller) reconcile(ctx context.Context, name string) error {
	cluster, exists := c.Cluster(name)
	if !exists {
		c.dismiss(name)
		return nil
	}
	m := c.minder(cluster)
	leaving, _ := cluster.Leaves()
	c.setLeaving(name, leaving)
	if !leaving {
		if err := c.ensureFinalizer(ctx, cluster); err != nil {
			return err
		}
	}
	wrote, err := c.writeStatus(ctx, cluster, c.observe(cluster, m))
	if err != nil {
		return err
	}
	// After a write, the cluster as it was read here is no longer true; the write
	// is an event that comes back here.
	if leaving && !wrote {
		return c.seeOff(ctx, cluster)
	}
	return nil
}

func (c *controller) minder(cluster *v1alpha1.Cluster) *minder {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.minders[cluster.Name]
	if m == nil {
		m = newMinder(c, cluster.Name, meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.ClusterReady))
		c.minders[cluster.Name] = m
	}
	return m
}

// observe gives what is known of a cluster, and has it served.
func (c *controller) observe(cluster *v1alpha1.Cluster, m *minder) observation {
	if cluster.Pulls() {
		m.serve(nil)
		return c.pulled(cluster)
	}
	member, problem := c.access(cluster)
	m.serve(member)
	return m.observe(problem)
}

func (c *controller) setLeaving(name string, leaving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leaving {
		c.leavers[name] = true
	} else {
		delete(c.leavers, name)
	}
}

// dismiss stops what runs for a cluster that is no longer registered.
func (c *controller) dismiss(name string) {
	c.mu.Lock()
	m := c.minders[name]
	delete(c.minders, name)
	delete(c.leavers, name)
	c.mu.Unlock()
	if m != nil {
		m.serve(nil)
	}
}
