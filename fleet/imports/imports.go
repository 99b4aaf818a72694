// Package imports tracks the types that member clusters serve. It reads them from each member,
// records them as APIResourceImports, computes what all members can accept as
// NegotiatedAPIResources, and publishes the result as CRDs where that is requested.
//
// Kubernetes' built-in kinds are not imported. For them, Fields knows which fields of an object
// a member's version lacks.
package imports

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// Field managers. There are two, because two reconciles write one status: what a member serves,
// and what all members have in common.
const (
	// FieldManager owns APIResourceImports, and status.types of Clusters.
	FieldManager = "atoll-imports"
	// NegotiationManager owns NegotiatedAPIResources, the CRDs created from them, and the
	// condition Compatible of imports.
	NegotiationManager = "atoll-negotiation"
)

const (
	workers = 4
	// batchWindow is how long a change is delayed so that further changes are batched: a member
	// that is read for the first time reports all its types at once.
	batchWindow = 200 * time.Millisecond
	// maxBackoff is the longest pause between failing attempts.
	maxBackoff = 30 * time.Second
	// pollInterval is how often members are polled for the types that cannot be watched.
	pollInterval = time.Minute
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// key is a unit of reconciliation: a member, or a type with all its versions.
type key struct {
	cluster string
	typ     schema.GroupResource
}

type controller struct {
	*fleet.Session
	fields  *Fields
	connect func(*v1alpha1.Cluster) (connection, error)
	queue   workqueue.TypedRateLimitingInterface[key]

	imports    controllers.Cache[imported]
	negotiated controllers.Cache[negotiated]
	policies   controllers.Cache[v1alpha1.TypePolicy]
	crds       controllers.Cache[cachedCRD]
	reports    controllers.Cache[report]

	// own is the source of the control plane's own OpenAPI documents.
	own documentSource

	// ctx and running bound everything that is started for members.
	ctx     context.Context
	running sync.WaitGroup

	mu          sync.Mutex
	watchers    map[string]*typeWatcher
	reportCache *reportCache
}

// NewController returns the controller of types. It records the fields of Kubernetes' built-in
// kinds in fields, for other users.
func NewController(fields *Fields) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error {
		return newController(session, fields, byKubeconfig(session), httpDocuments{session.Kube.Discovery().RESTClient()}).run(ctx)
	}
}

func newController(session *fleet.Session, fields *Fields, connect func(*v1alpha1.Cluster) (connection, error), own documentSource) *controller {
	return &controller{
		Session: session, fields: fields, connect: connect, own: own, watchers: map[string]*typeWatcher{}, reportCache: newReportCache(),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "fleet_imports", Clock: session.Clock}),
		imports:    watchImports(session.Dynamic),
		negotiated: watchNegotiated(session.Dynamic),
		policies:   controllers.NewCache[v1alpha1.TypePolicy](session.Dynamic, v1alpha1.TypePolicyResource, controllers.CacheOptions{}),
		crds:       controllers.NewCache[cachedCRD](session.Dynamic, crdResource, controllers.CacheOptions{Transform: cacheCRD}),
		reports:    watchReports(session.Dynamic),
	}
}

func (c *controller) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer c.running.Wait()
	defer stop()
	defer c.queue.ShutDown()
	c.ctx = ctx
	if err := c.listen(); err != nil {
		return fmt.Errorf("imports: watch the control plane: %w", err)
	}
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.imports.Informer, c.negotiated.Informer, c.policies.Informer, c.crds.Informer, c.reports.Informer} {
		c.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "imports", c.reconcile), c.onFailure)
	return nil
}

func (c *controller) reconcile(ctx context.Context, k key) error {
	if k.cluster != "" {
		return c.reconcileCluster(ctx, k.cluster)
	}
	return c.reconcileType(ctx, k.typ)
}

func (c *controller) onFailure(k key, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("reconcile of types failed; retrying", "cluster", k.cluster, "type", k.typ.String(), "error", err)
	}
	return true
}

func (c *controller) listen() error {
	if err := c.imports.OnChange(func(was, is *imported) {
		one := either(was, is)
		if was == nil || is == nil || was.digest != is.digest || was.Spec.SchemaUpdateStrategy != is.Spec.SchemaUpdateStrategy {
			c.enqueueType(one.typ())
		}
		// Changes and deletions by others are reverted. An import that existed before this
		// session may belong to a deleted Cluster.
		if was == nil || is == nil || was.Generation != is.Generation {
			c.queue.AddAfter(key{cluster: one.Spec.Location}, batchWindow)
		}
	}); err != nil {
		return err
	}
	if err := c.negotiated.OnChange(func(was, is *negotiated) { c.enqueueType(either(was, is).typ()) }); err != nil {
		return err
	}
	if err := c.crds.OnChange(func(was, is *cachedCRD) {
		if was == nil || is == nil || was.state != is.state {
			c.enqueueType(either(was, is).typ)
		}
	}); err != nil {
		return err
	}
	if err := c.policies.OnChange(func(_, _ *v1alpha1.TypePolicy) { c.enqueueAll() }); err != nil {
		return err
	}
	if err := c.reports.OnChange(func(was, is *report) { c.queue.AddAfter(key{cluster: either(was, is).cluster}, batchWindow) }); err != nil {
		return err
	}
	return c.Clusters.OnChange(func(was, is *v1alpha1.Cluster) { c.queue.Add(key{cluster: either(was, is).Name}) })
}

// enqueueType queues the negotiation of a type.
func (c *controller) enqueueType(typ schema.GroupResource) {
	c.queue.AddAfter(key{typ: typ}, batchWindow)
}

// enqueueAll queues all types and members after a policy has changed.
func (c *controller) enqueueAll() {
	for _, i := range c.imports.All() {
		c.enqueueType(i.typ())
	}
	for _, n := range c.negotiated.All() {
		c.enqueueType(n.typ())
	}
	for _, cluster := range c.Clusters.All() {
		if cluster.InPullMode() {
			c.queue.Add(key{cluster: cluster.Name})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.watchers {
		p.trigger()
	}
}

// inFull reports whether a policy names a group in full.
func (c *controller) inFull(group string) bool {
	_, inFull := c.policyFor(group)
	return inFull
}

// policyFor returns the policy that applies to a group, and whether it names the group in full.
func (c *controller) policyFor(group string) (*v1alpha1.TypePolicy, bool) {
	return v1alpha1.PolicyFor(group, c.policies.All())
}

func either[T any](was, is *T) *T {
	if is == nil {
		return was
	}
	return is
}
