package cli

import (
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// mostStepsShown bounds the list of steps: an object with many replicas makes many that are alike.
const mostStepsShown = 12

// printSteps prints how an object gets to its decision.
func printSteps(out io.Writer, steps []scheduler.Step) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprint(out, "\nSteps, each when the replicas of the one before are available:\n")
	for i, step := range steps {
		last := i == len(steps)-1
		if i >= mostStepsShown && !last {
			continue
		}
		if i > mostStepsShown && last {
			fmt.Fprintf(out, "  … %d more\n", i-mostStepsShown)
		}
		fmt.Fprintf(out, "  %d. %s\n", i+1, step.Clusters)
		if step.WaitingFor != "" {
			fmt.Fprintf(out, "     waits for %s\n", step.WaitingFor)
		}
	}
}
