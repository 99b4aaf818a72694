package transition

import (
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// copies moves an object that each cluster runs as a whole. New copies are added at once. A copy that serves
// leaves when a new one is healthy in its place, or if the object is to have fewer copies; the last one never does.
func (m *move) copies() {
	fresh, leaving, left := 0, 0, 0
	healthy, healthyFresh := 0, 0
	for _, p := range m.parts {
		switch {
		case p.wanted && !p.before:
			fresh++
			if p.isHealthy() {
				healthyFresh++
			}
		case !p.wanted && p.before:
			leaving++
			if !p.has || p.report.Lost {
				left++
			}
		}
		if p.wanted && p.isHealthy() {
			healthy++
		}
		if p.wanted && !p.has {
			p.keep, p.next, m.grows = true, p.goal, true
		}
	}
	// Each healthy new copy lets one leave, and so does each one that has no successor.
	allowed := healthyFresh + max(leaving-fresh, 0) - left
	for _, p := range m.parts {
		if !p.keep || p.wanted {
			continue
		}
		serves := !p.report.Current || p.report.Available > 0 || p.report.Healthy
		switch {
		case p.report.Unreachable:
			m.wait(v1alpha1.PhaseWaiting, "cluster "+p.cluster+", which does not answer")
		case !serves, !p.before && healthy > 0:
			p.keep, m.shrinks = false, true
		case allowed > 0 && healthy > 0 && m.soaked(p):
			p.keep, m.shrinks, allowed = false, true, allowed-1
		}
	}
	for _, p := range m.parts {
		if p.wanted && p.has && !p.isHealthy() {
			m.waitForPart(p, "the copy in "+p.cluster+" to be healthy")
		}
	}
	m.wait(v1alpha1.PhaseWaiting, "a healthy copy in another cluster")
}

func (p *part) isHealthy() bool {
	return p.has && p.report.Current && p.report.Healthy && !p.report.Unreachable
}
