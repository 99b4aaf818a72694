package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// bindingUpdate is the desired content of a binding.
type bindingUpdate struct {
	shares     []v1alpha1.ClusterShare
	requiredBy []v1alpha1.Requirer
	scaledBy   *v1alpha1.Requirer
	condition  metav1.Condition
	by         *v1alpha1.PolicyReference
	overrides  []v1alpha1.Override
	inputs     string
	why        string // why it differs from the previous one, in an event; "" if that is not to be said
	keep       bool
	depends    v1alpha1.DependencyPolicy
	suspend    bool
	drift      v1alpha1.DriftPolicy
	requested  []v1alpha1.RequestedRemoval
	adopted    []v1alpha1.PolicyVersion
	lazy       bool
	preemption *v1alpha1.Preemption
	evicted    []string // clusters that it leaves because they are unreachable
	degraded   []string // clusters that it leaves because it is not Healthy there
	left       []string // those, and clusters that give it back after it was evicted
	home       *v1alpha1.BindingHome
	fencing    *v1alpha1.BindingFencing
	preempted  string // what the object loses because it makes room for others; "" if nothing
	// result is the decision that the shares are of. Clusters change to it in steps. nil for followers, which change
	// with their users.
	result *Result
	// wantedReplicas: see ResourceBindingSpec.
	wantedReplicas int32
}

// setPolicy sets the policy's settings other than the clusters. For an invalid policy, the
// binding keeps its settings.
func (p *bindingUpdate) setPolicy(a *Result) {
	reference := a.Choice.Reference
	p.by, p.overrides, p.inputs = &reference, a.Overrides, a.Decision.Inputs
	p.adopted, p.lazy = a.Choice.Adopted, a.Choice.Lazy
	if a.Choice.Policy != nil {
		p.fencing = a.Choice.Policy.Fencing(&a.Request.Object)
		p.suspend, p.drift, p.keep, p.depends = a.Choice.Policy.Suspended(), a.Choice.Policy.Drift(), a.Choice.Policy.Keeps(), a.Choice.Policy.Dependencies()
	}
}

// write updates the binding if it differs from the update. b is nil if there is no binding yet.
func (s *scheduler) write(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p bindingUpdate) error {
	spec := v1alpha1.ResourceBindingSpec{
		Resource: v1alpha1.ObjectReference{APIVersion: k.GroupVersion().String(), Kind: k.GroupVersionKind.Kind,
			Name: obj.GetName(), UID: obj.GetUID(), Resource: k.Resource},
		Clusters: p.shares, RequiredBy: p.requiredBy, ScaledBy: p.scaledBy,
		Policy: p.by, Overrides: p.overrides, Inputs: p.inputs, Dependencies: p.depends, Keep: p.keep, Suspend: p.suspend, Drift: p.drift, RequestedRemovals: p.requested,
		Adopted: p.adopted, Preemption: p.preemption, WantedReplicas: p.wantedReplicas, Home: p.home, Fencing: p.fencing,
	}
	if p.lazy {
		spec.ObjectGeneration = obj.GetGeneration()
	}
	if b != nil && keepsDecision(p.condition.Reason) {
		spec.ScaledBy, spec.Fencing = b.Spec.ScaledBy, b.Spec.Fencing
		spec.Policy, spec.Inputs, spec.Suspend, spec.Drift, spec.Keep, spec.Dependencies = b.Spec.Policy, b.Spec.Inputs, b.Spec.Suspend, b.Spec.Drift, b.Spec.Keep, b.Spec.Dependencies
		spec.Adopted, spec.ObjectGeneration = b.Spec.Adopted, b.Spec.ObjectGeneration
	}
	spec, waits := s.holdForPlan(obj, b, spec, k.Placed || p.by != nil)
	if spec.Manual != nil {
		spec.Preemption = nil // nothing leaves for an object that may have to wait for a plan
	}
	var progress *v1alpha1.TransitionStatus
	var late *v1alpha1.ConsolidationStatus
	if p.result != nil && b != nil {
		if spec.Avoided = p.result.Avoided; keepsDecision(p.condition.Reason) {
			spec.Avoided = b.Spec.Avoided
		} else if waits == nil && len(p.degraded) > 0 {
			spec.Avoided = p.result.avoidDegraded(obj, s.snapshot(), b)
		}
		progress, late = s.step(p.result, k, obj, b, &spec), p.result.consolidationStatus()
	}
	if b == nil || !equality.Semantic.DeepEqual(b.Spec, spec) {
		written, err := s.applySpec(ctx, obj, b, spec)
		if err != nil {
			return err
		}
		if waits == nil {
			s.recordEvents(obj, b, p)
			s.recordPreemption(obj, b, p)
			s.recordFailovers(obj, b, p)
		}
		if b == nil {
			// The condition is set when the new binding arrives as an event. Otherwise another
			// decision before that would set it a second time, while the syncers, which start
			// at this moment, write to the same object.
			return nil
		}
		b = written
	}
	return s.applyCondition(ctx, obj, b, withAwaitsPlan(p.condition, waits), waits, progress, late)
}

func (s *scheduler) applySpec(ctx context.Context, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, spec v1alpha1.ResourceBindingSpec) (*v1alpha1.ResourceBinding, error) {
	desired := &v1alpha1.ResourceBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: v1alpha1.BindingKind(obj.GetNamespace())},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: obj.GetNamespace(), Finalizers: []string{v1alpha1.BindingFinalizer},
			Name: v1alpha1.BindingName(spec.Resource.GroupVersionKind().GroupKind(), obj.GetName()),
		},
		Spec: spec,
	}
	if b == nil {
		yes := true
		desired.OwnerReferences = []metav1.OwnerReference{{APIVersion: spec.Resource.APIVersion, Kind: spec.Resource.Kind,
			Name: obj.GetName(), UID: obj.GetUID(),
			// kubectl delete --cascade=foreground waits until no cluster has the object.
			BlockOwnerDeletion: &yes}}
		u, err := toUnstructured(desired)
		if err != nil {
			return nil, err
		}
		// Create, not apply: if there are two leaders for a moment, one must fail.
		return s.writeAssumed(nil, desired, func() (*v1alpha1.ResourceBinding, error) {
			out, err := s.BindingAPI(obj.GetNamespace()).Create(ctx, u, metav1.CreateOptions{FieldManager: FieldManager})
			return fromUnstructured(out, err, "create", desired.Name)
		})
	}
	return s.updateSpec(ctx, b, spec)
}

// updateSpec fails with a conflict if the decision is based on an outdated binding.
func (s *scheduler) updateSpec(ctx context.Context, b *v1alpha1.ResourceBinding, spec v1alpha1.ResourceBindingSpec) (*v1alpha1.ResourceBinding, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": b.UID, "resourceVersion": b.ResourceVersion},
		"spec": map[string]any{"clusters": orEmpty(spec.Clusters), "goal": orEmpty(spec.Goal), "transition": transitionPatch(spec.Transition), "avoided": orEmpty(spec.Avoided), "volumes": listPatch(spec.Volumes), "wantedReplicas": numberPatch(spec.WantedReplicas), "requiredBy": orEmpty(spec.RequiredBy),
			"scaledBy": spec.ScaledBy, "resource": spec.Resource,
			"policy": policyPatch(spec.Policy), "overrides": orEmpty(spec.Overrides), "inputs": orNull(spec.Inputs), "dependencies": orNull(spec.Dependencies), "preemption": spec.Preemption, "home": homePatch(spec.Home), "fencing": spec.Fencing, "keep": spec.Keep, "suspend": spec.Suspend, "drift": orNull(spec.Drift),
			"adopted": orEmpty(spec.Adopted), "objectGeneration": numberPatch(spec.ObjectGeneration),
			"requestedRemovals": orEmpty(spec.RequestedRemovals), "manual": manualPatch(b.Spec.Manual, spec.Manual), "approved": orNull(spec.Approved)},
	})
	if err != nil {
		return nil, err
	}
	desired := *b
	desired.Spec = spec
	return s.writeAssumed(b, &desired, func() (*v1alpha1.ResourceBinding, error) {
		out, err := s.BindingAPI(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		return fromUnstructured(out, err, "update", b.Name)
	})
}

// orEmpty converts nil to an empty list: in a merge patch both clear the field, but the schema
// of a list only allows the latter.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// listPatch converts an empty list to null, which clears the field.
func listPatch[T any](list []T) any {
	if len(list) == 0 {
		return nil
	}
	return list
}

// policyPatch includes all fields of a reference, because a merge patch keeps fields that it
// does not contain.
func policyPatch(p *v1alpha1.PolicyReference) any {
	if p == nil {
		return nil
	}
	out := map[string]any{"kind": p.Kind, "name": orNull(p.Name), "uid": orNull(p.UID), "why": p.Why, "generation": nil}
	if p.Generation != 0 {
		out["generation"] = p.Generation
	}
	return out
}

// manualPatch is policyPatch for ManualBindings. A merge patch also keeps the labels that it does not contain.
func manualPatch(was, is *v1alpha1.ManualBinding) any {
	if is == nil {
		return nil
	}
	labels := map[string]any{}
	if was != nil {
		for key := range was.Labels {
			labels[key] = nil
		}
	}
	for key, value := range is.Labels {
		labels[key] = value
	}
	return map[string]any{"content": orNull(is.Content), "labels": labels, "removal": is.Removal}
}

// transitionPatch is policyPatch for Transitions.
func transitionPatch(t *v1alpha1.Transition) any {
	if t == nil {
		return nil
	}
	return map[string]any{"id": t.ID, "cause": t.Cause, "from": orEmpty(t.From), "startTime": t.StartTime, "progressTime": t.ProgressTime}
}

// numberPatch converts 0 to null, which clears the field.
func numberPatch[T int32 | int64](n T) any {
	if n == 0 {
		return nil
	}
	return n
}

// orNull converts "" to null, which clears the field.
func orNull[T ~string](value T) any {
	if value == "" {
		return nil
	}
	return value
}

// applyCondition sets one condition, the proposal that waits for a plan, nil if none does, how far the object is on its
// way to its goal and to earlier groups of clusters, and the failovers.
// Other controllers own the other conditions. If obj is nil, no event is emitted.
func (s *scheduler) applyCondition(ctx context.Context, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, c metav1.Condition, waits *v1alpha1.BindingProposal, progress *v1alpha1.TransitionStatus, late *v1alpha1.ConsolidationStatus) error {
	was, failovers := meta.FindStatusCondition(b.Status.Conditions, c.Type), s.failovers.with(b)
	if was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message && equality.Semantic.DeepEqual(b.Status.Proposal, waits) &&
		equality.Semantic.DeepEqual(b.Status.Transition, progress) && equality.Semantic.DeepEqual(b.Status.Consolidation, late) && equality.Semantic.DeepEqual(b.Status.Failovers, failovers) {
		return nil
	}
	known := was != nil && was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message
	c.LastTransitionTime = metav1.NewTime(s.Clock.Now())
	if was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	c.ObservedGeneration = b.Generation
	u, err := toUnstructured(&c)
	if err != nil {
		return err
	}
	// One field manager applies all of them: a field that it omits is removed.
	status := map[string]any{"conditions": []any{u.Object}}
	for i := range failovers {
		record, err := toUnstructured(&failovers[i])
		if err != nil {
			return err
		}
		list, _ := status["failovers"].([]any)
		status["failovers"] = append(list, record.Object)
	}
	if waits != nil {
		proposal, err := toUnstructured(waits)
		if err != nil {
			return err
		}
		status["proposal"] = proposal.Object
	}
	if progress != nil {
		u, err := toUnstructured(progress)
		if err != nil {
			return err
		}
		status["transition"] = u.Object
	}
	if late != nil {
		u, err := toUnstructured(late)
		if err != nil {
			return err
		}
		status["consolidation"] = u.Object
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": v1alpha1.BindingKind(b.Namespace),
		"metadata": fleet.BindingIdentity(b),
		"status":   status,
	}}
	if err := fleet.ApplyStatus(ctx, s.BindingAPI(b.Namespace), apply, FieldManager); err != nil {
		return fmt.Errorf("set condition %s of binding %s/%s: %w", c.Type, b.Namespace, b.Name, err)
	}
	if c.Status == metav1.ConditionFalse && obj != nil && !known {
		s.Events.Event(obj, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	return nil
}

// recordEvents emits an event for a decision. Followers have the reason in their binding only.
func (s *scheduler) recordEvents(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p bindingUpdate) {
	if len(p.requiredBy) > 0 || len(p.shares) == 0 {
		return
	}
	is := describe(p.shares)
	if b == nil {
		s.Events.Event(obj, corev1.EventTypeNormal, "Scheduled", "Placed on "+is)
		return
	}
	if was := describe(b.Decided()); was != is {
		s.Events.Eventf(obj, corev1.EventTypeNormal, "Rescheduled", "Placed on %s (was: %s)%s", is, was, p.why)
	}
}

// recordPreemption emits events of both objects for room that is made.
func (s *scheduler) recordPreemption(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p bindingUpdate) {
	if p.preemption != nil && (b == nil || b.Spec.Preemption == nil || !b.Spec.Preemption.Time.Equal(&p.preemption.Time)) {
		s.Events.Event(obj, corev1.EventTypeNormal, "Preempting", strings.TrimPrefix(preemptionMessage(p.preemption), "; "))
		s.Config.Metrics.preempted(p.preemption)
	}
	if p.preempted != "" {
		s.Events.Event(obj, corev1.EventTypeNormal, placement.ReasonPreempted, p.preempted)
	}
}

// describe formats a decision in one line: east 4, west 3.
func describe(shares []v1alpha1.ClusterShare) string {
	if len(shares) == 0 {
		return "no cluster"
	}
	parts := make([]string, 0, len(shares))
	for _, c := range shares {
		part := c.Name
		if c.Replicas != nil {
			part += fmt.Sprintf(" %d", *c.Replicas)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (s *scheduler) deleteBinding(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	err := s.BindingAPI(b.Namespace).Delete(ctx, b.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// setFinalizers fails with a conflict if the binding has changed since it was read: a syncer
// may just be writing to a cluster.
func (s *scheduler) setFinalizers(ctx context.Context, b *v1alpha1.ResourceBinding, finalizers []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": b.UID, "resourceVersion": b.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return err
	}
	_, err = s.BindingAPI(b.Namespace).Patch(ctx, b.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

func toUnstructured(v any) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return &unstructured.Unstructured{Object: m}, nil
}

func fromUnstructured(u *unstructured.Unstructured, err error, verb, name string) (*v1alpha1.ResourceBinding, error) {
	if err != nil {
		return nil, fmt.Errorf("%s binding %s: %w", verb, name, err)
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return nil, fmt.Errorf("decode binding %s: %w", name, err)
	}
	return b, nil
}
