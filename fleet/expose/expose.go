// Package expose has member clusters serve API groups of the control plane. For
// each member that a SharedAPI chooses it keeps there what aggregation needs: the
// APIServices, the Service and the addresses behind it, and roles; and it removes
// all of it, and nothing else, when the member is not to serve the groups any more.
//
// What it must not forget stands in the control plane: before the first write to a
// member, its Cluster has a finalizer and the SharedAPI an entry for it, and both
// go only when the member is known to hold nothing of it.
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
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// FieldManager owns what is applied to members, and in the control plane the
// status of SharedAPIs and the front proxy in that of Clusters.
const FieldManager = "atoll-expose"

const (
	workers = 8
	// gather is how long a change waits for more of its kind: a member that starts
	// reports all that it has.
	gather = 50 * time.Millisecond
	// patience is the longest pause between attempts that fail.
	patience = 30 * time.Second
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// key is what a worker reconciles: a member, a SharedAPI, the role of collectors, or
// with none of these the list of servers.
type key struct {
	cluster, shared string
	collectors      bool
}

type controller struct {
	*fleet.Term
	ca    []byte
	reach func(*v1alpha1.Cluster) (way, error)
	queue workqueue.TypedRateLimitingInterface[key]

	shared, crds, leases cache.SharedIndexInformer
	// roles and bindings hold the one of each that collectors need.
	roles, bindings cache.SharedIndexInformer

	// lifetime of the watches of members.
	ctx     context.Context
	running sync.WaitGroup

	mu       sync.Mutex
	seen     sightings
	present  []server
	members  map[string]*member
	verdicts map[key]verdict // by cluster and SharedAPI
}

// With makes the controller of SharedAPIs. ca, in PEM, is what members verify the
// servers of the control plane with.
func With(ca []byte) fleet.Controller {
	return func(ctx context.Context, term *fleet.Term) error {
		return newController(term, ca, throughKubeconfig(term)).run(ctx)
	}
}

// way is how to reach a member.
type way struct {
	dynamic.Interface
	// digest tells one way from another.
	digest string
	// listed reads the versions whose kinds the member lists.
	listed func(context.Context) (map[schema.GroupVersion]bool, error)
}

func throughKubeconfig(term *fleet.Term) func(*v1alpha1.Cluster) (way, error) {
	return func(cluster *v1alpha1.Cluster) (none way, err error) {
		access, err := term.Access(cluster)
		if err != nil {
			return none, err
		}
		cfg := rest.CopyConfig(access.REST)
		cfg.QPS, cfg.Burst = -1, -1
		cfg.UserAgent = FieldManager
		dyn, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return none, fmt.Errorf("make a client of cluster %s: %w", cluster.Name, err)
		}
		return way{dyn, access.Digest, listedBy(cfg)}, nil
	}
}

func newController(term *fleet.Term, ca []byte, reach func(*v1alpha1.Cluster) (way, error)) *controller {
	watch := func(gvr schema.GroupVersionResource, namespace string, only func(*metav1.ListOptions)) cache.SharedIndexInformer {
		return dynamicinformer.NewFilteredDynamicInformer(term.Dynamic, gvr, namespace, 0, cache.Indexers{}, only).Informer()
	}
	collectors := func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=" + v1alpha1.CollectorsGroup }
	return &controller{
		Term: term, ca: ca, reach: reach,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, patience),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "fleet_expose", Clock: term.Clock}),
		shared: watch(v1alpha1.SharedAPIResource, metav1.NamespaceAll, nil),
		crds:   watch(crdResource, metav1.NamespaceAll, nil),
		leases: watch(schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, v1alpha1.SystemNamespace,
			func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.MemberEndpointLabel }),
		roles:    watch(roleResource, metav1.NamespaceAll, collectors),
		bindings: watch(bindingResource, metav1.NamespaceAll, collectors),
		seen:     sightings{}, members: map[string]*member{}, verdicts: map[key]verdict{},
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
	for _, i := range []cache.SharedIndexInformer{c.shared, c.crds, c.leases, c.roles, c.bindings} {
		c.running.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	c.countServers()
	c.queue.Add(key{collectors: true})
	fleet.Work(ctx, c.queue, workers, c.reconcile, c.failed)
	return nil
}

func (c *controller) listen() error {
	if err := c.shared.SetTransform(fleet.Into[v1alpha1.SharedAPI]); err != nil {
		return err
	}
	if err := c.crds.SetTransform(slimCRD); err != nil {
		return err
	}
	every := func() { c.everyCluster() }
	if err := fleet.On(c.shared, func(was, is *v1alpha1.SharedAPI) {
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
	if err := fleet.On(c.crds, func(was, is *unstructured.Unstructured) {
		if was == nil || is == nil || !equality.Semantic.DeepEqual(was.Object, is.Object) {
			every()
		}
	}); err != nil {
		return err
	}
	if err := fleet.On(c.leases, func(_, _ *unstructured.Unstructured) { c.queue.Add(key{}) }); err != nil {
		return err
	}
	for _, i := range []cache.SharedIndexInformer{c.roles, c.bindings} {
		if err := fleet.On(i, func(_, _ *unstructured.Unstructured) { c.queue.Add(key{collectors: true}) }); err != nil {
			return err
		}
	}
	return c.OnCluster(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			is = was
		}
		c.queue.Add(key{cluster: is.Name})
		// One that comes, goes or is labelled may be chosen; of one whose authority
		// changes, others must know.
		if was == nil || was == is || !equality.Semantic.DeepEqual(was.Labels, is.Labels) {
			for _, s := range c.sharedAPIs() {
				c.queue.Add(key{shared: s.Name})
			}
		}
		if was != nil && !equality.Semantic.DeepEqual(was.Status.FrontProxy, is.Status.FrontProxy) {
			every()
		}
	})
}

// matters tells whether a change of a SharedAPI is any to the members: most are
// news from them.
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

// slimCRD keeps of a CRD what says which versions of its group are served, and that
// it has changed: the
// schemas of hundreds of them would be most of the memory.
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

func (c *controller) sharedAPIs() []*v1alpha1.SharedAPI { return list[v1alpha1.SharedAPI](c.shared) }

func list[T any](i cache.SharedIndexInformer) []*T {
	var out []*T
	for _, obj := range i.GetStore().List() {
		if t, ok := obj.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

func (c *controller) everyCluster() {
	for _, cluster := range c.Clusters() {
		c.queue.AddAfter(key{cluster: cluster.Name}, gather)
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
	if c.countServers() {
		c.everyCluster()
	}
	return nil
}

// countServers finds out which servers are there, and tells whether others were.
func (c *controller) countServers() (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	present := c.seen.live(list[unstructured.Unstructured](c.leases), c.Clock.Now())
	changed = !slices.Equal(present, c.present)
	c.present = present
	return changed
}

// servers gives those that a member is to call.
func (c *controller) servers(cluster string) []netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return near(c.present, cluster)
}

func (c *controller) failed(k key, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("cannot expose shared APIs; will try again", "cluster", k.cluster, "sharedapi", k.shared, "error", err)
	}
	return true
}
