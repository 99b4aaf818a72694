package workspaces

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestBudgetStatus: the status of a budget is what the disruption controller of Kubernetes would write.
func TestBudgetStatus(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	pod := func(name string, ready corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}}
	}
	leaving := pod("leaving", corev1.ConditionTrue)
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	pods := []corev1.Pod{pod("a", corev1.ConditionTrue), pod("b", corev1.ConditionTrue), pod("c", corev1.ConditionTrue), pod("unready", corev1.ConditionFalse), leaving}
	number, percent := intstr.FromInt32(2), intstr.FromString("50%")
	for name, c := range map[string]struct {
		min, max           *intstr.IntOrString
		expected           int32
		disrupted          map[string]time.Duration
		cause              error
		healthy, allowed   int32
		desired, remaining int
	}{
		"a number":                        {min: &number, expected: 5, healthy: 3, desired: 2, allowed: 1},
		"a percentage":                    {min: &percent, expected: 5, healthy: 3, desired: 3},
		"a maximum":                       {max: &number, expected: 4, healthy: 3, desired: 2, allowed: 1},
		"a maximum of all":                {max: ptr.To(intstr.FromInt32(9)), expected: 4, healthy: 3, allowed: 3},
		"one is evicted":                  {min: &number, expected: 5, disrupted: map[string]time.Duration{"a": time.Minute}, healthy: 2, desired: 2, remaining: 1},
		"one was evicted and stays":       {min: &number, expected: 5, disrupted: map[string]time.Duration{"a": 3 * time.Minute}, healthy: 3, desired: 2, allowed: 1},
		"those that are gone":             {min: &number, expected: 5, disrupted: map[string]time.Duration{"x": time.Second, "leaving": time.Second}, healthy: 3, desired: 2, allowed: 1},
		"no pod is expected":              {max: &number, healthy: 3},
		"neither a minimum nor a maximum": {healthy: 3},
		"the scale is not known":          {max: &number, cause: errors.New("no scale"), healthy: 3},
		"not a percentage":                {max: ptr.To(intstr.FromString("many")), expected: 4, healthy: 3},
	} {
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 7}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: c.min, MaxUnavailable: c.max},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{}}}
		for name, ago := range c.disrupted {
			budget.Status.DisruptedPods[name] = metav1.Time{Time: now.Add(-ago)}
		}
		got := budgetStatus(budget, pods, c.expected, c.cause, now)
		if got.CurrentHealthy != c.healthy || got.DesiredHealthy != int32(c.desired) || got.DisruptionsAllowed != c.allowed || len(got.DisruptedPods) != c.remaining ||
			got.ObservedGeneration != 7 || len(got.Conditions) != 1 || (got.Conditions[0].Status == metav1.ConditionTrue) != (c.allowed > 0) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestExpectedPods: controllers count once each, and pods without one only for an absolute minimum.
func TestExpectedPods(t *testing.T) {
	owned := func(uid string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: types.UID(uid), Controller: ptr.To(true)}}}}
	}
	pods := []corev1.Pod{owned("one"), owned("one"), owned("two"), {}}
	scale := func(of metav1.OwnerReference) (int32, error) {
		return map[types.UID]int32{"one": 3, "two": 4}[of.UID], nil
	}
	number, percent := intstr.FromInt32(2), intstr.FromString("50%")
	for name, c := range map[string]struct {
		min, max *intstr.IntOrString
		want     int32
	}{"a number": {min: &number, want: 4}, "a percentage": {min: &percent, want: 7}, "a maximum": {max: &number, want: 7}, "nothing": {}} {
		budget := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: c.min, MaxUnavailable: c.max}}
		if got, err := expectedPods(budget, pods, scale); err != nil || got != c.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, c.want)
		}
	}
	failing := func(metav1.OwnerReference) (int32, error) { return 0, errors.New("no scale") }
	if _, err := expectedPods(&policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &number}}, pods, failing); err == nil {
		t.Error("a scale that is not known is taken for 0")
	}
}
