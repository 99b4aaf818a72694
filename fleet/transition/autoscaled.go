package transition

import (
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// autoscaled moves an object whose counts autoscalers in the clusters set. A new cluster begins with its part of the
// present replicas, not of the replicas that the object had when it was created. The others keep their bounds until
// the new ones run their part.
func (m *move) autoscaled() {
	total := int32(0)
	for _, p := range m.parts {
		if p.wanted {
			total += p.goal.Replicas
		}
	}
	available := int32(0)
	ready := true
	for _, p := range m.parts {
		if !p.wanted {
			continue
		}
		first := p.goal.Replicas
		if total > 0 && m.in.Wanted > total {
			first = int32((int64(first)*int64(m.in.Wanted) + int64(total) - 1) / int64(total))
		}
		switch {
		case !p.has:
			p.keep, p.next, m.grows = true, p.goal, true
			p.next.Replicas = first
			ready = false
		case p.goal.Replicas > p.now.Replicas:
			p.next = p.goal
			p.next.Replicas = max(first, p.now.Replicas)
			m.grows = p.next != p.now || m.grows
		}
		if p.has && p.report.Current && !p.report.Unreachable {
			if available += p.report.Available; p.goal.Replicas < p.now.Replicas {
				available -= max(p.report.Available-first, 0) // its bounds will be lower
			}
		}
		grown := p.has && (!p.before || p.now.Replicas > m.fromOf(p))
		if grown && (!p.report.Current || p.report.Unreachable || p.report.Available < min(first, p.now.Replicas)) {
			ready = false
		}
	}
	if ready && available >= m.floor && !m.grows && m.soaked(m.parts...) {
		for _, p := range m.parts {
			p.keep, p.next = p.wanted, m.goalOf(p)
		}
		m.shrinks = true
		return
	}
	if m.waiting == "" && m.phase != v1alpha1.PhaseSoaking {
		m.explain(available)
	}
}
