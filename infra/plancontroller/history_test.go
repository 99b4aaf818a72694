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
	add("carried out with a TTL", v1alpha1.PlanApplied, -3000)
	add("carried out long ago", v1alpha1.PlanApplied, -9*24*3600)
	add("without effect", v1alpha1.PlanApplied, -3000)
	apply := func(plan string, created int64, completed int) *v1alpha1.Apply {
		return &v1alpha1.Apply{Spec: v1alpha1.ApplySpec{Plan: plan}, Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplySucceeded, StartTime: at(completed - 1), CompletionTime: at(completed),
			Done: v1alpha1.PlanSummary{Create: created}}}
	}
	s.applies = []*v1alpha1.Apply{
		apply("carried out with a TTL", 1, -2000), apply("carried out long ago", 1, -8*24*3600), apply("without effect", 0, -2000),
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
	want := []string{"old0", "old1", "old2", "old3", "old4", "old5", "old6", "old7", "over", "carried out long ago", "without effect"}
	if !slices.Equal(names, want) || next != 10*time.Second {
		t.Errorf("got %v, next after %s", names, next)
	}
}

// TestAppliesWithoutEffectPushOutNoOthers: the Applies that changed something are kept, however many others follow.
func TestAppliesWithoutEffectPushOutNoOthers(t *testing.T) {
	s := &snapshot{}
	start := metav1.NewMicroTime(time.Unix(10_000, 0))
	add := func(name string, changes int64) {
		s.applies = append(s.applies, &v1alpha1.Apply{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplySucceeded, StartTime: &start, Done: v1alpha1.PlanSummary{Update: changes}}})
	}
	add("first", 1)
	for range keptApplies - 1 {
		add("change", 1)
	}
	for range keptApplies + 1 {
		add("no change", 0)
	}
	if expired := expiredApplies(s); len(expired) != 1 || expired[0].Name != "no change" {
		t.Errorf("%d expired: %v", len(expired), expired)
	}
	add("another change", 1)
	if expired := expiredApplies(s); len(expired) != 2 || expired[1].Name != "first" {
		t.Errorf("%d expired: %v", len(expired), expired)
	}
}
