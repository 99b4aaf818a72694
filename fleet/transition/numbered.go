package transition

import (
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// numbered moves replicas with ordinals. No ordinal may run in two clusters. A cluster releases an ordinal, and
// the other one takes it when the replica is gone. Ordinals of a cluster are one range, so they are taken and
// released at its ends, the highest first. One replica at a time is unavailable, or as many as the limits allow.
func (m *move) numbered() {
	available := int32(0)
	for _, p := range m.parts {
		p.next.Cluster, p.next.Whole = p.cluster, false
		available += p.available()
	}
	m.advance()
	m.take()
	if m.grows {
		return
	}
	// Those that no cluster has now are missing already.
	may := max(m.in.Limits.MaxUnavailable, 1) - (m.in.Wanted - available)
	released := int32(0)
	for {
		p, ordinal, direct := m.releasable()
		if p == nil {
			break
		}
		idle := p.report.Current && p.report.Settled && p.report.Available == 0
		switch {
		case p.report.Unreachable && !p.report.Lost:
			m.wait(v1alpha1.PhaseWaiting, "cluster "+p.cluster+", which does not answer")
		case !idle && released >= may, !direct && m.someUntaken():
			m.awaitNumbered(available, ordinal)
		case !idle && available-released-1 < m.in.Floor.Available:
			m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("replica %d to be allowed to stop: it has to before it starts elsewhere, and %s requires %d available replicas of %d",
				ordinal, m.in.Floor.By, m.in.Floor.Available, available))
		case !idle && !m.soaked(p):
		case !m.prepared(p, ordinal):
		case !m.mayRelease(p, p.next.without(ordinal)):
		default:
			m.detach(ordinal)
			m.release(p, ordinal)
			released++
			continue
		}
		break
	}
	if m.waiting == "" {
		for _, p := range m.parts {
			if p.has && p.report.Running > p.now.Replicas {
				m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("%d replicas to stop in %s", p.report.Running-p.now.Replicas, p.cluster))
			}
		}
		m.explain(available)
	}
}

// someUntaken reports whether ordinals that clusters are to take are with none now.
func (m *move) someUntaken() bool {
	for _, to := range m.parts {
		for ordinal := to.goal.Start; to.wanted && ordinal < to.goal.end(); ordinal++ {
			if !slices.ContainsFunc(m.parts, func(p *part) bool { return p.keep && p.next.has(ordinal) }) {
				return true
			}
		}
	}
	return false
}

// end returns the ordinal after the last one of a share.
func (s Share) end() int32 { return s.Start + s.Replicas }

func (s Share) has(ordinal int32) bool { return ordinal >= s.Start && ordinal < s.end() }

// extends reports whether a range with one more ordinal is still one range.
func (s Share) extends(ordinal int32) bool {
	return s.Replicas == 0 || ordinal == s.Start-1 || ordinal == s.end()
}

func (s Share) with(ordinal int32) Share {
	switch {
	case s.Replicas == 0:
		s.Start = ordinal
	case ordinal == s.Start-1:
		s.Start--
	}
	s.Replicas++
	return s
}

// take gives the ordinals that no cluster has to those that are to have them.
func (m *move) take() {
	for again := true; again; {
		again = false
		for _, p := range m.parts {
			if !p.wanted {
				continue
			}
			for ordinal := p.goal.end() - 1; ordinal >= p.goal.Start; ordinal-- {
				if p.next.has(ordinal) || !p.next.extends(ordinal) || m.runsElsewhere(p, ordinal) || !m.mayStart(p, ordinal) {
					continue
				}
				if p.next.Replicas == 0 && p.next.Start != ordinal && p.has && p.mayRunMore() {
					continue // its range is another one: the count alone would not show that the earlier replicas still run
				}
				p.next, p.keep = p.next.with(ordinal), true
				p.next.Cluster = p.cluster
				m.grows, again = true, true
			}
		}
	}
	for _, p := range m.parts {
		if p.wanted && p.goal.Replicas == 0 && !p.keep {
			p.keep, p.next, m.grows = true, p.goal, true
		}
	}
}

// runsElsewhere reports whether another cluster has an ordinal, or may still run its replica.
func (m *move) runsElsewhere(p *part, ordinal int32) bool {
	for _, other := range m.parts {
		if other == p {
			continue
		}
		if other.keep && other.next.has(ordinal) {
			return true
		}
		if other.mayRunMore() {
			return true
		}
	}
	return false
}

// mayRunMore reports whether a cluster may still run replicas with ordinals that it has no more. They are gone when it
// runs no more than it is to run.
func (p *part) mayRunMore() bool {
	if p.report.Lost || !p.has && !p.report.Present {
		return false
	}
	return !p.has || !p.report.Current || p.report.Running > p.now.Replicas
}

// releasable returns a cluster and the ordinal that it is to release next. direct: its new cluster can take it.
func (m *move) releasable() (from *part, ordinal int32, direct bool) {
	var pending *part
	var last int32
	for _, p := range m.parts {
		if !p.keep || p.next.Replicas == 0 {
			if p.keep && p.has && !p.wanted && !m.transfersIn(p.cluster) {
				p.keep, m.shrinks = false, true
			}
			continue
		}
		for _, end := range []int32{p.next.end() - 1, p.next.Start} {
			if p.wanted && p.goal.has(end) {
				continue
			}
			to := m.ownerOf(end)
			if to == nil || to.next.extends(end) {
				return p, end, true
			}
			if pending == nil {
				pending, last = p, end
			}
		}
	}
	return pending, last, false
}

// ownerOf returns the cluster that is to have an ordinal; nil if none is.
func (m *move) ownerOf(ordinal int32) *part {
	for _, p := range m.parts {
		if p.wanted && (p.goal.has(ordinal) || m.in.Volumes.Together) {
			return p
		}
	}
	return nil
}

// without returns a range without the ordinal at one of its ends.
func (s Share) without(ordinal int32) Share {
	if ordinal == s.Start && s.Replicas > 1 {
		s.Start++
	}
	s.Replicas--
	return s
}

func (m *move) release(p *part, ordinal int32) {
	p.next = p.next.without(ordinal)
	p.keep = p.wanted || p.next.Replicas > 0 || m.transfersIn(p.cluster)
	m.shrinks = true
}

func (m *move) awaitNumbered(available, ordinal int32) {
	for _, p := range m.parts {
		if p.has && !m.runs(p) {
			m.waitForPart(p, fmt.Sprintf("%d of %d replicas to be available in %s", p.now.Replicas-p.available(), p.now.Replicas, p.cluster))
		}
	}
	m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("more than %d available replicas, before replica %d stops", available, ordinal))
}

// movesOrdinals reports whether a cluster has, or may still run, replicas that another one is to run.
func (m *move) movesOrdinals() bool {
	for _, p := range m.parts {
		if p.leaves() && !p.has && !p.report.Lost {
			return true
		}
		for ordinal := p.now.Start; p.has && ordinal < p.now.end(); ordinal++ {
			if to := m.ownerOf(ordinal); to != nil && to != p {
				return true
			}
		}
		if m.in.Underway && p.mayRunMore() {
			return true // ordinals that it released may still run
		}
	}
	return false
}
