package transition

import (
	"fmt"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// together moves an object whose replicas mount the same claims. All of them stop in one cluster, the volumes go along,
// and then all of them start in the other one.
func (m *move) together() {
	begun := len(m.in.Volumes.Transfers) > 0
	for _, p := range m.parts {
		p.next.Cluster, p.next.Whole = p.cluster, false
	}
	m.advance()
	to := m.ownerOf(0)
	if to == nil {
		return
	}
	for _, p := range m.parts {
		switch {
		case p == to || !p.keep:
		case p.now.Replicas == 0 && begun:
			// Its volumes have left, or it has none.
			if p.keep = m.transfersIn(p.cluster); !p.keep {
				m.shrinks = true
			}
		default:
			m.stopAll(p, to)
		}
	}
	m.startAll(to)
	if m.waiting == "" {
		m.explain(to.available())
	}
}

// stopAll stops the replicas of a cluster when their volumes can go along. Of an object with no replicas only the
// volumes go.
func (m *move) stopAll(p, to *part) {
	idle := p.now.Replicas == 0 || p.report.Current && p.report.Settled && p.report.Available == 0
	switch {
	case p.report.Unreachable && !p.report.Lost:
		m.wait(v1alpha1.PhaseWaiting, "cluster "+p.cluster+", which does not answer")
	case !idle && m.in.Floor.Available > 0:
		m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("its replicas to be allowed to stop: all have to before any starts elsewhere, because they mount the same volumes, and %s requires %d available replicas",
			m.in.Floor.By, m.in.Floor.Available))
	case !m.prepared(p, 0):
	case p.now.Replicas > 0 && !m.mayRelease(p, Share{}):
	default:
		if m.detach(0); p.now.Replicas > 0 {
			p.next.Replicas, m.shrinks = 0, true
		}
	}
}

// startAll gives a cluster all replicas when the volumes are there, and nothing is left elsewhere that could use them.
func (m *move) startAll(to *part) {
	if to.keep && to.next == m.goalOf(to) || !m.mayStart(to, 0) {
		return
	}
	for _, p := range m.parts {
		switch {
		case p == to || p.report.Lost:
		case p.keep && p.next.Replicas > 0:
			return // stopAll has set the reason
		case !p.keep && p.report.Present && p.report.Running > 0:
			m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("%d replicas to stop in %s", p.report.Running, p.cluster))
			return
		}
	}
	to.keep, to.next, m.grows = true, m.goalOf(to), true
}

// goalOf returns the share that a cluster is to have, with the revision of the one that it has.
func (m *move) goalOf(p *part) Share {
	goal := p.goal
	goal.Revision = p.next.Revision
	return goal
}
