package moving

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestJudgeDrain: a drain is done when its condition is Drained for this generation of the Cluster.
func TestJudgeDrain(t *testing.T) {
	condition := func(reason, message string, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ClusterDraining, Reason: reason, Message: message, ObservedGeneration: generation}}
	}
	for _, tt := range []struct {
		name       string
		drain      *v1alpha1.ClusterDrain
		conditions []metav1.Condition
		done       bool
		want       string // of the text or the error
		blocked    bool
	}{
		{"not begun", &v1alpha1.ClusterDrain{}, nil, false, "waiting for Atoll's leader", false},
		{"the condition is of an earlier drain", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDrained, "nothing is left", 6), false, "waiting for Atoll's leader", false},
		{"begun", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDraining, "3 of 9 objects left", 7), false, "3 of 9 objects left", false},
		{"without a generation", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDraining, "3 of 9 objects left", 0), false, "3 of 9 objects left", false},
		{"paused", &v1alpha1.ClusterDrain{Paused: true}, condition(v1alpha1.ReasonDrainPaused, "", 7), false, "--resume", false},
		{"just resumed", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDrainPaused, "", 7), false, "waiting for Atoll's leader", false},
		{"blocked", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDrainBlocked, "Deployment shop/web fits nowhere", 7), false, "Deployment shop/web fits nowhere", true},
		{"done", &v1alpha1.ClusterDrain{}, condition(v1alpha1.ReasonDrained, "nothing is left", 8), true, "nothing is left", false},
		{"ended", nil, condition(v1alpha1.ReasonDraining, "", 7), false, "ended by another client", false},
	} {
		c := &v1alpha1.Cluster{Spec: v1alpha1.ClusterSpec{Drain: tt.drain}, Status: v1alpha1.ClusterStatus{Conditions: tt.conditions}}
		c.Name = "east"
		done, text, err := judgeDrain(c, 7)
		var blocked *BlockedError
		if got := fmt.Sprint(text, err); done != tt.done || !strings.Contains(got, tt.want) || errors.As(err, &blocked) != tt.blocked {
			t.Errorf("%s: %t, %q; want %t, %q", tt.name, done, got, tt.done, tt.want)
		}
	}
}

// TestDrainPatch: settings that are not given keep their values, and only a drained cluster is paused.
func TestDrainPatch(t *testing.T) {
	yes, no, five := true, false, int32(5)
	for _, tt := range []struct {
		name    string
		drain   *v1alpha1.ClusterDrain
		options DrainOptions
		want    string
	}{
		{"begin", nil, DrainOptions{}, "map[] is drained <nil>"},
		{"begin slowly", nil, DrainOptions{Rate: &five, MaxInFlight: &five}, "map[maxInFlight:5 rate:5] is drained <nil>"},
		{"again", &v1alpha1.ClusterDrain{Rate: &five}, DrainOptions{}, "map[] is drained already <nil>"},
		{"pause", &v1alpha1.ClusterDrain{}, DrainOptions{Paused: &yes}, "map[paused:true] drain paused <nil>"},
		{"pause again", &v1alpha1.ClusterDrain{Paused: true}, DrainOptions{Paused: &yes}, "map[paused:true] drain already paused <nil>"},
		{"resume", &v1alpha1.ClusterDrain{Paused: true}, DrainOptions{Paused: &no}, "map[paused:false] drain resumed <nil>"},
		{"pause without a drain", nil, DrainOptions{Paused: &yes}, "map[]  cluster east is not drained: `atoll drain east` begins to drain it"},
	} {
		c := &v1alpha1.Cluster{Spec: v1alpha1.ClusterSpec{Drain: tt.drain}}
		c.Name = "east"
		drain, said, err := drainPatch(c, tt.options)
		if got := fmt.Sprint(drain, " ", said, " ", err); got != tt.want {
			t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
		}
	}
}
