// Package scaleschedules scales the targets of ScaleSchedules at their times, with the rights of each
// schedule's author. Package scaling decides; this one reads, writes and records events.
package scaleschedules

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/scaling"
)

// FieldManager owns the fields that schedules set, and the status of ScaleSchedules.
const FieldManager = "atoll-schedules"

const workers = 8

// maxWait bounds how long a schedule sleeps. A timer does not notice that the clock is set, or that
// the machine was suspended.
const maxWait = 10 * time.Minute

// byTarget indexes the schedules by the kind and name of their targets.
const byTarget = "target"

type controller struct {
	*fleet.Session
	schedules controllers.Cache[v1alpha1.ScaleSchedule]
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	// authors makes requests as the author in their context; see asAuthor.
	authors dynamic.Interface
	served  *servedTypes
}

// NewController returns a controller that reaches the control plane by a configuration with full
// rights, and impersonates the authors of schedules.
func NewController(config *rest.Config) fleet.Controller {
	return func(ctx context.Context, session *fleet.Session) error {
		authors, err := controllers.NewAsAuthor(config, FieldManager)
		if err != nil {
			return fmt.Errorf("scaleschedules: %w", err)
		}
		c := &controller{Session: session, authors: authors, served: newServedTypes(session),
			schedules: controllers.NewCache[v1alpha1.ScaleSchedule](session.Dynamic, v1alpha1.ScaleScheduleResource,
				controllers.CacheOptions{Indexers: cache.Indexers{byTarget: targetKeys}}),
			queue: workqueue.NewTypedRateLimitingQueueWithConfig(
				workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](200*time.Millisecond, 30*time.Second),
				workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "fleet_scale_schedules", Clock: session.Clock})}
		return c.run(ctx)
	}
}

func (c *controller) run(ctx context.Context) error {
	defer c.queue.ShutDown()
	if err := c.listen(); err != nil {
		return fmt.Errorf("scaleschedules: watch the control plane: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.schedules.Informer.RunWithContext(ctx)
	}()
	defer func() {
		stop()
		<-done
	}()
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "scale-schedules", c.reconcile), c.failed)
	return nil
}

func (c *controller) listen() error {
	if err := c.schedules.OnChange(func(was, is *v1alpha1.ScaleSchedule) {
		if is != nil && !reportsRetry(was, is) {
			c.queue.Add(types.NamespacedName{Namespace: is.Namespace, Name: is.Name})
		}
	}); err != nil {
		return err
	}
	// A target that appears or disappears changes the condition.
	return c.Objects.OnAnyChange(func(k interpret.KindInfo, was, is metav1.Object) {
		if was != nil && is != nil {
			return
		}
		obj := is
		if obj == nil {
			obj = was
		}
		for _, of := range c.schedules.By(byTarget, targetKey(obj.GetNamespace(), k.Group, k.Kind, obj.GetName())) {
			c.queue.Add(types.NamespacedName{Namespace: of.Namespace, Name: of.Name})
		}
	})
}

// reportsRetry reports whether a change is the controller's own report of an error that may pass. The
// next try waits for the queue's backoff.
func reportsRetry(was, is *v1alpha1.ScaleSchedule) bool {
	if was == nil || was.UID != is.UID || was.Generation != is.Generation {
		return false
	}
	condition := meta.FindStatusCondition(is.Status.Conditions, v1alpha1.ScaleScheduleReady)
	return is.Status.Run != nil || condition != nil && condition.Reason == v1alpha1.ReasonScaleRetrying
}

func (c *controller) failed(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		c.Log.Warn("reconcile of a schedule failed; retrying", "namespace", key.Namespace, "name", key.Name, "error", err)
	}
	return true
}

// reconcile runs the rules of a schedule that are due, and otherwise keeps its status up to date.
func (c *controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	of, exists := c.schedules.Get(key.String())
	if !exists || of.DeletionTimestamp != nil {
		return nil
	}
	schedule, errs := scaling.Compile(&of.Spec)
	if len(errs) > 0 {
		invalid := of.Status.DeepCopy()
		invalid.ObservedGeneration, invalid.NextScheduleTime, invalid.NextRule = of.Generation, nil, ""
		_, err := c.store(ctx, of, *invalid, ready(v1alpha1.ReasonScaleInvalid, "the schedule is invalid, and does nothing: "+errs.ToAggregate().Error()))
		return err
	}
	now := c.Clock.Now()
	d := schedule.Decide(of, now)
	if !d.Next.IsZero() {
		c.queue.AddAfter(key, min(d.Next.Sub(now), maxWait))
	}
	if len(d.Rules) > 0 {
		return c.execute(ctx, of, d)
	}
	return c.idle(ctx, of, d)
}

// idle writes the status of a schedule with nothing to do now.
func (c *controller) idle(ctx context.Context, of *v1alpha1.ScaleSchedule, d *scaling.Decision) error {
	condition := meta.FindStatusCondition(of.Status.Conditions, v1alpha1.ScaleScheduleReady)
	if !c.mayDiffer(of, condition) {
		_, err := c.store(ctx, of, d.Status, *condition, d.Ended...)
		return err
	}
	checked, unknown := c.check(ctx, of)
	if _, err := c.store(ctx, of, d.Status, checked, d.Ended...); err != nil {
		return err
	}
	return unknown
}

// mayDiffer reports whether a check may have another result than the condition.
func (c *controller) mayDiffer(of *v1alpha1.ScaleSchedule, condition *metav1.Condition) bool {
	if condition == nil || condition.ObservedGeneration != of.Generation || condition.Reason == v1alpha1.ReasonScaleRetrying {
		return true
	}
	gk := targetGroupKind(&of.Spec.Target)
	if _, known := c.Kinds.Get(gk); !known {
		return condition.Reason == v1alpha1.ReasonScaleInvalid
	}
	_, exists := c.Objects.Metadata(gk, types.NamespacedName{Namespace: of.Namespace, Name: of.Spec.Target.Name})
	return condition.Reason == v1alpha1.ReasonScaleInvalid || exists == (condition.Reason == v1alpha1.ReasonScaleNotFound)
}

// check returns the condition by a read and a dry run as the author. If the result is unknown, it also
// returns an error.
func (c *controller) check(ctx context.Context, of *v1alpha1.ScaleSchedule) (metav1.Condition, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	t, err := c.target(ctx, of)
	if err == nil {
		if _, err = t.values(ctx); err == nil {
			err = t.dryRun(ctx)
		}
	}
	return c.condition(of, err), unknown(err)
}
