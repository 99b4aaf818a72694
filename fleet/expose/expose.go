// Package expose makes member clusters serve API groups of the control plane. In each member that a
// SharedAPI selects, it maintains the objects for aggregation: the APIServices, the Service and its
// endpoints, and roles. When the member should no longer serve the groups, it removes these
// objects, and no others.
//
// The control plane records which members have such objects. Before the first write to a member,
// its Cluster gets a finalizer, and the SharedAPI an entry for it. Both are removed only when the
// member is known to have none left.
package expose

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// FieldManager owns the objects that are applied to members. In the control plane it owns the
// status of SharedAPIs, and the front proxy in the status of Clusters.
const FieldManager = "atoll-expose"

const (
	workers = 8
	// batchWindow is how long a change waits for others: when a member's watches start, they report
	// all existing objects.
	batchWindow = 50 * time.Millisecond
	// maxBackoff is the longest pause between failed attempts.
	maxBackoff = 30 * time.Second
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// key is a unit of work: a member, a SharedAPI, the role of collectors, or, if all are empty, the
// list of servers.
type key struct {
	cluster, shared string
	collectors      bool
}

type controller struct {
	*fleet.Session
	ca     []byte
	access func(*v1alpha1.Cluster) (memberAccess, error)
	queue  workqueue.TypedRateLimitingInterface[key]

	shared       controllers.Cache[v1alpha1.SharedAPI]
	crds, leases controllers.Cache[unstructured.Unstructured]
	// roles and bindings hold only the objects for collectors.
	roles, bindings controllers.Cache[unstructured.Unstructured]

	// ctx ends the watches of members.
	ctx     context.Context
	running sync.WaitGroup

	mu        sync.Mutex
	seen      leaseObservations
	present   []server
	members   map[string]*member
	exposures map[key]exposure // by cluster and SharedAPI
}

// NewController returns the controller of SharedAPIs. ca, in PEM, is the authority with which
// members verify the control plane's servers. metrics may be nil.
func NewController(ca []byte, metrics *Metrics) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error {
		c := newController(session, ca, accessByKubeconfig(session))
		defer metrics.lead(c)()
		return c.run(ctx)
	}
}

// memberAccess is how to reach a member.
type memberAccess struct {
	dynamic.Interface
	// digest identifies the kubeconfig.
	digest string
	// listed returns the versions whose kinds the member lists in discovery.
	listed func(context.Context) (map[schema.GroupVersion]bool, error)
	// dependents returns objects of the member with owners in a group.
	dependents func(ctx context.Context, group string) ([]string, error)
}

func accessByKubeconfig(session *fleet.Session) func(*v1alpha1.Cluster) (memberAccess, error) {
	return func(cluster *v1alpha1.Cluster) (none memberAccess, err error) {
		access, err := session.Clusters.Access(cluster)
		if err != nil {
			return none, err
		}
		cfg := rest.CopyConfig(access.REST)
		cfg.QPS, cfg.Burst = -1, -1
		cfg.UserAgent = FieldManager
		dyn, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return none, fmt.Errorf("create a client for cluster %s: %w", cluster.Name, err)
		}
		return memberAccess{dyn, access.Digest, listedBy(cfg), dependentsBy(cfg)}, nil
	}
}

func newController(session *fleet.Session, ca []byte, reach func(*v1alpha1.Cluster) (memberAccess, error)) *controller {
	watch := func(gvr schema.GroupVersionResource, o controllers.CacheOptions) controllers.Cache[unstructured.Unstructured] {
		return controllers.NewCache[unstructured.Unstructured](session.Dynamic, gvr, o)
	}
	collectors := controllers.CacheOptions{Select: func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + v1alpha1.CollectorsGroup }}
	return &controller{
		Session: session, ca: ca, access: reach,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "fleet_expose", Clock: session.Clock}),
		shared: controllers.NewCache[v1alpha1.SharedAPI](session.Dynamic, v1alpha1.SharedAPIResource, controllers.CacheOptions{}),
		crds:   watch(crdResource, controllers.CacheOptions{Transform: slimCRD}),
		leases: watch(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, controllers.CacheOptions{
			Namespace: v1alpha1.SystemNamespace, Select: func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.MemberEndpointLabel }}),
		roles:    watch(roleResource, collectors),
		bindings: watch(bindingResource, collectors),
		seen:     leaseObservations{}, members: map[string]*member{}, exposures: map[key]exposure{},
	}
}

func (c *controller) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer c.running.Wait()
	defer stop()
	defer c.queue.ShutDown()
	c.ctx = ctx
	if err := c.listen(); err != nil {
		return fmt.Errorf("expose: watch the control plane: %w", err)
	}
	var synced []cache.InformerSynced
	for _, i := range []cache.SharedIndexInformer{c.shared.Informer, c.crds.Informer, c.leases.Informer, c.roles.Informer, c.bindings.Informer} {
		c.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	c.refreshServers()
	c.queue.Add(key{collectors: true})
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "expose", c.reconcile), c.failed)
	return nil
}

func (c *controller) listen() error {
	every := func() { c.everyCluster() }
	if err := c.shared.OnChange(func(was, is *v1alpha1.SharedAPI) {
		if is != nil {
			c.queue.Add(key{shared: is.Name})
		}
		if was == nil || is == nil || matters(was, is) {
			every()
			c.queue.Add(key{collectors: true})
		}
	}); err != nil {
		return err
	}
	if err := c.crds.OnChange(func(was, is *unstructured.Unstructured) {
		if was == nil || is == nil || !equality.Semantic.DeepEqual(was.Object, is.Object) {
			every()
		}
	}); err != nil {
		return err
	}
	if err := c.leases.OnChange(func(_, _ *unstructured.Unstructured) { c.queue.Add(key{}) }); err != nil {
		return err
	}
	for _, held := range []controllers.Cache[unstructured.Unstructured]{c.roles, c.bindings} {
		if err := held.OnChange(func(_, _ *unstructured.Unstructured) { c.queue.Add(key{collectors: true}) }); err != nil {
			return err
		}
	}
	return c.Clusters.OnChange(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			is = was
		}
		c.queue.Add(key{cluster: is.Name})
		// A new or relabelled Cluster may be selected. A change of one front-proxy authority
		// affects other members.
		if was == nil || was == is || !equality.Semantic.DeepEqual(was.Labels, is.Labels) {
			for _, s := range c.shared.All() {
				c.queue.Add(key{shared: s.Name})
			}
		}
		if was != nil && !equality.Semantic.DeepEqual(was.Status.FrontProxy, is.Status.FrontProxy) {
			every()
		}
	})
}

// matters reports whether a change of a SharedAPI is relevant for members. Most changes are reports
// from them.
func matters(was, is *v1alpha1.SharedAPI) bool {
	names := func(s *v1alpha1.SharedAPI) (out []string) {
		for _, e := range s.Status.Clusters {
			out = append(out, e.Name)
		}
		return out
	}
	return was.UID != is.UID || !equality.Semantic.DeepEqual(was.Spec, is.Spec) || !slices.Equal(was.Finalizers, is.Finalizers) ||
		!was.DeletionTimestamp.Equal(is.DeletionTimestamp) || !slices.Equal(names(was), names(is))
}

// slimCRD keeps only the fields of a CRD that show which versions of its group are served, and that
// it has changed. The schemas of hundreds of CRDs would take most of the memory.
func slimCRD(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind()}}
	out.SetName(u.GetName())
	out.SetUID(u.GetUID())
	out.SetGeneration(u.GetGeneration())
	out.SetDeletionTimestamp(u.GetDeletionTimestamp())
	if marked := u.GetLabels()[v1alpha1.SharedLabel]; marked != "" {
		label(out, v1alpha1.SharedLabel, marked)
	}
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	var versions []any
	all, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	for _, v := range all {
		if fields, ok := v.(map[string]any); ok {
			versions = append(versions, map[string]any{"name": fields["name"], "served": fields["served"]})
		}
	}
	out.Object["spec"] = map[string]any{"group": group, "versions": versions}
	status := "False"
	if established(u) {
		status = "True"
	}
	out.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": status}}}
	return out, nil
}

func (c *controller) everyCluster() {
	for _, cluster := range c.Clusters.All() {
		c.queue.AddAfter(key{cluster: cluster.Name}, batchWindow)
	}
}

func (c *controller) reconcile(ctx context.Context, k key) error {
	switch {
	case k.cluster != "":
		return c.reconcileCluster(ctx, k.cluster)
	case k.shared != "":
		return c.reconcileShared(ctx, k.shared)
	case k.collectors:
		return c.reconcileCollectors(ctx)
	}
	if c.refreshServers() {
		c.everyCluster()
	}
	return nil
}

// refreshServers updates the list of servers, and reports whether it changed.
func (c *controller) refreshServers() (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	present := c.seen.live(c.leases.All(), c.Clock.Now())
	changed = !slices.Equal(present, c.present)
	c.present = present
	return changed
}

// servers returns the addresses that a member should use.
func (c *controller) servers(cluster string, m *member) []netip.AddrPort {
	present := presentAddresses(m.ours())
	c.mu.Lock()
	defer c.mu.Unlock()
	return addressesFor(c.present, cluster, present)
}

func (c *controller) failed(k key, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("reconcile of shared APIs failed; retrying", "cluster", k.cluster, "sharedapi", k.shared, "error", err)
	}
	return true
}
