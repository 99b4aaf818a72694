package cli

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// TestPrintStepsOfMoves: a preview shows the steps of one object one a line, and those of several in a line each.
func TestPrintStepsOfMoves(t *testing.T) {
	few := []scheduler.Step{{Clusters: "east 2, west 1"}, {Clusters: "east 1, west 1", WaitingFor: "PodDisruptionBudget web"}}
	many := make([]scheduler.Step, 40)
	for i := range many {
		many[i].Clusters = "east 1"
	}
	many[39].Clusters = "west 40"
	for name, tt := range map[string]struct {
		moved movedSteps
		want  string
	}{
		"none": {movedSteps{}, ""},
		"one":  {movedSteps{first: []objectSteps{{"Deployment shop/web", few}}}, "\nSteps, each when the replicas of the one before are available:\n  1. east 2, west 1\n  2. east 1, west 1\n     waits for PodDisruptionBudget web\n"},
		"several": {movedSteps{first: []objectSteps{{"Deployment shop/web", few}, {"Deployment shop/api", many}}, more: 7}, `
Steps, each when the replicas of the one before are available:
  Deployment shop/web: east 2, west 1 → east 1, west 1 (waits for PodDisruptionBudget web)
  Deployment shop/api: east 1 → east 1 → east 1 → east 1 → east 1 → … 34 more → west 40
  7 more objects move in the same way
`},
	} {
		var out strings.Builder
		if tt.moved.print(&out); out.String() != tt.want {
			t.Errorf("%s: it prints %q", name, out.String())
		}
	}
}
