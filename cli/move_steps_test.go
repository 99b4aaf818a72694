package cli

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// TestPrintSteps: a preview of a move shows each step, and of many the first ones and the last.
func TestPrintSteps(t *testing.T) {
	var out strings.Builder
	printSteps(&out, []scheduler.Step{{Clusters: "east 2, west 1"}, {Clusters: "east 1, west 1", WaitingFor: "PodDisruptionBudget web"}})
	if want := "\nSteps, each when the replicas of the one before are available:\n  1. east 2, west 1\n  2. east 1, west 1\n     waits for PodDisruptionBudget web\n"; out.String() != want {
		t.Errorf("it prints %q", out.String())
	}
	out.Reset()
	many := make([]scheduler.Step, 40)
	many[39].Clusters = "west 40"
	printSteps(&out, many)
	if text := out.String(); !strings.HasSuffix(text, "  … 27 more\n  40. west 40\n") || strings.Count(text, "\n") != mostStepsShown+4 {
		t.Errorf("it prints %q", text)
	}
}
