package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// policyView is how one policy sees a fleet. It holds the results that are equal for all objects of
// the policy, so they are computed once.
type policyView struct {
	clusters []clusterView // by position in the fleet
	open     []int32       // clusters that may take a new object: preferred ones first
	// groups has for each spread constraint the group of each cluster; -1 if it has none. names are
	// the names of the groups.
	groups [][]int32
	names  [][]string
	// affinity and antiAffinity have the topology domains for the terms of workload affinity and
	// anti-affinity.
	affinity, antiAffinity [][]int32
	fixed                  [][]bool // for each fixed share, the clusters that it applies to
	unknown                string   // names clusters that the policy names and that have not joined
}

// clusterView is how the policy sees one cluster.
type clusterView struct {
	rejection      string // the reason why it takes no new object, or ""
	selected       bool   // the policy selects it
	avoided        bool
	missingKey     int8  // position of the constraint whose label it lacks, or -1
	group          int32 // position of its group in the policy's order
	weight         int32
	divisionWeight int32 // in a division by weight
	taint          *v1alpha1.Taint
	eviction       eviction // what the taint does to existing objects
	until          time.Time
}

// eviction is what taints do to objects that are in a cluster already.
type eviction uint8

const (
	evictNever   eviction = iota
	evictUnknown          // later, but the start time is unknown
	evictLater            // at clusterView.until
	evictNow
)

func newPolicyView(f *Fleet, p *Policy) *policyView {
	v := &policyView{clusters: make([]clusterView, len(f.clusters))}
	for _, c := range p.spread {
		ids, names := group(f, c.key)
		v.groups, v.names = append(v.groups, ids), append(v.names, names)
	}
	for i := range f.clusters {
		v.clusters[i] = p.evaluate(&f.clusters[i], f.object(int32(i)))
		for j := range p.spread {
			if v.groups[j][i] < 0 && v.clusters[i].missingKey < 0 {
				v.clusters[i].missingKey = int8(j)
				if v.clusters[i].rejection == "" {
					v.clusters[i].rejection = ReasonNoGroup
				}
			}
		}
		if v.clusters[i].rejection == "" {
			v.open = append(v.open, int32(i))
		}
	}
	slices.SortStableFunc(v.open, func(a, b int32) int {
		return cmp.Or(cmp.Compare(v.clusters[a].group, v.clusters[b].group), cmp.Compare(v.clusters[b].weight, v.clusters[a].weight))
	})
	v.affinity, v.antiAffinity = domains(f, p.affinityTerms), domains(f, p.antiAffinityTerms)
	v.unknown = unknownText(f, p.named)
	for _, o := range p.fixed {
		on := make([]bool, len(f.clusters))
		for i := range f.clusters {
			on[i] = o.selects(&f.clusters[i], f.object(int32(i)))
		}
		v.fixed = append(v.fixed, on)
	}
	return v
}

// unknownText is the end of a message about clusters that have not joined: probably mistakes in names.
func unknownText(f *Fleet, named []string) string {
	const most = 5
	missing := slices.DeleteFunc(slices.Clone(named), func(name string) bool { _, joined := f.index[name]; return joined })
	if len(missing) == 0 {
		return ""
	}
	text := "; the policy also names clusters that have not joined: " + strings.Join(missing[:min(most, len(missing))], ", ")
	if more := len(missing) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// evaluate evaluates one cluster, independent of the object.
func (p *Policy) evaluate(c *Cluster, object func() map[string]any) clusterView {
	s := clusterView{missingKey: -1, selected: p.selects(c, object), group: max(0, p.groupOf(c, object))}
	p.taints(c, &s)
	switch {
	case c.Leaving:
		s.rejection = ReasonLeaving
	case !s.selected:
		s.rejection = ReasonUnselected
	case s.eviction != evictNever:
		s.rejection = ReasonTainted
	case c.Draining:
		s.rejection = ReasonDrained
	case !c.Ready:
		s.rejection = ReasonNotReady
	case s.taint != nil && !s.avoided:
		s.rejection = ReasonTainted
	case c.Unschedulable:
		s.rejection = ReasonUnschedulable
	}
	for _, a := range p.affinity {
		if a.selects(c, object) {
			s.weight += a.weight
		}
	}
	s.divisionWeight = 1
	if p.by == v1alpha1.DivideWeighted {
		s.divisionWeight = 0
		if i := slices.IndexFunc(p.weights, func(w preference) bool { return w.selects(c, object) }); i >= 0 {
			s.divisionWeight = p.weights[i].weight
		}
	}
	return s
}

// taints finds the taint with the strongest effect.
func (p *Policy) taints(c *Cluster, s *clusterView) {
	rank := 0
	for i := range c.Taints {
		t := &c.Taints[i]
		limit, tolerated := p.tolerated(t)
		what, drives, until := 0, evictNever, time.Time{}
		switch {
		case tolerated && (t.Effect != v1alpha1.TaintNoExecute || limit < 0):
		case t.Effect == v1alpha1.TaintPreferNoSchedule:
			what = 1
		case t.Effect == v1alpha1.TaintNoSchedule:
			what = 2
		case tolerated && t.TimeAdded == nil:
			what, drives = 3, evictUnknown
		case tolerated:
			what, drives, until = 4, evictLater, t.TimeAdded.Add(limit)
		default:
			what, drives = 5, evictNow
		}
		if what > rank || what == 4 && rank == 4 && until.Before(s.until) {
			rank, s.taint, s.eviction, s.until, s.avoided = what, t, drives, until, what == 1
		}
	}
}

// tolerated reports whether a taint is tolerated, and for how long; negative means for ever.
func (p *Policy) tolerated(t *v1alpha1.Taint) (limit time.Duration, tolerated bool) {
	for i := range p.spec.Tolerations {
		toleration := &p.spec.Tolerations[i]
		if !toleration.Tolerates(t) {
			continue
		}
		if toleration.TolerationSeconds == nil {
			return -1, true
		}
		limit, tolerated = max(limit, time.Duration(*toleration.TolerationSeconds)*time.Second), true
	}
	return limit, tolerated
}

func taintText(t *v1alpha1.Taint) string {
	if t.Value == "" {
		return fmt.Sprintf("%s:%s", t.Key, t.Effect)
	}
	return fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect)
}

// group numbers the values of a label, in order of joining.
func group(f *Fleet, key string) (ids []int32, names []string) {
	ids = make([]int32, len(f.clusters))
	known := map[string]int32{}
	for i := range f.clusters {
		value, ok := f.clusters[i].Labels[key]
		if !ok {
			ids[i] = -1
			continue
		}
		id, seen := known[value]
		if !seen {
			id = int32(len(names))
			known[value], names = id, append(names, value)
		}
		ids[i] = id
	}
	return ids, names
}

// domains numbers the topology domains of the clusters, for each term.
func domains(f *Fleet, terms []Term) (out [][]int32) {
	for _, t := range terms {
		ids := make([]int32, len(f.clusters))
		if t.key == "" {
			for i := range ids {
				ids[i] = int32(i)
			}
		} else {
			ids, _ = group(f, t.key)
		}
		out = append(out, ids)
	}
	return out
}

// Impact is which objects a change of one cluster affects.
type Impact int

// The values of Impact.
const (
	ImpactNone Impact = iota
	// ImpactHolders: objects that the cluster has.
	ImpactHolders
	// ImpactWaiting: also objects that are not fully placed, for lack of a cluster.
	ImpactWaiting
	// ImpactAll: all objects of the policy.
	ImpactAll
)

// ChangeImpact returns which objects of a policy a change of a cluster affects. was is nil if the
// cluster is new, and is is nil if it is gone.
func (p *Policy) ChangeImpact(was, is *Cluster) Impact {
	switch {
	case was == nil && is == nil:
		return ImpactNone
	case is == nil:
		return ImpactHolders
	case was == nil:
		if p.evaluate(is, is.content).rejection != "" {
			return ImpactNone
		}
		return p.opening()
	}
	before, after := p.evaluate(was, was.content), p.evaluate(is, is.content)
	before.taint, after.taint = nil, nil
	moved := slices.ContainsFunc(p.labelsRead(), func(key string) bool { return was.Labels[key] != is.Labels[key] })
	switch {
	case before.rejection != "" && after.rejection == "":
		return p.opening()
	case before.group != after.group:
		return ImpactAll
	case moved || before.divisionWeight != after.divisionWeight || p.fixedDiffer(was, is):
		return ImpactAll
	case before.rejection == "" && after.rejection == "" && before == after && was.roomFor(is):
		return ImpactNone
	case before.rejection == "" && after.rejection == "":
		return ImpactWaiting
	case before.rejection != "" && after.rejection != "" && !before.selected && !after.selected && was.Leaving == is.Leaving && was.Ready == is.Ready:
		return ImpactNone
	}
	return ImpactHolders
}

// opening returns the impact of a cluster that newly accepts objects: all objects if the policy
// wants all clusters, and otherwise those that still need one.
func (p *Policy) opening() Impact {
	if p.most == noLimit && p.spec.Mode != v1alpha1.ModeSingle {
		return ImpactAll
	}
	return ImpactWaiting
}

// roomFor reports whether a cluster has as much room as before, as far as that affects decisions.
func (c *Cluster) roomFor(is *Cluster) bool {
	before, bounded := bounds(c.Limits, c.Allocatable)
	after, boundedNow := bounds(is.Limits, is.Allocatable)
	return bounded == boundedNow && before == after
}

func (p *Policy) fixedDiffer(was, is *Cluster) bool {
	differ := func(s *selector) bool { return s.selects(was, was.content) != s.selects(is, is.content) }
	return slices.ContainsFunc(p.fixed, func(o fixed) bool { return differ(o.selector) }) ||
		slices.ContainsFunc(p.changes, func(o change) bool { return differ(o.selector) })
}

// labelsRead returns the labels that define groups.
func (p *Policy) labelsRead() []string {
	var out []string
	for _, c := range p.spread {
		out = append(out, c.key)
	}
	return out
}
