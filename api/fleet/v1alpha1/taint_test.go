package v1alpha1

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTaintsOfAllSources: taints of users and of policies apply, equal ones as one that is as old as
// the oldest.
func TestTaintsOfAllSources(t *testing.T) {
	at := func(hour int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC)) }
	early := at(1)
	c := &Cluster{Spec: ClusterSpec{Taints: []Taint{
		{Key: "dated", Effect: TaintNoExecute, TimeAdded: &early},
		{Key: "seen", Effect: TaintNoExecute},
		{Key: "new", Effect: TaintNoExecute},
		{Key: "value", Value: "a", Effect: TaintNoSchedule},
	}}, Status: ClusterStatus{
		Taints: []ObservedTaint{{Key: "seen", Effect: TaintNoExecute, Since: at(3)}},
		PolicyTaints: []PolicyTaint{
			{Policy: "p", Key: "dated", Effect: TaintNoExecute, TimeAdded: at(2)},
			{Policy: "p", Key: "new", Effect: TaintNoExecute, TimeAdded: at(5)},
			{Policy: "p", Key: "only", Effect: TaintNoExecute, TimeAdded: at(6)},
			{Policy: "p", Key: "seen", Effect: TaintNoExecute, TimeAdded: at(2)},
			{Policy: "p", Key: "value", Value: "b", Effect: TaintNoSchedule, TimeAdded: at(2)},
			{Policy: "q", Key: "only", Effect: TaintNoExecute, TimeAdded: at(4)},
		}}}
	before := c.DeepCopy()
	var got []string
	for _, t := range c.TaintsWithTime() {
		line := t.Key + t.Value
		if t.TimeAdded != nil {
			line += fmt.Sprint(" ", t.TimeAdded.Hour())
		}
		got = append(got, line)
	}
	if want := "dated 1, seen 2, new 5, valuea, only 4, valueb"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
	if fmt.Sprint(before) != fmt.Sprint(c) {
		t.Error("the Cluster was changed")
	}
}
