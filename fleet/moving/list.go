package moving

import (
	"cmp"
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// InTransition is an object in transition between clusters.
type InTransition struct {
	Kind       string                   `json:"kind"`
	APIVersion string                   `json:"apiVersion"`
	Namespace  string                   `json:"namespace,omitempty"`
	Name       string                   `json:"name"`
	ID         string                   `json:"id"`
	Cause      string                   `json:"cause"`
	From       string                   `json:"from"`
	To         string                   `json:"to"`
	Phase      v1alpha1.TransitionPhase `json:"phase,omitempty"`
	WaitingFor string                   `json:"waitingFor,omitempty"`
	Since      metav1.Time              `json:"since"`
	StartTime  metav1.Time              `json:"startTime"`
	// Clusters are the clusters with the shares that are in effect and those of the goal.
	Clusters []ShareChange `json:"clusters"`
}

// Transitions lists the objects in transition of a namespace, or, with "", of all.
func (c *Client) Transitions(ctx context.Context, namespace string) ([]InTransition, error) {
	out := []InTransition{}
	err := c.eachBinding(ctx, namespace, func(b *v1alpha1.ResourceBinding) {
		if b.Spec.Transition != nil {
			out = append(out, inTransition(b))
		}
	})
	slices.SortFunc(out, func(a, b InTransition) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out, err
}

func inTransition(b *v1alpha1.ResourceBinding) InTransition {
	t, ref := b.Spec.Transition, b.Spec.Resource
	out := InTransition{Kind: ref.Kind, APIVersion: ref.APIVersion, Namespace: b.Namespace, Name: ref.Name, ID: t.ID, Cause: t.Cause,
		From: sharesText(t.From), To: sharesText(b.Spec.Goal), Since: t.ProgressTime, StartTime: t.StartTime, Clusters: changesOf(b)}
	if s := statusOf(b); s != nil {
		out.Phase, out.WaitingFor, out.Since = s.Phase, s.WaitingFor, s.Since
	}
	return out
}

// statusOf returns the status of the present transition; nil if the controller has not written it yet.
func statusOf(b *v1alpha1.ResourceBinding) *v1alpha1.TransitionStatus {
	if s := b.Status.Transition; s != nil && b.Spec.Transition != nil && s.ID == b.Spec.Transition.ID {
		return s
	}
	return nil
}
