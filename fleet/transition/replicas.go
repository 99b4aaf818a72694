package transition

import (
	"fmt"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// replicas moves replicas of an object that clusters share. Clusters get replicas as far as the surge allows, and
// give up those that are not needed any more: unavailable ones at once, others as far as enough stay available.
func (m *move) replicas() {
	in := m.in
	running, available := int32(0), int32(0)
	for _, p := range m.parts {
		if p.keep {
			running += p.now.Replicas
			available += p.available()
		}
	}
	surge := max(in.Wanted+max(in.Limits.MaxSurge, 1)-running, 0)
	for _, p := range m.parts {
		if !p.wanted {
			continue
		}
		p.keep = true
		p.next.Cluster = p.cluster
		if p.next.Replicas >= p.goal.Replicas {
			continue
		}
		more := min(p.goal.Replicas-p.next.Replicas, surge)
		if p.next.Replicas += more; more > 0 {
			surge, m.grows = surge-more, true
		}
	}
	spare := max(available-m.floor, 0)
	for _, p := range m.parts {
		excess := p.now.Replicas - p.goal.Replicas // 0 of a cluster that is not in the goal
		if !p.keep || !p.has {
			continue
		}
		if excess <= 0 {
			p.keep = p.wanted || p.now.Replicas > 0
			m.shrinks = m.shrinks || !p.keep
			continue
		}
		leave := min(excess, m.free(p))
		if rest := min(excess-leave, spare); rest > 0 && m.consents(p) && m.soaked(p) {
			leave, spare = leave+rest, spare-rest
		}
		if leave == 0 {
			continue
		}
		m.shrinks = true
		p.next.Replicas -= leave
		p.keep = p.wanted || p.next.Replicas > 0
	}
	m.awaitReplicas(available)
}

// free returns how many replicas of a cluster may leave because they are not available: the cluster's controllers
// remove those first. While a newer template is rolled out they may remove others.
func (m *move) free(p *part) int32 {
	if !p.report.Current || !p.report.Settled || p.report.Unreachable {
		return 0
	}
	return p.now.Replicas - p.available()
}

// consents reports whether a cluster can be told to give up replicas that others replace. Its own ones may not be
// counted as available, if its report is not current.
func (m *move) consents(p *part) bool {
	return !p.report.Unreachable
}

func (m *move) awaitReplicas(available int32) {
	if available >= m.floor && !m.in.Underway {
		return
	}
	m.explain(available)
}

// explain says what a transition of replicas waits for.
func (m *move) explain(available int32) {
	for _, p := range m.parts {
		switch {
		case p.leaves() && p.has && p.report.Unreachable && !p.report.Lost:
			m.wait(v1alpha1.PhaseWaiting, "cluster "+p.cluster+", which does not answer")
		case p.wanted && p.has && p.report.Unreachable:
			m.wait(v1alpha1.PhaseWaiting, "cluster "+p.cluster+", which does not answer and is to run replicas")
		}
	}
	for _, p := range m.parts {
		switch {
		case !p.has || !p.wanted || m.runs(p):
		case !p.report.Current:
			m.waitForPart(p, fmt.Sprintf("%s to report its %d replicas", p.cluster, p.now.Replicas))
		default:
			m.waitForPart(p, fmt.Sprintf("%d of %d replicas to be available in %s", p.now.Replicas-p.available(), p.now.Replicas, p.cluster))
		}
	}
	for _, p := range m.parts {
		if p.has && !p.wanted && !p.report.Current {
			m.wait(v1alpha1.PhaseWaiting, "a current report of cluster "+p.cluster)
		}
	}
	if m.in.Floor.Available > m.in.Wanted-m.in.Limits.MaxUnavailable {
		m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("more than %d replicas to be available, because %s requires %d", available, m.in.Floor.By, m.in.Floor.Available))
	}
	m.wait(v1alpha1.PhaseWaiting, fmt.Sprintf("more than %d available replicas", available))
}
