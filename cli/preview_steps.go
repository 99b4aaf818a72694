package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

const (
	// mostMoversShown bounds the objects whose steps a preview shows, and mostStepsInLine the steps of each: they are
	// examples of how the objects move.
	mostMoversShown = 3
	mostStepsInLine = 6
)

// movedSteps are the steps of some objects that move.
type movedSteps struct {
	first []objectSteps
	more  int // others that move
}

// objectSteps is an object with the steps in which it moves.
type objectSteps struct {
	object string
	steps  []scheduler.Step
}

// stepsOfMoves returns the steps of the first objects that move in several steps, as a state decides about them.
func stepsOfMoves(s *scheduler.State, moves []scheduler.Move) (out movedSteps) {
	snap := s.Snapshot()
	seen := map[scheduler.Move]bool{}
	for i := range moves {
		m := &moves[i]
		if m.Cluster == "" || seen[objectOf(m)] {
			continue
		}
		seen[objectOf(m)] = true
		for _, p := range s.Placed {
			if !isOf(m, p) {
				continue
			}
			if len(out.first) == mostMoversShown {
				out.more++
			} else if steps := s.Steps(snap, p.Kind, p.Object); len(steps) > 0 {
				out.first = append(out.first, objectSteps{m.Kind + " " + policyName(m.Namespace, m.Name), steps})
			}
		}
	}
	return out
}

// print prints the steps: of a single object one a line, and of several each object in a line.
func (m *movedSteps) print(out io.Writer) {
	if len(m.first) == 1 && m.more == 0 {
		printSteps(out, m.first[0].steps)
		return
	}
	if len(m.first) == 0 {
		return
	}
	fmt.Fprint(out, "\nSteps, each when the replicas of the one before are available:\n")
	for _, o := range m.first {
		fmt.Fprintf(out, "  %s: %s\n", o.object, stepsInLine(o.steps))
	}
	if m.more > 0 {
		fmt.Fprintf(out, "  %d more objects move in the same way\n", m.more)
	}
}

// stepsInLine describes steps: the first ones and the last.
func stepsInLine(steps []scheduler.Step) string {
	var parts []string
	for i, step := range steps {
		last := i == len(steps)-1
		switch {
		case i < mostStepsInLine-1 || last:
		case i == mostStepsInLine-1:
			parts = append(parts, fmt.Sprintf("… %d more", len(steps)-mostStepsInLine))
			continue
		default:
			continue
		}
		text := step.Clusters
		if step.WaitingFor != "" {
			text += " (waits for " + step.WaitingFor + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " → ")
}
