package scheduler

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
)

// ReasonReplaced means that an object has been deleted and made again, and clusters still have the one before it.
const ReasonReplaced = "Replaced"

// replacedDelay is how long the removal of the object before may take until users are told.
const replacedDelay = 5 * time.Second

// Replaced returns the condition of an object whose binding is that of the object before it, which had the
// same name; nil if the binding is its own, or no cluster has anything of it.
func Replaced(obj metav1.Object, b *v1alpha1.ResourceBinding) *metav1.Condition {
	if b == nil || b.Spec.Resource.UID == obj.GetUID() || len(b.Status.Clusters) == 0 {
		return nil
	}
	var in []string
	why := ""
	for _, state := range b.Status.Clusters {
		in = append(in, state.Name)
		if why == "" && state.Message != "" {
			why = "; in " + state.Name + ", " + state.Message
		}
	}
	return &metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionFalse, Reason: ReasonReplaced,
		Message: fmt.Sprintf("the object with UID %s waits until the one before it (UID %s) is gone from %s%s", obj.GetUID(), b.Spec.Resource.UID, names.List(in), why)}
}

// awaitPredecessor tells for what a new object waits if the binding of the one before it stays for long.
func (s *scheduler) awaitPredecessor(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) error {
	if b.DeletionTimestamp == nil || len(b.Status.Clusters) == 0 {
		return nil // its deletion is an event
	}
	if rest := replacedDelay - s.Clock.Since(b.DeletionTimestamp.Time); rest > 0 {
		s.queue.AddAfter(refOf(k.GroupKind(), obj), rest)
		return nil
	}
	return s.applyCondition(ctx, obj, b, *Replaced(obj, b), b.Status.Proposal, b.Status.Transition, nil)
}
