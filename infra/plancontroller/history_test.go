package plancontroller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

func TestExpiredPlans(t *testing.T) {
	now := time.Unix(10_000, 0)
	at := func(seconds int) *metav1.MicroTime {
		m := metav1.NewMicroTime(now.Add(time.Duration(seconds) * time.Second))
		return &m
	}
	ttl := int32(60)
	// Other plans do not push out an applied one.
	s := &snapshot{now: now, plans: []*v1alpha1.Plan{{ObjectMeta: metav1.ObjectMeta{Name: "carried out"}, Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanApplied}}}}
	for i := range 105 {
		s.plans = append(s.plans, &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("old%d", i)}, Status: v1alpha1.PlanStatus{Phase: v1alpha1.PlanPlanned}})
	}
	add := func(name string, phase v1alpha1.PlanPhase, completed int) {
		s.plans = append(s.plans, &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.PlanSpec{TTLSecondsAfterFinished: &ttl},
			Status: v1alpha1.PlanStatus{Phase: phase, CompletionTime: at(completed)}})
	}
	add("over", v1alpha1.PlanPlanned, -61)
	add("not yet", v1alpha1.PlanPlanned, -50)
	add("wanted", v1alpha1.PlanPlanned, -100)
	add("applied late", v1alpha1.PlanApplied, -100)
	s.applies = []*v1alpha1.Apply{
		{Spec: v1alpha1.ApplySpec{Plan: "carried out"}, Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplySucceeded, StartTime: at(-9000), CompletionTime: at(-8000)}},
		{Spec: v1alpha1.ApplySpec{Plan: "wanted"}, Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplyPending}},
		{Spec: v1alpha1.ApplySpec{Plan: "applied late"}, Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplySucceeded, CompletionTime: at(-30)}},
	}
	plans, next := expiredPlans(s)
	var names []string
	for _, p := range plans {
		names = append(names, p.Name)
	}
	// The plans added above are three of the hundred that are kept.
	want := []string{"old0", "old1", "old2", "old3", "old4", "old5", "old6", "old7", "over"}
	if !slices.Equal(names, want) || next != 10*time.Second {
		t.Errorf("got %v, next after %s", names, next)
	}
}
