package transition

import (
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// exclusive moves an object that must not run in two clusters at the same time: it starts in the new ones when it is
// known to be gone from the others.
func (m *move) exclusive() {
	gone := true
	for _, p := range m.parts {
		if !p.leaves() || p.report.Lost {
			continue
		}
		gone = false
		if p.has {
			p.keep, m.shrinks = false, true
		}
		reason := "cluster " + p.cluster + " to remove its copy"
		if p.report.Unreachable {
			reason = "cluster " + p.cluster + ", which does not answer, to remove its copy"
		}
		m.wait(v1alpha1.PhaseWaiting, reason)
	}
	if !gone {
		return
	}
	for _, p := range m.parts {
		if p.wanted {
			p.keep, p.next, m.grows = true, p.goal, true
		}
	}
}
