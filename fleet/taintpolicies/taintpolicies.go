// Package taintpolicies adds the taints of ClusterTaintPolicies to Clusters, and removes them.
//
// The taints are recorded in Cluster.status.policyTaints, each with its policy, and not in the spec: so a
// user's taints cannot be confused with them, and applying a Cluster again does not remove them.
// Package taints decides; this one reads, writes and records events.
package taintpolicies

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ktypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/taints"
)

// FieldManager owns a Cluster's status.policyTaints, and the status of ClusterTaintPolicies.
const FieldManager = "atoll-taints"

const workers = 4

// key is a unit of reconciliation: a Cluster, or the status of a policy.
type key struct{ cluster, policy string }

type controller struct {
	*fleet.Session
	policies controllers.Cache[v1alpha1.ClusterTaintPolicy]
	queue    workqueue.TypedRateLimitingInterface[key]
	running  sync.WaitGroup

	mu       sync.Mutex
	compiled map[ktypes.UID]compiled
	// omitted counts, by cluster, the taints of the last TooManyTaints event.
	omitted map[string]int
}

// compiled is a policy at one generation.
type compiled struct {
	generation int64
	policy     *taints.Policy
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, session *fleet.Session) error {
	c := &controller{Session: session, compiled: map[ktypes.UID]compiled{}, omitted: map[string]int{},
		policies: controllers.NewCache[v1alpha1.ClusterTaintPolicy](session.Dynamic, v1alpha1.ClusterTaintPolicyResource, controllers.CacheOptions{}),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[key]{Name: "fleet_taint_policies", Clock: session.Clock})}
	return c.run(ctx)
}

func (c *controller) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer c.running.Wait()
	defer stop()
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return fmt.Errorf("taintpolicies: watch the control plane: %w", err)
	}
	c.running.Go(func() { c.policies.Informer.RunWithContext(ctx) })
	// A policy that has not been read seems to be deleted. So no taint is removed before all are read.
	if !cache.WaitForCacheSync(ctx.Done(), c.policies.Informer.HasSynced) {
		return nil
	}
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "taint-policies", c.reconcile), c.failed)
	return nil
}

func (c *controller) listen() error {
	if err := c.Clusters.OnChange(func(was, is *v1alpha1.Cluster) {
		if is != nil {
			c.queue.Add(key{cluster: is.Name})
		}
		if was == nil || is == nil { // a policy may name it
			for _, p := range c.policies.All() {
				c.queue.Add(key{policy: p.Name})
			}
		}
		if was != nil && is != nil && equality.Semantic.DeepEqual(was.Status.PolicyTaints, is.Status.PolicyTaints) {
			return
		}
		for _, cluster := range []*v1alpha1.Cluster{was, is} {
			for _, name := range policiesOf(cluster) {
				c.queue.Add(key{policy: name})
			}
		}
	}); err != nil {
		return err
	}
	// The informer's own objects: a policy that cannot be decoded is not in the cache.
	_, err := c.policies.Informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.enqueue(nil, obj) },
		UpdateFunc: c.enqueue,
		DeleteFunc: func(obj any) { c.enqueue(obj, nil) },
	})
	return err
}

// enqueue queues all clusters when a policy is added, changed or deleted.
func (c *controller) enqueue(was, is any) {
	before, _ := was.(*v1alpha1.ClusterTaintPolicy)
	after, _ := is.(*v1alpha1.ClusterTaintPolicy)
	if after != nil {
		c.queue.Add(key{policy: after.Name})
	}
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation {
		return
	}
	for _, cluster := range c.Clusters.All() {
		c.queue.Add(key{cluster: cluster.Name})
	}
}

func (c *controller) failed(k key, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("reconcile of taint policies failed; retrying", "cluster", k.cluster, "policy", k.policy, "error", err)
	}
	return true
}

func (c *controller) reconcile(ctx context.Context, k key) error {
	if k.policy != "" {
		return c.reconcilePolicy(ctx, k.policy)
	}
	return c.reconcileCluster(ctx, k.cluster)
}

// reconcileCluster writes the taints that the policies add to a cluster.
func (c *controller) reconcileCluster(ctx context.Context, name string) error {
	cluster, exists := c.Clusters.Get(name)
	if !exists || cluster.DeletionTimestamp != nil { // the leave decides about a leaving cluster's objects
		return nil
	}
	confirmed := placement.ObservedSince(cluster, c.Started)
	now := c.Clock.Now()
	d := taints.Decide(cluster, c.all(), confirmed, now)
	if !d.Next.IsZero() {
		c.queue.AddAfter(key{cluster: name}, d.Next.Sub(now))
	}
	c.reportOmitted(cluster, d.Omitted)
	if equality.Semantic.DeepEqual(d.Taints, cluster.Status.PolicyTaints) {
		return nil
	}
	if err := c.writeTaints(ctx, cluster, d.Taints); err != nil {
		return err
	}
	for _, change := range d.Changes {
		reason, verb := v1alpha1.EventTaintRemoved, "removed"
		if change.Added {
			reason, verb = v1alpha1.EventTaintAdded, "added"
		}
		t := change.Taint
		c.Events.Event(cluster, corev1.EventTypeNormal, reason,
			fmt.Sprintf("ClusterTaintPolicy %s %s the taint %s: %s", t.Policy, verb, t.String(), change.Why))
	}
	return nil
}

// reportOmitted records an event when the number of taints that exceed the limit changes.
func (c *controller) reportOmitted(cluster *v1alpha1.Cluster, omitted []v1alpha1.PolicyTaint) {
	c.mu.Lock()
	was := c.omitted[cluster.Name]
	if len(omitted) == 0 {
		delete(c.omitted, cluster.Name)
	} else {
		c.omitted[cluster.Name] = len(omitted)
	}
	c.mu.Unlock()
	if len(omitted) == 0 || len(omitted) == was {
		return
	}
	c.Events.Event(cluster, corev1.EventTypeWarning, v1alpha1.EventTooManyTaints,
		fmt.Sprintf("policies would add more than %d taints to the cluster. %d were not added, such as %s of ClusterTaintPolicy %s: delete policies, or restrict their clusters",
			v1alpha1.MaxPolicyTaints, len(omitted), omitted[0].String(), omitted[0].Policy))
}

// all returns all policies, compiled.
func (c *controller) all() []*taints.Policy {
	stored := c.policies.Informer.GetStore().List()
	out := make([]*taints.Policy, 0, len(stored))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.compiled) > 2*len(stored)+16 {
		clear(c.compiled) // most are of deleted policies
	}
	for _, obj := range stored {
		switch p := obj.(type) {
		case *v1alpha1.ClusterTaintPolicy:
			known, ok := c.compiled[p.UID]
			if !ok || known.generation != p.Generation {
				known = compiled{p.Generation, taints.Compile(p)}
				c.compiled[p.UID] = known
			}
			out = append(out, known.policy)
		case *unstructured.Unstructured:
			out = append(out, taints.Unreadable(p.GetName(), errors.New("the policy cannot be decoded")))
		}
	}
	return out
}

// writeTaints replaces the list of policies' taints. It returns a conflict if the Cluster has changed: the
// decision may be outdated. An empty list is written as such, in case another client owns the field, too.
func (c *controller) writeTaints(ctx context.Context, cluster *v1alpha1.Cluster, policyTaints []v1alpha1.PolicyTaint) error {
	list := make([]any, 0, len(policyTaints))
	for i := range policyTaints {
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&policyTaints[i])
		if err != nil {
			return fmt.Errorf("encode the taints of cluster %s: %w", cluster.Name, err)
		}
		list = append(list, u)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": cluster.Name, "uid": string(cluster.UID), "resourceVersion": cluster.ResourceVersion},
		"status":   map[string]any{"policyTaints": list},
	}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(v1alpha1.ClusterResource), apply, FieldManager); err != nil {
		return fmt.Errorf("write the taints of cluster %s: %w", cluster.Name, err)
	}
	return nil
}
