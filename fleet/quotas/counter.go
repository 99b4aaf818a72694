package quotas

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// countDelay is how long the counter waits for further changes of a namespace. Each count writes the
// quota, which delays the writes that are being admitted.
const countDelay = 200 * time.Millisecond

// counter counts what the objects of a namespace use.
type counter struct {
	*fleet.Session
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]

	mu sync.Mutex
	// deleted are the resource versions with which objects of namespaces with quotas were deleted, for
	// as long as an admitted write may refer to them.
	deleted map[seenKey]deletion
}

type seenKey struct {
	namespace string
	object    v1alpha1.QuotaObject
}

type deletion struct {
	revision int64
	at       time.Time
}

// Run counts the use of all quotas during a session.
func Run(ctx context.Context, session *fleet.Session) error {
	c := &counter{Session: session, deleted: map[seenKey]deletion{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](countDelay, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "fleet_quotas", Clock: session.Clock}),
	}
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return err
	}
	controllers.RunWorkers(ctx, c.queue, 2, fleet.Measured(session.Metrics, "quotas", c.reconcile), func(key types.NamespacedName, err error) bool {
		if !apierrors.IsConflict(err) { // a write was admitted at the same time
			c.Log.Warn("counting a quota failed; retrying", "namespace", key.Namespace, "name", key.Name, "error", err)
		}
		return true
	})
	return nil
}

// listen queues the quotas of each namespace in which something changes.
func (c *counter) listen() error {
	if err := c.Quotas.OnChange(func(_, is *v1alpha1.FleetQuota) {
		if is != nil {
			c.queue.AddAfter(types.NamespacedName{Namespace: is.Namespace, Name: is.Name}, countDelay)
		}
	}); err != nil {
		return err
	}
	c.Kinds.OnChange(func(k interpret.KindInfo) {
		for _, q := range c.Quotas.All() {
			c.queueQuotas(q.Namespace)
		}
	})
	if err := c.Objects.OnAnyChange(func(k interpret.KindInfo, was, is metav1.Object) {
		obj := is
		if is == nil {
			obj = was
			c.recordDeletion(obj.GetNamespace(), v1alpha1.QuotaObject{Group: k.Group, Kind: k.Kind, Name: obj.GetName()}, obj)
		} else if was != nil && was.GetUID() == is.GetUID() && fleet.OnlyStatusDiffers(was, is) {
			return
		}
		c.queueQuotas(obj.GetNamespace())
	}); err != nil {
		return err
	}
	return c.Bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
		b := is
		if is == nil {
			b = was
			c.recordDeletion(b.Namespace, v1alpha1.QuotaObject{Group: v1alpha1.Group, Kind: v1alpha1.BindingKind(b.Namespace), Name: b.Name}, b)
		} else if was != nil && was.UID == is.UID && was.Generation == is.Generation {
			return
		}
		c.queueQuotas(b.Namespace)
	})
}

func (c *counter) queueQuotas(namespace string) {
	if namespace == "" {
		return
	}
	for _, q := range c.Quotas.In(namespace) {
		c.queue.AddAfter(types.NamespacedName{Namespace: q.Namespace, Name: q.Name}, countDelay)
	}
}

// recordDeletion remembers the resource version of a deletion.
func (c *counter) recordDeletion(namespace string, object v1alpha1.QuotaObject, last metav1.Object) {
	if namespace == "" || len(c.Quotas.In(namespace)) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Clock.Now()
	for key, d := range c.deleted {
		if now.Sub(d.at) > 2*quota.Abandoned {
			delete(c.deleted, key)
		}
	}
	c.deleted[seenKey{namespace, object}] = deletion{quota.Revision(last.GetResourceVersion()), now}
}

// reconcile counts one quota.
func (c *counter) reconcile(ctx context.Context, key types.NamespacedName) error {
	q, found := c.Quotas.Get(key.String())
	if !found || q.DeletionTimestamp != nil {
		return nil
	}
	counted, err := c.count(q)
	valid := controllers.Condition(v1alpha1.QuotaValid, true, v1alpha1.QuotaCounted, "")
	if err != nil {
		valid = controllers.Condition(v1alpha1.QuotaValid, false, v1alpha1.QuotaInvalidSelector, err.Error()+": nothing that uses more is admitted until it is corrected")
	}
	status, again := quota.Count(q, counted, c.Clock.Now())
	valid.ObservedGeneration, valid.LastTransitionTime = q.Generation, metav1.NewTime(c.Clock.Now())
	meta.SetStatusCondition(&status.Conditions, valid)
	if again > 0 {
		c.queue.AddAfter(key, again)
	}
	if equality.Semantic.DeepEqual(status, q.Status) {
		return nil
	}
	return c.Quotas.WriteStatus(ctx, q, &status)
}

// count counts the objects that a quota selects.
func (c *counter) count(q *v1alpha1.FleetQuota) (quota.Counted, error) {
	out := quota.Counted{Uses: map[v1alpha1.QuotaObject]corev1.ResourceList{}, Seen: map[v1alpha1.QuotaObject]int64{}}
	for _, a := range q.Status.Admitted {
		written := quota.Written(a)
		out.Seen[written] = c.seen(q.Namespace, written)
	}
	if _, err := quota.Selects(q, nil); err != nil {
		return out, err
	}
	autoscalers := c.autoscalers(q.Namespace)
	catalog := c.Kinds.Catalog()
	for _, k := range c.Kinds.All() {
		if k.ClusterScoped {
			continue
		}
		for obj := range c.Objects.All(k.GroupKind(), q.Namespace) {
			if selected, err := quota.Selects(q, obj.GetLabels()); err != nil || !selected {
				continue
			}
			if pods, _ := k.Pods(obj); len(pods) == 0 || catalog.StaysHome(obj) != "" {
				continue
			}
			w := fleet.Workload{Kind: k, Object: obj, Autoscaler: autoscalers[v1alpha1.QuotaObject{Group: k.Group, Kind: k.Kind, Name: obj.GetName()}]}
			if b, bound := c.Bindings.Get(types.NamespacedName{Namespace: q.Namespace, Name: v1alpha1.BindingName(k.GroupKind(), obj.GetName())}); bound {
				w.Shares = b.Decided()
			}
			uses, _, err := w.Uses()
			if err != nil {
				c.Log.Warn("a workload cannot be counted in a quota", "namespace", q.Namespace, "kind", k.Kind, "name", obj.GetName(), "error", err)
				continue
			}
			out.Uses[w.QuotaObject()] = uses
		}
	}
	return out, nil
}

// autoscalers returns the autoscalers of a namespace by their targets.
func (c *counter) autoscalers(namespace string) map[v1alpha1.QuotaObject]*unstructured.Unstructured {
	out := map[v1alpha1.QuotaObject]*unstructured.Unstructured{}
	k, served := c.Kinds.Get(interpret.AutoscalerKind())
	if !served {
		return out
	}
	for obj := range c.Objects.All(k.GroupKind(), namespace) {
		targets, err := k.Follows(obj)
		if err != nil {
			continue
		}
		for _, t := range targets {
			out[v1alpha1.QuotaObject{Group: t.To.Group, Kind: t.To.Kind, Name: t.To.Name}] = obj
		}
	}
	return out
}

// seen returns the last resource version of an object that the caches have had.
func (c *counter) seen(namespace string, object v1alpha1.QuotaObject) int64 {
	c.mu.Lock()
	last := c.deleted[seenKey{namespace, object}].revision
	c.mu.Unlock()
	gk, name := schema.GroupKind{Group: object.Group, Kind: object.Kind}, types.NamespacedName{Namespace: namespace, Name: object.Name}
	if gk == (schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.BindingKind(namespace)}) {
		if b, found := c.Bindings.Get(name); found {
			return max(last, quota.Revision(b.ResourceVersion))
		}
		return last
	}
	if obj, found := c.Objects.Metadata(gk, name); found {
		return max(last, quota.Revision(obj.GetResourceVersion()))
	}
	return last
}
