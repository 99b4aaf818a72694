package status

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// writeStatus applies the whole status: no other controller of the control plane runs the
// object. The UID prevents writing the status to another object of the same name.
func (c *controller) writeStatus(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, status map[string]any) error {
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.GroupVersion().String(), "kind": k.GroupVersionKind.Kind,
		"metadata": identity(obj),
		"status":   status,
	}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()), apply, FieldManager); err != nil {
		return fmt.Errorf("write status of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

func identity(obj *unstructured.Unstructured) map[string]any {
	out := map[string]any{"name": obj.GetName(), "uid": string(obj.GetUID())}
	if obj.GetNamespace() != "" {
		out["namespace"] = obj.GetNamespace()
	}
	return out
}

// summariseBinding updates the binding's conditions and printed columns.
func (c *controller) summariseBinding(ctx context.Context, b *v1alpha1.ResourceBinding) error {
	marks, stale, marked := c.staleEntries(b)
	applied, healthy, ready := summarize(b, stale)
	placed := placedOn(b)
	current := true
	conditions := make([]any, 0, 2)
	for _, condition := range []metav1.Condition{applied, healthy} {
		was := meta.FindStatusCondition(b.Status.Conditions, condition.Type)
		condition.LastTransitionTime = metav1.NewTime(c.Clock.Now())
		if was != nil && was.Status == condition.Status {
			condition.LastTransitionTime = was.LastTransitionTime
		}
		if was == nil || *was != condition {
			current = false
		}
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&condition)
		if err != nil {
			return fmt.Errorf("encode condition %s: %w", condition.Type, err)
		}
		conditions = append(conditions, u)
	}
	if current && marked && b.Status.Placed == placed && b.Status.Ready == ready {
		return nil
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": v1alpha1.BindingKind(b.Namespace),
		"metadata": fleet.BindingIdentity(b),
		"status":   map[string]any{"conditions": conditions, "placed": placed, "ready": ready},
	}}
	if len(marks) > 0 {
		apply.Object["status"].(map[string]any)["clusters"] = marks
		// If an entry was removed meanwhile, its mark would create one that lacks required
		// fields.
		apply.SetResourceVersion(b.ResourceVersion)
	}
	if err := fleet.ApplyStatus(ctx, c.BindingAPI(b.Namespace), apply, FieldManager); err != nil {
		return fmt.Errorf("write the status of binding %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// staleEntries returns the entries of unreachable clusters: the marks to apply, the message for
// each cluster, and whether the binding has all marks already. Other fields of an entry belong
// to its syncer.
func (c *controller) staleEntries(b *v1alpha1.ResourceBinding) (marks []any, why map[string]string, marked bool) {
	marks, why, marked = []any{}, map[string]string{}, true
	for _, state := range b.Status.Clusters {
		stale, sentence := c.stale(state.Name)
		if stale != nil && stale.Since.IsZero() {
			stale.Since = state.LastUpdateTime
		}
		marked = marked && equality.Semantic.DeepEqual(stale, state.Stale)
		if stale == nil {
			continue
		}
		why[state.Name] = sentence
		marks = append(marks, map[string]any{"name": state.Name,
			"stale": map[string]any{"since": stale.Since.UTC().Format(time.RFC3339), "reason": stale.Reason}})
	}
	return marks, why, marked
}

// summarize computes the conditions from the chosen clusters' reports; stale reports count as
// unhealthy.
func summarize(b *v1alpha1.ResourceBinding, stale map[string]string) (applied, healthy metav1.Condition, ready string) {
	var unapplied, unwell []string
	degraded := false
	for _, share := range b.Spec.Clusters {
		state, reported := b.State(share.Name)
		switch {
		case !reported || state.UID == "" && state.Message == "":
			unapplied = append(unapplied, share.Name+": not applied yet")
		case state.Reason == v1alpha1.StateApplyFailed, state.Reason == v1alpha1.StateForbidden, state.Reason == v1alpha1.StateConflict, state.Reason == v1alpha1.StateContested,
			state.Reason == v1alpha1.StateRemoving, state.UID == "":
			unapplied = append(unapplied, share.Name+": "+state.Message)
		}
		if why, is := stale[share.Name]; is {
			unwell = append(unwell, share.Name+": "+why)
		} else if state.Health != v1alpha1.Healthy {
			degraded = degraded || state.Health == v1alpha1.Degraded
			why := state.Message
			if why == "" {
				why = string(state.Health)
			}
			if why == "" {
				why = "not reported yet"
			}
			unwell = append(unwell, share.Name+": "+why)
		}
	}
	total := len(b.Spec.Clusters)
	applied = condition(v1alpha1.BindingApplied, "AppliedEverywhere", "NotApplied", total, unapplied)
	healthy = condition(v1alpha1.BindingHealthy, "HealthyEverywhere", "Progressing", total, unwell)
	if degraded {
		healthy.Reason = "Degraded"
	}
	applied.ObservedGeneration, healthy.ObservedGeneration = b.Generation, b.Generation
	return applied, healthy, fmt.Sprintf("%d/%d", total-len(unwell), total)
}

func condition(kind, good, bad string, total int, wrong []string) metav1.Condition {
	switch {
	case total == 0:
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "NotPlaced", Message: "placed on no cluster; see condition Scheduled"}
	case len(wrong) == 0:
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good, Message: fmt.Sprintf("in %d of %d clusters", total, total)}
	}
	const most = 5
	message := strings.Join(wrong[:min(most, len(wrong))], "; ")
	if len(wrong) > most {
		message += fmt.Sprintf("; and %d more", len(wrong)-most)
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: bad, Message: message}
}

// sameJSON compares objects as the API server would store them: it drops empty fields, and JSON
// numbers have no type.
func sameJSON(a, b map[string]any) bool {
	return equality.Semantic.DeepEqual(canonical(a), canonical(b))
}

func canonical(m map[string]any) map[string]any {
	data, err := json.Marshal(m)
	if err != nil {
		return nil
	}
	out := map[string]any{}
	if err := json.Unmarshal(data, &out); err != nil {
		return nil
	}
	for field, value := range out {
		if value == nil || value == float64(0) || value == "" {
			delete(out, field)
			continue
		}
		if inner, ok := value.(map[string]any); ok && len(inner) == 0 {
			delete(out, field)
		}
	}
	return out
}
