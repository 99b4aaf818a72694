package cli

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestExplainTransition: atoll explain says how far an object is from its decision.
func TestExplainTransition(t *testing.T) {
	b := &v1alpha1.ResourceBinding{}
	b.Status.Transition = &v1alpha1.TransitionStatus{Cause: v1alpha1.CauseDrained, From: "east 4", To: "west 4", Phase: v1alpha1.PhaseWaiting, WaitingFor: "1 of 1 replicas to be available in west"}
	if transitionOf(b) != nil {
		t.Error("a transition that has ended is explained")
	}
	b.Spec.Transition = &v1alpha1.Transition{ID: "a"}
	var out strings.Builder
	(&explanation{Transition: transitionOf(b)}).printTransition(&out)
	if want := "In transition (Drained) from east 4 to west 4: Waiting for 1 of 1 replicas to be available in west\n"; out.String() != want {
		t.Errorf("it prints %q", out.String())
	}
	out.Reset()
	b.Status.Transition.Phase, b.Status.Transition.WaitingFor = v1alpha1.PhasePaused, "a user to resume it: `atoll resume deployment.apps/web -n shop`"
	(&explanation{Transition: transitionOf(b)}).printTransition(&out)
	if want := "west 4: Paused, waiting for a user to resume it: `atoll resume deployment.apps/web -n shop`\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("it prints %q", out.String())
	}
}
