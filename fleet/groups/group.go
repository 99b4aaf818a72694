package groups

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Group is one object, and the objects that belong to it.
type Group[ID comparable] struct {
	// Members are the placed objects of the group in a constant order. The object itself is the first.
	Members []Member[ID]
}

// Member is one object of a group.
type Member[ID comparable] struct {
	ID ID
	// Why joins it to the group: "its controller is Train t".
	Why string
	// Weak: only its owner or its Service joins it to the object, so that another policy keeps it apart.
	Weak bool
	// Whole is why it cannot be divided, or "".
	Whole string
	// Claims are the claims of one volume that it mounts: they exist in one cluster.
	Claims []string
	// Near are the objects without which it cannot run in a cluster.
	Near []Near[ID]
}

// Near is one condition on the clusters of a member: one of some objects is there.
type Near[ID comparable] struct {
	Of []ID
	// Ordinal is the replica that has to be there, if Numbered.
	Ordinal  int32
	Numbered bool
	Why      string // "its pods require pods of app=cache beside them"
}

// Of returns the group of an object. It has no members if the object is alone and nothing restricts it.
func (x *Index[ID]) Of(in string, id ID) Group[ID] {
	n := x.namespaces[in]
	if n == nil {
		return Group[ID]{}
	}
	f := n.facts[id]
	if f == nil || !f.Placed {
		return Group[ID]{}
	}
	strong := n.reach([]ID{id}, func(l link) bool { return !l.weak() })
	all := n.reach(strong, func(link) bool { return true })
	if len(all) == 1 && len(f.Claims) == 0 && len(f.Affinity) == 0 {
		return Group[ID]{}
	}
	var g Group[ID]
	for i, other := range all {
		if of := n.facts[other]; of.Placed {
			m := n.member(other, of)
			m.Weak = i >= len(strong)
			g.Members = append(g.Members, m)
		}
	}
	slices.SortFunc(g.Members[1:], func(a, b Member[ID]) int { return n.order[a.ID] - n.order[b.ID] })
	return g
}

// reach returns the objects that links join to some objects, directly or over others. Those come first.
func (n *namespace[ID]) reach(from []ID, follow func(link) bool) []ID {
	out := slices.Clone(from)
	seen := make(map[ID]bool, len(from))
	for _, id := range from {
		seen[id] = true
	}
	followed := map[link]bool{}
	add := func(id ID) {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	for i := 0; i < len(out); i++ {
		f := n.facts[out[i]]
		for _, l := range f.links() {
			if follow(l) && !followed[l] {
				followed[l] = true
				for id := range n.linked[l] {
					add(id)
				}
			}
		}
		n.affinityOf(out[i], f, add)
	}
	return out
}

// affinityOf calls add with the objects that an object's affinity selects, and with those that select it.
func (n *namespace[ID]) affinityOf(id ID, f *Facts, add func(ID)) {
	if len(n.needing) == 0 {
		return
	}
	if f.Pods != nil {
		for other := range n.needing {
			if other != id && slices.ContainsFunc(n.facts[other].Affinity, func(s labels.Selector) bool { return s.Matches(labels.Set(f.Pods)) }) {
				add(other)
			}
		}
	}
	for _, s := range f.Affinity {
		for other, of := range n.facts {
			if other != id && of.Placed && of.Pods != nil && s.Matches(labels.Set(of.Pods)) {
				add(other)
			}
		}
	}
}

// member describes one object of a group.
func (n *namespace[ID]) member(id ID, f *Facts) Member[ID] {
	m := Member[ID]{ID: id}
	for _, l := range f.links() {
		if m.Why == "" && (len(n.linked[l]) > 1 || l.kind == byClaim) {
			m.Why = f.why(l)
		}
	}
	for _, c := range f.Claims {
		if shared, exists := n.shared[c]; exists && !shared {
			m.Claims = append(m.Claims, c)
			m.Whole = fmt.Sprintf("the claim %s that it mounts is one volume, in one cluster", c)
		}
		m.Near = append(m.Near, n.nearTemplate(c)...)
	}
	for _, s := range f.Affinity {
		why := fmt.Sprintf("its pods require pods with %s beside them", s)
		if f.Pods != nil && s.Matches(labels.Set(f.Pods)) {
			m.Whole = why
			continue
		}
		near := Near[ID]{Why: why}
		for other, of := range n.facts {
			if other != id && of.Placed && of.Pods != nil && s.Matches(labels.Set(of.Pods)) {
				near.Of = append(near.Of, other)
			}
		}
		if len(near.Of) > 0 {
			slices.SortFunc(near.Of, func(a, b ID) int { return n.order[a] - n.order[b] })
			m.Near = append(m.Near, near)
		}
	}
	if m.Why == "" && len(m.Near) > 0 {
		m.Why = m.Near[0].Why
	}
	return m
}

// nearTemplate returns the condition of an object that mounts a claim which the template of another one
// makes: it runs where that replica is.
func (n *namespace[ID]) nearTemplate(claim string) (out []Near[ID]) {
	template, ordinal, ok := ordinalOf(claim)
	if _, exists := n.shared[claim]; !ok || exists {
		return nil
	}
	for other := range n.linked[link{byTemplate, template}] {
		if slices.Contains(n.facts[other].Templates, template) {
			out = append(out, Near[ID]{Of: []ID{other}, Ordinal: ordinal, Numbered: true,
				Why: fmt.Sprintf("it mounts the claim %s of a replica there", claim)})
		}
	}
	return out
}

// Whole returns the members that run in one cluster, the same for all, with the reason where they would
// be divided otherwise. whole reports whether a member runs in one cluster by its own mode.
func (g Group[ID]) Whole(whole func(Member[ID]) bool) map[ID]string {
	out := map[ID]string{}
	for _, m := range g.Members {
		if m.Whole != "" || whole(m) {
			out[m.ID] = m.Whole
		}
	}
	for changed := true; changed; {
		changed = false
		for _, m := range g.Members {
			if _, is := out[m.ID]; is {
				continue
			}
			for _, near := range m.Near {
				inOne := func(id ID) bool { _, is := out[id]; return is }
				if !slices.ContainsFunc(near.Of, func(id ID) bool { return !inOne(id) }) {
					out[m.ID], changed = near.Why+", and those run in one cluster", true
				}
			}
		}
	}
	return out
}
