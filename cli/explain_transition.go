package cli

import (
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// transitionOf returns how far an object is from its decision; nil if it is there.
func transitionOf(b *v1alpha1.ResourceBinding) *v1alpha1.TransitionStatus {
	if b == nil || b.Spec.Transition == nil {
		return nil
	}
	return b.Status.Transition
}

func (e *explanation) printTransition(out io.Writer) {
	t := e.Transition
	if t == nil {
		return
	}
	text := string(t.Phase)
	switch {
	case t.WaitingFor == "":
	case t.Phase == v1alpha1.PhaseWaiting:
		text += " for " + t.WaitingFor
	case t.Phase == v1alpha1.PhasePaused:
		text += ", waiting for " + t.WaitingFor
	default:
		text += ", then waiting for " + t.WaitingFor
	}
	fmt.Fprintf(out, "In transition (%s) from %s to %s: %s\n", t.Cause, t.From, t.To, text)
}
