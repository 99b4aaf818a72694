package scheduler

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// Step is one step of a transition, as a preview shows it.
type Step struct {
	Phase v1alpha1.TransitionPhase `json:"phase"`
	// Clusters have these shares after the step, in readable form.
	Clusters string `json:"clusters"`
	// WaitingFor is set if the transition would rest here.
	WaitingFor string `json:"waitingFor,omitempty"`
}

// Steps returns the steps that an object goes to the decision of the state, if all clusters run their shares. It returns
// nil if there is only one.
func (s *State) Steps(snap *Snapshot, k interpret.KindInfo, obj *unstructured.Unstructured) (out []Step) {
	b := s.Binding(k, obj.GetNamespace(), obj.GetName())
	if b == nil || !k.Placed {
		return nil
	}
	a := snap.Schedule(k, obj, b)
	if a.Choice.Err != nil {
		return nil
	}
	spec := b.Spec
	spec.Clusters, spec.ScaledBy = a.Shares, a.scaledBy()
	in := snap.stepInput(&a, k, obj, b, &spec)
	settings, err := transition.ObjectSettings(obj.GetAnnotations()[v1alpha1.TransitionAnnotation])
	if err != nil {
		settings = v1alpha1.ObjectTransition{} // an event of the object reports it
	}
	in.Limits = transition.LimitsFor(in.Wanted, &settings.TransitionPolicy, a.Choice.Policy.Transition(), snap.Policies.DefaultTransition())
	in.Floor = s.floor(k, obj, in.Wanted)
	steps := transition.Steps(in)
	if len(steps) < 2 {
		return nil
	}
	for _, step := range steps {
		shown := Step{Phase: step.Phase, Clusters: describe(effectiveShares(b, a.Leaving, a.Shares, step.Next))}
		switch {
		case step.Done:
			shown.Phase, shown.Clusters = "", describe(a.Shares)
		case step.Phase == v1alpha1.PhaseWaiting || step.Phase == v1alpha1.PhaseFailed:
			shown.WaitingFor = step.WaitingFor
		}
		out = append(out, shown)
	}
	return out
}

// floor returns what the disruption budgets of an object's namespace require of it. The replicas of other objects count
// as available.
func (s *State) floor(k interpret.KindInfo, obj *unstructured.Unstructured, wanted int32) transition.Floor {
	pods := podLabels(obj)
	var budgets []transition.Budget
	for _, budget := range s.disruptionBudgets[obj.GetNamespace()] {
		content, _, _ := unstructured.NestedMap(budget.Object, "spec", "selector")
		selector := metav1.LabelSelector{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &selector); err != nil {
			continue // the API server has validated it
		}
		selects, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil || content == nil || pods == nil || !selects.Matches(pods) {
			continue
		}
		budgets = append(budgets, transition.Budget{Name: strings.TrimSpace(budget.GetName()), MinAvailable: intOrPercent(budget, "minAvailable"), MaxUnavailable: intOrPercent(budget, "maxUnavailable")})
	}
	return transition.FloorOf(wanted, budgets)
}

// podLabels returns the labels of an object's pods; nil if it has no template of them.
func podLabels(obj *unstructured.Unstructured) labels.Set {
	set, found, err := unstructured.NestedStringMap(obj.Object, "spec", "template", "metadata", "labels")
	if err != nil || !found {
		return nil
	}
	return set
}
