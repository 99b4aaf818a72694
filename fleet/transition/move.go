package transition

import (
	"cmp"
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// part is one cluster in a transition.
type part struct {
	cluster string
	now     Share
	goal    Share
	has     bool // in effect now
	wanted  bool // in the goal
	before  bool // in the decision before
	report  Report
	// next is the share after this step, if keep.
	next Share
	keep bool
}

// move computes one step.
type move struct {
	in    *Input
	parts []*part
	// counted: the shares are counts of replicas. Whole copies count with all of them.
	counted bool
	floor   int32

	grows, shrinks bool
	phase          v1alpha1.TransitionPhase
	waiting        string
	recheck        time.Time

	transfers   []Transfer
	transferred bool  // a transfer changes
	revision    int32 // the last one that was given to a transfer
}

func newMove(in *Input) *move {
	m := &move{in: in}
	at := map[string]*part{}
	of := func(s Share) *part {
		p := at[s.Cluster]
		if p == nil {
			p = &part{cluster: s.Cluster, report: in.Reports[s.Cluster]}
			at[s.Cluster] = p
			m.parts = append(m.parts, p)
		}
		return p
	}
	for _, s := range in.Now {
		p := of(s)
		p.now, p.has = s, true
		m.counted = m.counted || !s.Whole
	}
	for _, s := range in.Goal {
		p := of(s)
		p.goal, p.wanted = s, true
		m.counted = m.counted || !s.Whole
	}
	for _, s := range in.From {
		of(s).before = true
	}
	for cluster := range in.Reports {
		of(Share{Cluster: cluster})
	}
	slices.SortFunc(m.parts, func(a, b *part) int { return cmp.Compare(a.cluster, b.cluster) })
	m.counted = m.counted || in.Rule == Numbered || in.Volumes.Together
	for _, p := range m.parts {
		if m.counted {
			p.now, p.goal = m.count(p.now, p.has), m.count(p.goal, p.wanted)
		}
		p.next, p.keep = p.now, p.has
		p.next.Drain = Drain{} // unless the share is still to be smaller
	}
	m.floor = max(in.Wanted-in.Limits.MaxUnavailable, in.Floor.Available, 0)
	return m
}

// count returns a share as a count of replicas.
func (m *move) count(s Share, is bool) Share {
	if is && s.Whole {
		s.Replicas, s.Whole = m.in.Wanted, false
	}
	return s
}

// immediate reports whether the goal can be in effect at once: nothing leaves a cluster, or a user scaled the object
// down where it is, or accepts that nothing is available.
func (m *move) immediate() bool {
	in := m.in
	if in.Limits.Paused && len(in.Now) > 0 {
		return m.reached()
	}
	if len(in.Goal) == 0 {
		return true // it is to run nowhere, so there is nothing to wait for
	}
	if len(in.Volumes.Transfers) > 0 {
		return false
	}
	if !slices.ContainsFunc(m.parts, func(p *part) bool { return p.report.Present && p.gives() }) && (in.Rule != Numbered || !in.Underway) {
		return true // nothing has started in the clusters that give something up
	}
	if in.Rule == Exclusive {
		// In effect, it runs already: it failed over, and the cluster that it left is back and removes its copy when
		// this one runs. To wait for the removal here would have both wait for each other.
		return len(in.Now) > 0 && m.reached() || !m.leavesAny()
	}
	if in.Volumes.Together {
		return len(in.Now) == 0 && !in.Underway || !m.leavesAny()
	}
	if in.Rule == Numbered {
		return len(in.Now) == 0 && !in.Underway || !m.movesOrdinals()
	}
	if in.Limits.MaxUnavailable >= in.Wanted && m.in.Floor.Available <= 0 || len(in.Now) == 0 && !in.Underway {
		return true
	}
	grows, shrinks, leaves := false, false, false
	for _, p := range m.parts {
		leaves = leaves || p.has && !p.wanted
		grows = grows || p.wanted && (!p.has || p.goal.Replicas > p.now.Replicas)
		shrinks = shrinks || p.has && p.wanted && p.goal.Replicas < p.now.Replicas
	}
	return !leaves && (!shrinks || !grows && !in.Underway)
}

// gives reports whether a cluster gives up a part of its share in effect, or of the replicas that it may still run.
func (p *part) gives() bool {
	return !p.wanted || p.has && (p.now.Replicas > p.goal.Replicas || p.now.Start != p.goal.Start) || p.report.Running > p.goal.Replicas && !p.goal.Whole
}

// reached reports whether the shares in effect are the goal.
func (m *move) reached() bool {
	for _, p := range m.parts {
		p.goal.Revision = p.now.Revision
	}
	return len(m.in.Volumes.Transfers) == 0 && !slices.ContainsFunc(m.parts, func(p *part) bool { return p.has != p.wanted || p.now != p.goal })
}

// leaves reports whether a cluster has a copy, or may have one, and is not to have one.
func (p *part) leaves() bool { return !p.wanted && (p.has || p.report.Present) }

// leavesAny reports whether the object leaves a cluster that may still run it.
func (m *move) leavesAny() bool {
	return slices.ContainsFunc(m.parts, func(p *part) bool { return p.leaves() && !p.report.Lost })
}

// available returns how many replicas are known to be available in a cluster and stay so with its present share.
func (p *part) available() int32 {
	if !p.has || !p.report.Current || p.report.Unreachable {
		return 0
	}
	return min(p.report.Available, p.now.Replicas)
}

// dropLost takes lost clusters out of effect: nothing there serves.
func (m *move) dropLost() {
	for _, p := range m.parts {
		if p.has && !p.wanted && p.report.Lost {
			p.keep, m.shrinks = false, true
		}
	}
}

// wait records what the next step waits for. The first reason is shown.
func (m *move) wait(phase v1alpha1.TransitionPhase, reason string) {
	if m.waiting == "" {
		m.phase, m.waiting = phase, reason
	}
}

// waitForPart records that the next step waits for a cluster, with what the cluster says about its copy.
func (m *move) waitForPart(p *part, reason string) {
	if p.report.Message != "" {
		reason += ": " + p.report.Message
	}
	m.wait(v1alpha1.PhaseWaiting, reason)
}

// output returns the step.
func (m *move) output() Output {
	in := m.in
	out := Output{Transfers: m.transfers, Phase: m.phase, WaitingFor: m.waiting, Recheck: m.recheck}
	for _, p := range m.parts { // the revision of the share in effect
		p.goal.Revision = p.next.Revision
	}
	changed := m.transferred
	for _, p := range m.parts {
		if p.keep {
			out.Next = append(out.Next, p.next)
		}
		changed = changed || p.keep != p.has || p.keep && p.next != p.now
	}
	if m.atGoal() {
		return Output{Next: m.revised(in.Goal), Done: true}
	}
	if changed {
		out.Next = m.revised(out.Next)
		out.Phase = v1alpha1.PhaseGrowing
		if m.shrinks {
			out.Phase = v1alpha1.PhaseShrinking
		}
		out.WaitingFor, out.Recheck = "the clusters to apply the step", time.Time{}
		return out
	}
	out.Next = in.Now // also where shares only read as counts
	return m.late(out)
}

func (m *move) atGoal() bool {
	if len(m.transfers) > 0 {
		return false
	}
	if m.in.Rule == Exclusive && m.leavesAny() {
		return false
	}
	return !slices.ContainsFunc(m.parts, func(p *part) bool { return p.keep != p.wanted || p.keep && p.next != p.goal })
}

// late applies the deadline to a step that waits.
func (m *move) late(out Output) Output {
	in := m.in
	var failing []string
	for _, p := range m.parts {
		if p.wanted && !p.before && p.has && !m.runs(p) || p.wanted && p.before && p.has && p.now.Replicas > m.fromOf(p) && !m.runs(p) {
			failing = append(failing, p.cluster)
		}
	}
	for _, cluster := range m.awaitedTransfers() {
		if !slices.Contains(failing, cluster) {
			failing = append(failing, cluster)
		}
	}
	if len(failing) == 0 || in.Limits.Deadline <= 0 || !in.Underway {
		return out
	}
	due := in.Progress.Add(in.Limits.Deadline)
	switch {
	case in.At.Before(due):
		if out.Recheck.IsZero() || due.Before(out.Recheck) {
			out.Recheck = due
		}
	case in.Limits.OnFailure == v1alpha1.FailureWaits || in.Final:
		out.Phase = v1alpha1.PhaseFailed
	default:
		out.Failed = failing
	}
	return out
}

// fromOf returns the count of a cluster in the decision before.
func (m *move) fromOf(p *part) int32 {
	for _, s := range m.in.From {
		if s.Cluster == p.cluster {
			return m.count(s, true).Replicas
		}
	}
	return 0
}

// runs reports whether a cluster runs its share in effect.
func (m *move) runs(p *part) bool {
	if !p.report.Current || p.report.Unreachable {
		return false
	}
	if m.counted {
		return p.report.Available >= p.now.Replicas
	}
	return p.report.Healthy
}

// soaked reports whether replicas have been available for long enough that others may leave clusters, and otherwise waits.
// They had been when the leave was announced.
func (m *move) soaked(from ...*part) bool {
	in := m.in
	if in.Limits.Soak <= 0 || slices.ContainsFunc(from, (*part).isAnnounced) {
		return true
	}
	since := in.At
	if in.Phase == v1alpha1.PhaseSoaking {
		since = in.Since
	}
	until := since.Add(in.Limits.Soak)
	if !in.At.Before(until) {
		return true
	}
	m.wait(v1alpha1.PhaseSoaking, "the new replicas to be available for "+in.Limits.Soak.String())
	m.recheck = until
	return false
}

// revised returns shares with the revisions that they have in effect, and a new one if they are not in effect.
func (m *move) revised(shares []Share) []Share {
	latest := int32(0)
	for _, s := range m.in.Now {
		latest = max(latest, s.Revision)
	}
	for _, r := range m.in.Reports {
		latest = max(latest, r.Revision)
	}
	out := slices.Clone(shares)
	for i := range out {
		s := &out[i]
		s.Revision = latest + 1
		for _, now := range m.in.Now {
			if now.Cluster == s.Cluster && now.Replicas == s.Replicas && now.Start == s.Start && now.Whole == s.Whole {
				s.Revision = now.Revision
			}
		}
	}
	return out
}
