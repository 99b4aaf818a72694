package placement

import (
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const divided = v1alpha1.ModeDivided

// decider makes one decision. It examines only the clusters that have the object, and those that
// may take it.
type decider struct {
	r      *Request
	fleet  *Fleet
	policy *Policy
	view   *policyView
	mode   v1alpha1.PlacementMode
	most   int   // the wanted number of clusters
	nodes  *Room // nil if the policy ignores capacity
	inputs string
	// stays are the clusters whose pending pods have nowhere to go.
	stays map[int32]bool
	// steady: nothing but replica counts and free room changed since the previous decision.
	steady bool
	// rebalances: a user requests a decision that considers the object as new.
	rebalances bool
	// home is when the object may return to where it ran before it failed over; returned: it does now, and
	// homeShares are its shares of then by position in the fleet.
	home       homecoming
	returned   bool
	homeShares map[int32]int32
	// consolidation is what follows for an object in later groups; consolidating: an attempt to place it in earlier ones.
	consolidation ConsolidationDecision
	consolidating bool

	holders []holder
	holds   []int32 // by position in the fleet: position in holders plus one
	recheck time.Time

	// marks are the reasons why clusters are not chosen, where the reason applies to this object
	// and not to all objects of the policy.
	marks       []mark
	unsatisfied string
	chosen      []Verdict
}

// holder is a cluster that has the object.
type holder struct {
	at     int32
	prev   int32
	reason string // the verdict's reason if it stays
	capped bool   // may keep its share but not grow
	// yields is why it gives up its share once another cluster can take it; unmarked if it stays.
	yields mark
	// despite is why it would give it up if it were not held.
	despite mark
	// known: its state is known, so a decision may remove the object.
	known bool
	gone  bool
	// again: on request, the cluster is chosen again like one that does not have the object.
	again bool
}

// outcome is the result of one attempt.
type outcome struct {
	members  []member
	unplaced int32
	problem  string // why this attempt cannot satisfy the policy
	stays    map[int32]bool
	marks    []mark // the marks of this attempt
}

// member is a cluster that may be chosen.
type member struct {
	at      int32
	prev    int32
	had     bool
	capped  bool
	reason  string
	weight  int32
	near    bool // the object's group is there
	replica int32
}

func newDecider(r *Request) *decider {
	d := &decider{r: r, fleet: r.Fleet, policy: r.Policy}
	if d.fleet == nil {
		d.fleet = NewFleet(nil)
	}
	if d.policy == nil {
		d.policy = d.fleet.noPolicy
	}
	d.view = d.fleet.view(d.policy)
	d.mode, d.most = effective(&r.Object, d.policy)
	if r.Exceeds != "" && r.Object.Divisible && slices.ContainsFunc(r.Previous, func(s Share) bool { return !s.Whole }) {
		d.mode = divided // it stays divided
	}
	d.fixMode()
	if d.policy.spec.Capacity != v1alpha1.CapacityIgnore {
		d.nodes = r.Room
	}
	return d
}

// effective returns the mode and number of clusters for an object and a policy. An object that
// cannot be divided runs in the kind's default mode, whatever the policy says.
func effective(o *Object, p *Policy) (v1alpha1.PlacementMode, int) {
	mode := p.spec.Mode
	if mode == "" {
		mode = o.Mode
	}
	if mode == divided && !o.Divisible {
		mode = o.Mode
	}
	if mode == "" || mode == divided && !o.Divisible {
		mode = v1alpha1.ModeDuplicated
	}
	if o.Single {
		mode = v1alpha1.ModeSingle
	}
	if mode == v1alpha1.ModeSingle {
		return mode, 1
	}
	return mode, p.most
}

func (d *decider) decision() Decision {
	out := Decision{Mode: d.mode}
	if len(d.fleet.clusters) == 0 {
		out.Reason, out.Message = NoClusters, "no cluster has joined; add one with `atoll join NAME --kubeconfig FILE`"
		return out
	}
	d.findHolders()
	result := d.choose()
	d.unsatisfied, d.stays = result.problem, result.stays
	slices.SortFunc(result.members, func(a, b member) int { return int(a.at - b.at) })
	for _, m := range result.members {
		v := Verdict{Cluster: d.fleet.clusters[m.at].Name, Chosen: true, Reason: m.reason, Message: d.message(m.at, m.reason)}
		v.Replicas, v.Counted = m.replica, d.mode == divided
		if !v.Counted {
			v.Replicas, v.Counted = d.fixedAt(m.at)
		}
		out.Chosen = append(out.Chosen, v)
	}
	out.Unplaced, out.Recheck, out.Inputs = result.unplaced, d.recheck, d.inputs
	d.chosen = out.Chosen
	d.findDepartures(&out)
	out.Evicted, out.Degraded = d.evicted(result.members), d.degradedLeft(result.members)
	d.reportHome(&out)
	d.consolidationDepartures(&out)
	d.summarise(&out, result)
	out.Waits = d.nodes != nil && (out.Unplaced > 0 || d.mode != divided && len(out.Chosen) < d.most && slices.ContainsFunc(d.marks, func(m mark) bool { return m == markFull || m == markPreempted }))
	return out
}

// evicted returns the clusters that the object leaves because they are unreachable.
func (d *decider) evicted(members []member) (out []string) {
	for _, h := range d.holders {
		if h.yields == markEvicted && !slices.ContainsFunc(members, func(m member) bool { return m.at == h.at }) {
			out = append(out, d.fleet.clusters[h.at].Name)
		}
	}
	return out
}

// findHolders evaluates the clusters that have the object.
func (d *decider) findHolders() {
	d.holds = make([]int32, len(d.fleet.clusters))
	d.marks = make([]mark, len(d.fleet.clusters))
	finished := d.r.Object.Finished && len(d.r.Previous) > 0
	for _, s := range d.r.Previous {
		at, ok := d.fleet.index[s.Cluster]
		if !ok || d.holds[at] != 0 {
			continue // no longer registered, or listed twice
		}
		h := holder{at: at, prev: s.Replicas, reason: ReasonChosen, known: true}
		if s.Whole {
			h.prev = d.r.Object.times(s)
		}
		d.judge(&h, finished)
		d.hold(&h)
		d.holders = append(d.holders, h)
		d.holds[at] = int32(len(d.holders))
	}
	slices.SortFunc(d.holders, func(a, b holder) int { return int(a.at - b.at) })
	for i, h := range d.holders {
		d.holds[h.at] = int32(i + 1)
	}
}

// judge determines whether a cluster that has the object keeps it. The most certain facts come
// first: irreversible ones, then unknown state, then decisions of users, then events.
func (d *decider) judge(h *holder, finished bool) {
	c, s := &d.fleet.clusters[h.at], &d.view.clusters[h.at]
	obstacle, obstructed := d.r.Obstacles[c.Name]
	keep := func(reason string) { h.reason, h.capped = reason, true }
	due, ends := d.deadline(c)
	switch {
	case c.Leaving:
		h.gone = true
		d.marks[h.at] = markLeaving
	case finished:
		keep(ReasonKeptFinished)
	case !c.Ready && !c.Confirmed:
		keep(ReasonKeptNotReady)
		h.known = false
	case obstructed && obstacle.Leaves && c.Ready:
		h.gone = true
		d.marks[h.at] = markObstacle
	case !s.selected:
		h.yields = markUnselected
	case obstructed && !obstacle.Keeps:
		h.yields = markObstacle
	case d.r.Group != nil && d.r.Group.Pinned && d.elsewhere(h.at):
		h.yields = markGroup
	case s.eviction == evictNow || s.eviction == evictLater && !d.r.Now.Before(s.until):
		h.yields = markTainted
	case c.isUnreachable() && ends && !c.isHeld() && !d.r.Now.Before(due):
		d.leave(h, markEvicted)
	case c.Draining && !c.DrainPaused:
		d.leave(h, markDrained)
	case c.Ready && d.isDegraded(h.at):
		d.leave(h, markDegraded)
	case c.Ready && d.mode != divided && d.preempted(h.at):
		h.gone = true
		d.marks[h.at] = markPreempted
	case c.Ready && d.mode == v1alpha1.ModeSingle && d.r.Group == nil && h.prev > 0 && d.r.Pending[c.Name] >= h.prev:
		h.yields = markPending // none of its pods runs
	case c.isHeld() && ends:
		keep(ReasonKeptFailoverHeld)
	case !c.Ready && !c.isUnreachable():
		keep(ReasonKeptMayRun)
	case !c.Ready:
		keep(ReasonKeptNotReady)
		d.recheckAt(due, ends)
	case s.eviction != evictNever || s.taint != nil && !s.avoided:
		keep(ReasonKeptTainted)
		d.recheckAt(s.until, s.eviction == evictLater)
	case c.Draining:
		keep(ReasonKeptUntilItsTurn)
	case c.Unschedulable:
		keep(ReasonKeptUnschedulable)
	case obstructed:
		keep(ReasonKeptObstacle)
	}
}

// deadline returns until when an unreachable cluster keeps its share.
func (d *decider) deadline(c *Cluster) (time.Time, bool) {
	return c.lostAt(d.policy.tolerates(c, &d.r.Object))
}

func (d *decider) recheckAt(t time.Time, ends bool) {
	if ends && t.After(d.r.Now) && (d.recheck.IsZero() || t.Before(d.recheck)) {
		d.recheck = t
	}
}

// choose tries the best option first: clusters that should yield give up their share, and avoided
// clusters get nothing. If that leaves the policy unsatisfied or replicas without a cluster, every
// cluster keeps its share.
func (d *decider) choose() outcome {
	if d.r.Object.Finished && len(d.r.Previous) > 0 {
		return d.stay()
	}
	fresh := d.fresh()
	d.recordInputs()
	if d.r.Fixed != "" {
		return d.stayFixed()
	}
	if d.r.Exceeds != "" {
		return d.stayUnsatisfied(d.r.Exceeds)
	}
	if o, chosen := d.chooseAgain(); chosen {
		return o
	}
	if o, home := d.goHome(); home {
		return o
	}
	if o, earlier := d.consolidate(fresh); earlier {
		return o
	}
	yielding := slices.ContainsFunc(d.holders, func(h holder) bool { return h.yields != unmarked })
	avoiding := slices.ContainsFunc(fresh, func(m member) bool { return d.view.clusters[m.at].avoided })
	alternative := len(fresh) > 0 || slices.ContainsFunc(d.holders, func(h holder) bool { return h.free() })
	first := outcome{problem: "-", unplaced: noLimit}
	for _, try := range []struct{ stay, avoid, sensible bool }{
		{false, true, alternative},
		{false, false, alternative && avoiding},
		{true, true, yielding || !alternative},
		{true, false, yielding && avoiding},
	} {
		if !try.sensible {
			continue
		}
		d.resetMarks()
		o := d.attempt(fresh, try.stay, try.avoid)
		if o.problem == "" && o.unplaced == 0 {
			return o
		}
		if first.problem == "-" || better(o, first) {
			first, first.marks = o, slices.Clone(d.marks)
		}
	}
	d.marks = first.marks
	if first.problem != "" {
		d.resetMarks()
		return d.stayUnsatisfied(first.problem)
	}
	if first.unplaced > 0 && d.mode == divided && len(d.holders) > 0 {
		// A limit on the number of clusters takes no replicas away that no other cluster can run.
		first.marks = slices.Clone(d.marks)
		d.resetMarks()
		if o := d.stayUnsatisfied(d.tooFew()); o.unplaced < first.unplaced {
			return o
		}
		d.marks = first.marks
	}
	return first
}

func better(a, b outcome) bool {
	if (a.problem == "") != (b.problem == "") {
		return a.problem == ""
	}
	return a.unplaced < b.unplaced
}

func (h *holder) free() bool { return !h.gone && !h.capped && h.yields == unmarked }

// stay keeps a finished object where it ran.
func (d *decider) stay() outcome {
	var o outcome
	for _, h := range d.holders {
		if !h.gone {
			o.members = append(o.members, member{at: h.at, prev: h.prev, had: true, reason: h.reason, replica: h.prev})
		}
	}
	return o
}

// stayUnsatisfied keeps the object where it is, because the policy cannot be satisfied. A changed
// replica count is still divided among the clusters that have the object.
func (d *decider) stayUnsatisfied(problem string) outcome {
	members := d.keeping(true)
	for _, at := range d.view.open {
		if d.holds[at] == 0 && d.marks[at] == unmarked {
			d.marks[at] = markUnsatisfied
		}
	}
	o := d.share(members)
	o.problem = problem
	return o
}

// keeping returns the holders as members; with stay, also those that should yield.
func (d *decider) keeping(stay bool) []member {
	var out []member
	for _, h := range d.holders {
		m := member{at: h.at, prev: h.prev, had: true, capped: h.capped, reason: h.reason, weight: d.view.clusters[h.at].weight}
		switch {
		case h.gone, h.again:
			continue
		case h.yields != unmarked && !stay:
			d.marks[h.at] = h.yields
			continue
		case h.yields != unmarked:
			m.capped, m.reason = true, ReasonKeptNoAlternative
			if m2 := d.marks[h.at]; m2 == h.yields {
				d.marks[h.at] = unmarked // set by an attempt without stay
			}
		}
		out = append(out, m)
	}
	return out
}

// fresh returns the clusters that may take the object and do not have it, or are chosen again.
func (d *decider) fresh() []member {
	out := make([]member, 0, len(d.view.open))
	finished := d.r.Object.Finished && len(d.r.Previous) > 0
	grouped := d.r.Group != nil && (d.r.Group.Pinned || len(d.r.Previous) == 0)
	near, apart := d.domainsOf(d.policy.affinityTerms, d.view.affinity, d.r.Affinity), d.domainsOf(d.policy.antiAffinityTerms, d.view.antiAffinity, d.r.AntiAffinity)
	for _, at := range d.view.open {
		holder := d.holderAt(at)
		if holder != nil && !holder.again || finished {
			continue
		}
		if grouped && d.elsewhere(at) {
			d.marks[at] = markGroup
			continue
		}
		c := &d.fleet.clusters[at]
		m := member{at: at, reason: ReasonChosen, weight: d.view.clusters[at].weight}
		if n := d.near(at); n > 0 {
			m.weight, m.near = m.weight+groupWeight+n, true
		}
		if _, ok := d.r.Obstacles[c.Name]; ok {
			d.marks[at] = markObstacle
			continue
		}
		for i, t := range d.policy.affinityTerms {
			in := near[i].has(d.view.affinity[i][at])
			if t.weight > 0 && in {
				m.weight += t.weight
			} else if t.weight == 0 && !in && !near[i].open {
				d.marks[at] = markAffinity
			}
		}
		for i, t := range d.policy.antiAffinityTerms {
			in := apart[i].has(d.view.antiAffinity[i][at])
			if t.weight > 0 && in {
				m.weight -= t.weight
			} else if t.weight == 0 && in {
				d.marks[at] = markAntiAffinity
			}
		}
		if d.marks[at] == unmarked && d.preempted(at) {
			d.marks[at] = markPreempted
		}
		if holder != nil {
			m.prev = holder.prev
		} else if n, runs := d.r.Running[c.Name]; runs {
			m.prev = n
		} else if d.marks[at] == unmarked && !(d.withinLimits(at) && d.nodesHold(at)) {
			d.marks[at] = markFull
		}
		if d.marks[at] == unmarked {
			out = append(out, m)
		}
	}
	return out
}

// holderAt returns the holder at a position in the fleet, nil if the cluster does not have the object.
func (d *decider) holderAt(at int32) *holder {
	if i := d.holds[at]; i != 0 {
		return &d.holders[i-1]
	}
	return nil
}

// termDomains are the topology domains of the objects that a term selects.
type termDomains struct {
	domains map[int32]bool
	// open: the term selects the object itself and no object is placed yet, so it may start in any
	// domain.
	open bool
}

func (n termDomains) has(domain int32) bool { return domain >= 0 && n.domains[domain] }

func (d *decider) domainsOf(terms []Term, domains [][]int32, neighbours []TermMatches) []termDomains {
	out := make([]termDomains, len(terms))
	for i := range terms {
		out[i].domains = map[int32]bool{}
		if i >= len(neighbours) {
			continue
		}
		for _, name := range neighbours[i].Clusters {
			if at, ok := d.fleet.index[name]; ok {
				out[i].domains[domains[i][at]] = true
			}
		}
		out[i].open = neighbours[i].Self && len(out[i].domains) == 0
	}
	return out
}

// fixedAt returns the replicas that an override sets for a cluster.
func (d *decider) fixedAt(at int32) (int32, bool) {
	for i := len(d.policy.fixed) - 1; i >= 0; i-- { // the last override wins, as with patches
		o := &d.policy.fixed[i]
		if d.view.fixed[i][at] && d.r.Object.Divisible && ofKinds(o.kinds, d.r.Object.Group, d.r.Object.Kind) {
			return o.replicas, true
		}
	}
	return 0, false
}
