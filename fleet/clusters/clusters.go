// Package clusters manages the registered Clusters: it probes each cluster, counts its nodes, runs
// its syncer, and finalizes it when it leaves.
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
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// FieldManager owns a Cluster's status and its finalizer.
const FieldManager = "atoll-clusters"

// Each cluster is probed every probeInterval. It turns not Ready after failureThreshold failed
// probes in a row: at most failureThreshold * (probeInterval + probeTimeout) after it stopped
// answering. It turns Ready with the first successful probe.
const (
	probeInterval    = 5 * time.Second
	probeTimeout     = 5 * time.Second
	failureThreshold = 3
	// refreshInterval is the maximum age of LastProbeTime without other changes. One write per
	// probe and cluster would be most of the load of a large fleet.
	refreshInterval = time.Minute
	// expiryWarning is how long before the expiry of a kubeconfig's client certificate the Cluster
	// reports it.
	expiryWarning = 7 * 24 * time.Hour
	// versionProbes is the number of probes between two reads of a member's version.
	versionProbes = int(refreshInterval / probeInterval)
	// retrySyncer is the pause before a syncer that failed to start is started again.
	retrySyncer = 10 * time.Second

	workers = 8
)

// StartSyncer runs the syncer of one cluster until ctx ends. It calls caughtUp when it has
// processed everything that was bound to the cluster when it started.
type StartSyncer func(ctx context.Context, session *fleet.Session, cluster string, member *rest.Config, caughtUp func()) error

// RemoveNamespaces deletes the empty namespaces that the fleet created in a cluster. It returns nil if none is left that can
// be deleted.
type RemoveNamespaces func(ctx context.Context, session *fleet.Session, cluster string, member *rest.Config) error

type controller struct {
	*fleet.Session
	syncer StartSyncer
	// removeNamespaces is called when a cluster leaves and nothing is bound to it any more.
	removeNamespaces RemoveNamespaces
	metrics          *Metrics // may be nil
	queue            workqueue.TypedRateLimitingInterface[string]
	// heartbeats of clusters in mode Pull.
	heartbeats *heartbeats
	// probeLimiter and catchUpLimiter limit how many members are probed for the first time, or have
	// their syncer catch up, at once.
	probeLimiter, catchUpLimiter *startLimiter
	// ctx ends everything that the reconcilers start.
	ctx     context.Context
	running sync.WaitGroup

	mu          sync.Mutex
	reconcilers map[string]*memberReconciler
	// leavers are the clusters that are leaving. Every binding event looks them up.
	leavers map[string]bool
}

// NewController returns the controller of Clusters, which runs the given syncer for each. metrics may
// be nil.
func NewController(syncer StartSyncer, namespaces RemoveNamespaces, metrics *Metrics) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		c := newController(ctx, session, syncer, namespaces, metrics)
		var err error
		if c.heartbeats, err = newHeartbeats(session.Kube, session.Clock, c.heartbeat); err != nil {
			return err
		}
		defer metrics.end()
		c.running.Go(func() { c.heartbeats.run(ctx) })
		defer c.running.Wait()
		defer stop()
		return c.run(ctx)
	}
}

func newController(ctx context.Context, session *fleet.Session, syncer StartSyncer, namespaces RemoveNamespaces, metrics *Metrics) *controller {
	return &controller{Session: session, syncer: syncer, removeNamespaces: namespaces, metrics: metrics, ctx: ctx, reconcilers: map[string]*memberReconciler{}, leavers: map[string]bool{},
		probeLimiter: newStartLimiter(maxProbeStart), catchUpLimiter: newStartLimiter(maxCatchUp),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "fleet_clusters", Clock: session.Clock}),
	}
}

func (c *controller) run(ctx context.Context) error {
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return err
	}
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "clusters", c.reconcile), c.failed)
	return nil
}

func (c *controller) listen() error {
	if err := c.Clusters.OnChange(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			is = was
		}
		c.queue.Add(is.Name)
	}); err != nil {
		return err
	}
	if err := c.Bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
		// A cluster that leaves waits until its bindings are gone.
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
	return c.Objects.OnChange(schema.GroupKind{Kind: "Secret"}, func(was, is metav1.Object) {
		if is == nil {
			is = was
		}
		for _, cluster := range c.Clusters.All() {
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

// leaving returns the names of the clusters that are leaving.
func (c *controller) leaving() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.leavers))
}

func (c *controller) failed(name string, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("reconcile of cluster failed; retrying", "cluster", name, "error", err)
	}
	return true
}

// reconcile updates the running syncer and the status of a cluster according to the Cluster, its
// Secret and the last probe.
func (c *controller) reconcile(ctx context.Context, name string) error {
	cluster, exists := c.Clusters.Get(name)
	if !exists {
		c.stopReconciler(name)
		return nil
	}
	m := c.reconciler(cluster)
	leaving, _ := cluster.Leaving()
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
	// After a write, the cluster that was read here is outdated. The write triggers another
	// reconcile.
	switch {
	case wrote:
		return nil
	case leaving:
		return c.finalize(ctx, cluster, m)
	}
	return c.forgetTakeOver(ctx, cluster)
}

func (c *controller) newClaims(a *fleet.Access) (*claims, error) {
	return newClaims(a.REST, claimant{ControlPlane: c.ControlPlane, session: c.Identity + " " + c.Started.UTC().Format(time.RFC3339Nano)}, c.Clock)
}

func (c *controller) reconciler(cluster *v1alpha1.Cluster) *memberReconciler {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.reconcilers[cluster.Name]
	if m == nil {
		m = newMemberReconciler(c, cluster.Name, meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.ClusterReady))
		c.reconcilers[cluster.Name] = m
	}
	return m
}

// observe returns the observed state of a cluster, and starts or stops its syncer.
func (c *controller) observe(cluster *v1alpha1.Cluster, m *memberReconciler) observation {
	if cluster.InPullMode() {
		m.serve(nil)
		return c.observePull(cluster)
	}
	member, p := c.access(cluster)
	m.serve(member)
	o := m.observe(p)
	// The probe may have been compared with an older Cluster.
	if last := o.health.last; o.problem == nil && last.ready {
		if why := c.identityProblem(cluster, last.id); why != "" {
			o.problem = &problem{v1alpha1.ReasonWrongCluster, why}
		}
	}
	return o
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

// stopReconciler stops everything that runs for a cluster that is no longer registered.
func (c *controller) stopReconciler(name string) {
	c.mu.Lock()
	m := c.reconcilers[name]
	delete(c.reconcilers, name)
	delete(c.leavers, name)
	c.mu.Unlock()
	if m != nil {
		m.serve(nil)
	}
	c.metrics.forget(name)
}
