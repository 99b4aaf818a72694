// Package volumepolicies writes the status of VolumePolicies: whether they are in effect. Package volumes decides which
// of them apply, and the scheduler follows that.
package volumepolicies

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// FieldManager owns the status of VolumePolicies.
const FieldManager = "atoll-volumes"

const workers = 1

type controller struct {
	*fleet.Session
	queue workqueue.TypedRateLimitingInterface[string] // names of policies
}

// Run runs the controller until ctx ends.
func Run(ctx context.Context, session *fleet.Session) error {
	c := &controller{Session: session, queue: workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, time.Minute),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "fleet_volume_policies", Clock: session.Clock})}
	defer c.queue.ShutDown()
	if err := c.Policies.Volumes.OnChange(c.changed); err != nil {
		return fmt.Errorf("volumepolicies: watch the control plane: %w", err)
	}
	controllers.RunWorkers(ctx, c.queue, workers, fleet.Measured(c.Metrics, "volume-policies", c.reconcile), c.failed)
	return nil
}

// changed queues all policies: each change may put others into effect, or overrule them.
func (c *controller) changed(was, is *v1alpha1.VolumePolicy) {
	if was != nil && is != nil && was.UID == is.UID && was.Generation == is.Generation {
		c.queue.Add(is.Name) // its status may have been changed by others
		return
	}
	for _, p := range c.Policies.Volumes.All() {
		c.queue.Add(p.Name)
	}
}

func (c *controller) failed(name string, err error) (again bool) {
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		c.Log.Warn("reconcile of a volume policy failed; retrying", "policy", name, "error", err)
	}
	return true
}

// reconcile writes the status of a policy.
func (c *controller) reconcile(ctx context.Context, name string) error {
	p, exists := c.Policies.Volumes.Get(name)
	if !exists {
		return nil
	}
	accepted := condition(p, volumes.Compile(c.Policies.Volumes.All()))
	accepted.ObservedGeneration, accepted.LastTransitionTime = p.Generation, metav1.NewTime(c.Clock.Now())
	if was := meta.FindStatusCondition(p.Status.Conditions, accepted.Type); was != nil && was.Status == accepted.Status {
		accepted.LastTransitionTime = was.LastTransitionTime
	}
	status := v1alpha1.VolumePolicyStatus{Conditions: []metav1.Condition{accepted}}
	if equality.Semantic.DeepEqual(status, p.Status) {
		return nil
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encode the status of VolumePolicy %s: %w", name, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "VolumePolicy",
		"metadata": map[string]any{"name": name, "uid": string(p.UID)}, "status": u}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(v1alpha1.VolumePolicyResource), apply, FieldManager); err != nil {
		return fmt.Errorf("write the status of VolumePolicy %s: %w", name, err)
	}
	return nil
}

// condition returns whether a policy is in effect among all policies.
func condition(p *v1alpha1.VolumePolicy, all *volumes.Policies) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.PlacementAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPolicyAccepted, Message: "the policy is in effect"}
	overruled, whole := all.Overruled(p)
	if len(overruled) == 0 {
		return out
	}
	const most = 10
	var by []string
	for _, o := range overruled[:min(most, len(overruled))] {
		class := o.Class
		if class == v1alpha1.AllStorageClasses {
			class = "all other classes"
		}
		by = append(by, fmt.Sprintf("%s by VolumePolicy %s", class, o.By))
	}
	text := strings.Join(by, ", ")
	if more := len(overruled) - len(by); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if out.Message = "the policy is in effect, but older policies decide about " + text; whole {
		out.Status, out.Reason = metav1.ConditionFalse, v1alpha1.ReasonPolicyOverruled
		out.Message = fmt.Sprintf("the policy has no effect, because older policies decide about %s: edit or delete one of them", text)
	}
	return out
}
