package transition

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// IsExclusive reports whether objects of a kind must not run in two clusters at the same time.
func IsExclusive(kind schema.GroupKind) bool {
	switch kind {
	case schema.GroupKind{Kind: "Pod"}, schema.GroupKind{Group: "batch", Kind: "Job"}, schema.GroupKind{Group: "batch", Kind: "CronJob"}:
		return true
	}
	return false
}

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
