// Package status aggregates the reports of clusters on an object into the object's own status, and
// keeps the records of its revisions, so that clients need not know about clusters.
package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/workqueue"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// FieldManager owns the status of placed objects and the summary of a ResourceBinding.
const FieldManager = fleet.StatusManager

const (
	workers = 8
	// batchWindow is how long a report is delayed so that those of other clusters are batched.
	batchWindow = 20 * time.Millisecond
	// reportInterval is the minimum time between two summaries of a binding that is still
	// progressing. Healthy and degraded states are written at once.
	reportInterval = 500 * time.Millisecond
)

type controller struct {
	*fleet.Session
	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// records is nil if the control plane serves no StatefulSets and DaemonSets.
	records *records

	mu sync.Mutex
	// progressing is the time of the last summary of each progressing binding, or when it was
	// first seen.
	progressing map[types.NamespacedName]time.Time
}

// Run runs the status controller as a controller of the fleet.
func Run(ctx context.Context, session *fleet.Session) error {
	c := &controller{Session: session, progressing: map[types.NamespacedName]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, time.Minute),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "fleet_status", Clock: session.Clock}),
	}
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if _, served := session.Kinds.Get(schema.GroupKind{Group: "apps", Kind: "StatefulSet"}); served {
		c.records = newRecords(session.Dynamic)
		if err := c.listenToRecords(); err != nil {
			return err
		}
		group.Go(func() error { return c.runRecords(ctx) })
		if !c.awaitRecords(ctx) {
			return group.Wait()
		}
	}
	group.Go(func() error { return c.runInterpretations(ctx) })
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "status", c.reconcile), c.onFailure)
	return group.Wait()
}

func (c *controller) listen() error {
	enqueue := func(b *v1alpha1.ResourceBinding) {
		c.queue.AddAfter(b.Key(), batchWindow)
	}
	if err := c.Bindings.OnChange(func(was, is *v1alpha1.ResourceBinding) {
		if is == nil {
			c.summaryDelay(was.Key(), false)
			return
		}
		enqueue(is)
	}); err != nil {
		return err
	}
	// A new generation, or a status that another client wrote. Objects without a binding are
	// ignored; a new binding is an event.
	if err := c.Objects.OnAnyChange(func(k interpret.KindInfo, was, is metav1.Object) {
		if owner, changed := recordChanged(was, is); changed {
			if b, bound := c.Bindings.Get(owner); bound {
				enqueue(b)
			}
		}
		if is == nil {
			return
		}
		if b, bound := c.Bindings.Get(types.NamespacedName{Namespace: is.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), is.GetName())}); bound {
			enqueue(b)
		}
	}); err != nil {
		return err
	}
	c.OnAnswer(func(q interpret.Question) {
		if q.Operation != v1alpha1.AggregateStatus && q.Operation != v1alpha1.InterpretReplica {
			return
		}
		if b, bound := c.BindingAbout(q); bound {
			enqueue(b)
		}
	})
	c.Kinds.OnChange(func(k interpret.KindInfo) {
		for _, b := range c.Bindings.Of(k.GroupKind()) {
			enqueue(b)
		}
	})
	return c.Clusters.OnChange(func(was, is *v1alpha1.Cluster) {
		if was == nil || is != nil && staleMessage(was) == staleMessage(is) {
			return
		}
		for _, b := range c.Bindings.On(was.Name) {
			enqueue(b)
		}
	})
}

func (c *controller) onFailure(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		c.Log.Warn("status update failed; retrying", "binding", key.String(), "error", err)
	}
	return true
}

func (c *controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	b, ok := c.Bindings.Get(key)
	if !ok {
		c.summaryDelay(key, false)
		return nil
	}
	// If the kind is not served now, there is no object to write to; the binding is summarized
	// all the same.
	k, served := c.Kinds.Get(b.Spec.Resource.GroupVersionKind().GroupKind())
	obj, exists := c.Objects.Get(k.GroupKind(), b.ObjectName())
	exists = exists && obj.GetUID() == b.Spec.Resource.UID
	if !exists && b.DeletionTimestamp != nil {
		return nil // no longer read, and each further write would delay the removal
	}
	if wait := c.summaryDelay(key, isProgressing(b, func(cluster string) bool { stale, _ := c.stale(cluster); return stale != nil })); wait > 0 {
		c.queue.AddAfter(key, wait)
		return nil
	}
	var err error
	// The binding is written last: a client that reads there that all is well may read the
	// object's status next.
	if exists && served && c.Kinds.HasStatus(k.GroupKind()) && !isKeptAbove(k, obj) {
		err = c.summariseObject(ctx, k, obj, b)
	}
	if exists && served {
		err = errors.Join(err, c.rescale(ctx, k, obj, b))
		c.enqueueTargets(k, obj)
	}
	return errors.Join(err, c.summariseBinding(ctx, b))
}

// isKeptAbove reports whether another controller keeps the status of a custom resource here. The two would
// take turns otherwise.
func isKeptAbove(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return !fleet.Native(k.GroupKind()) && interpret.StatusContender(obj) != ""
}

// reasonWaitingForWebhook is the reason of the event about an object whose status a webhook does not summarize.
const reasonWaitingForWebhook = "WaitingForWebhook"

// summariseObject updates the object's own status.
func (c *controller) summariseObject(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	members, err := c.members(b)
	if err != nil {
		return err
	}
	status, ok, err := k.Aggregate(obj, members)
	if interpret.IsWaiting(err) {
		// The previous status stays. The answer causes another summary.
		if !interpret.IsPending(err) {
			c.Events.Event(obj, corev1.EventTypeWarning, reasonWaitingForWebhook, err.Error())
		}
		return nil
	}
	if err != nil || !ok {
		return err
	}
	// Before the status: a client that reads there that a rollout is complete may read the newest
	// ReplicaSet next.
	recorded := c.recordHistory(ctx, k, obj, status)
	was, _, _ := unstructured.NestedMap(obj.Object, "status")
	if sameJSON(was, status) {
		return recorded
	}
	return errors.Join(recorded, c.writeStatus(ctx, k, obj, status))
}

// isProgressing reports whether the only news about a binding is that its clusters are still
// working on it.
func isProgressing(b *v1alpha1.ResourceBinding, stale func(cluster string) bool) bool {
	working := false
	for _, share := range b.Spec.Clusters {
		state, reported := b.State(share.Name)
		switch {
		case stale(share.Name), state.Stale != nil:
			return false
		case !reported, state.Reason == v1alpha1.StateApplying, state.Reason == "" && state.Health == v1alpha1.Progressing:
			working = true
		case state.Reason != "" || state.Health == v1alpha1.Degraded:
			return false
		}
	}
	return working
}

// summaryDelay returns how long to delay the summary of a progressing binding.
func (c *controller) summaryDelay(key types.NamespacedName, progressing bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !progressing {
		delete(c.progressing, key)
		return 0
	}
	now := c.Clock.Now()
	since, known := c.progressing[key]
	if known && now.Sub(since) >= reportInterval {
		c.progressing[key] = now
		return 0
	}
	if !known {
		c.progressing[key] = now
		return reportInterval
	}
	return reportInterval - now.Sub(since)
}

// members returns the reports of the chosen clusters. A cluster without a report is included
// with an empty one.
func (c *controller) members(b *v1alpha1.ResourceBinding) ([]interpret.MemberStatus, error) {
	out := make([]interpret.MemberStatus, 0, len(b.Spec.Clusters))
	for _, share := range b.Spec.Clusters {
		_, why := c.stale(share.Name)
		m, err := memberOf(b, share, why)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// memberOf returns one cluster's report; stale is the reason why it may be outdated, "" if it
// is current.
func memberOf(b *v1alpha1.ResourceBinding, share v1alpha1.ClusterShare, stale string) (interpret.MemberStatus, error) {
	m := interpret.MemberStatus{Cluster: share.Name, Replicas: share.Replicas, Stale: stale, Autoscaled: b.Spec.ScaledBy != nil}
	state, reported := b.State(share.Name)
	if reported {
		m.Generation, m.Health = state.Generation, state.Health
		m.Current = state.UID != "" && isApplied(state.Reason) && m.Stale == "" &&
			state.ObservedGeneration >= state.MemberGeneration && equalShares(state.Replicas, share.Replicas)
	}
	if state.Status != nil {
		// Not encoding/json: whole numbers stay int64, as in the object itself.
		if err := utiljson.Unmarshal(state.Status.Raw, &m.Status); err != nil {
			return m, fmt.Errorf("decode the status reported by cluster %s: %w", share.Name, err)
		}
	}
	return m, nil
}

func equalShares(a, b *int32) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// isApplied reports whether the cluster runs the last applied state.
func isApplied(reason string) bool {
	return reason == "" || reason == v1alpha1.StateDrifted || reason == v1alpha1.StateUnwatched
}

// stale returns since when a cluster's reports may be outdated, and a message; nil if they are
// current.
func (c *controller) stale(cluster string) (*v1alpha1.Staleness, string) {
	known, ok := c.Clusters.Get(cluster)
	if !ok {
		return &v1alpha1.Staleness{Reason: "Left"}, "has left the fleet"
	}
	return staleness(known)
}

func staleMessage(c *v1alpha1.Cluster) string {
	_, why := staleness(c)
	return why
}

func staleness(c *v1alpha1.Cluster) (*v1alpha1.Staleness, string) {
	for _, condition := range c.Status.Conditions {
		if condition.Type != v1alpha1.ClusterReady || condition.Status == "True" {
			continue
		}
		switch condition.Reason {
		case v1alpha1.ReasonClusterNotReady:
			return nil, "" // it responds, so its reports are current
		case v1alpha1.ReasonClusterStatusUnknown:
			return &v1alpha1.Staleness{Since: condition.LastTransitionTime, Reason: condition.Reason}, "not probed yet"
		}
		return &v1alpha1.Staleness{Since: condition.LastTransitionTime, Reason: condition.Reason},
			fmt.Sprintf("unreachable since %s (%s); last known figures do not count as ready",
				condition.LastTransitionTime.UTC().Format(time.RFC3339), condition.Reason)
	}
	return nil, ""
}

// placedOn lists the clusters for display, shortened if there are many.
func placedOn(b *v1alpha1.ResourceBinding) string {
	const most = 4
	names := make([]string, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		names = append(names, c.Name)
	}
	if len(names) > most {
		return strings.Join(slices.Concat(names[:most-1], []string{fmt.Sprintf("%d more", len(names)-most+1)}), ",")
	}
	return strings.Join(names, ",")
}
