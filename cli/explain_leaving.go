package cli

import (
	"fmt"
	"io"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// leavingCopy is the copy of an object in a cluster that the decision does not choose, until it is removed.
type leavingCopy struct {
	Cluster string `json:"cluster"`
	// Reason and Message say what its removal waits for.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// leavingCopies returns the copies that clusters still have, although the decision in effect does not choose them.
func leavingCopies(b *v1alpha1.ResourceBinding) (out []leavingCopy) {
	if b == nil {
		return nil
	}
	for _, state := range b.Status.Clusters {
		if _, chosen := b.Share(state.Name); !chosen {
			copied := leavingCopy{Cluster: state.Name, Reason: state.Reason, Message: state.Message}
			if state.Stale != nil {
				copied.Reason, copied.Message = state.Stale.Reason, "it is removed when the cluster is back"
			}
			out = append(out, copied)
		}
	}
	return out
}

func (e *explanation) printLeaving(out io.Writer) {
	for _, c := range e.Leaving {
		text := c.Reason
		if text != "" && c.Message != "" {
			text += ": "
		}
		if text += c.Message; text == "" {
			text = "it is being removed"
		}
		fmt.Fprintf(out, "Still in %s: %s\n", c.Cluster, text)
	}
}
