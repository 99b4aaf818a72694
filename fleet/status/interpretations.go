package status

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// runInterpretations sets the condition Valid of ResourceInterpretations, until ctx ends. Which
// of two duplicates is used depends on all of them, so a change of one queues all.
func (c *controller) runInterpretations(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[string](),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "fleet_customizations", Clock: c.Clock})
	defer queue.ShutDown()
	if err := c.Interpretations.OnChange(func(was, is *v1alpha1.ResourceInterpretation) {
		if was != nil && is != nil && was.UID == is.UID && was.Generation == is.Generation {
			return
		}
		for _, r := range c.Interpretations.All() {
			queue.Add(r.Name)
		}
	}); err != nil {
		return err
	}
	controllers.RunWorkers(ctx, queue, 1, fleet.Measured(c.Metrics, "customizations", c.reconcileInterpretation), func(name string, err error) bool {
		c.Log.Warn("status update of a ResourceInterpretation failed; retrying", "name", name, "error", err)
		return true
	})
	return nil
}

func (c *controller) reconcileInterpretation(ctx context.Context, name string) error {
	r, ok := c.Interpretations.Get(name)
	if !ok {
		return nil
	}
	condition := interpretationCondition(c.Kinds.CustomizationError(name))
	condition.ObservedGeneration = r.Generation
	condition.LastTransitionTime = metav1.NewTime(c.Clock.Now())
	if was := meta.FindStatusCondition(r.Status.Conditions, condition.Type); was != nil {
		if was.Status == condition.Status {
			condition.LastTransitionTime = was.LastTransitionTime
		}
		if *was == condition {
			return nil
		}
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", condition.Type, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceInterpretation",
		"metadata": map[string]any{"name": r.Name, "uid": string(r.UID)},
		"status":   map[string]any{"conditions": []any{u}, "observedGeneration": r.Generation},
	}}
	_, err = c.Dynamic.Resource(v1alpha1.ResourceInterpretationResource).
		ApplyStatus(ctx, r.Name, apply, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("write the status of ResourceInterpretation %s: %w", r.Name, err)
	}
	return nil
}

func interpretationCondition(wrong error) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.InterpretationValid, Status: metav1.ConditionTrue,
		Reason: v1alpha1.InterpretationUnderstood, Message: "the interpretation is in use"}
	if wrong == nil {
		return c
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.InterpretationInvalid, wrong.Error()
	if twice := (*interpret.DuplicateCustomizationError)(nil); errors.As(wrong, &twice) {
		c.Reason = v1alpha1.InterpretationDuplicate
	}
	return c
}
