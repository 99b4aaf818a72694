package groups

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Index has the facts about all objects, by namespace. ID identifies an object. It is not safe for
// concurrent use.
type Index[ID comparable] struct{ namespaces map[string]*namespace[ID] }

// namespace has the facts about the objects of one namespace.
type namespace[ID comparable] struct {
	facts map[ID]*Facts
	// order makes results the same whatever the order of maps.
	order  map[ID]int
	next   int
	linked map[link]map[ID]bool
	// needing are the objects with an affinity.
	needing map[ID]bool
	// shared are the claims that exist: whether several clusters may have them.
	shared map[string]bool
}

// NewIndex returns an empty Index.
func NewIndex[ID comparable]() *Index[ID] {
	return &Index[ID]{namespaces: map[string]*namespace[ID]{}}
}

func (x *Index[ID]) in(name string) *namespace[ID] {
	n := x.namespaces[name]
	if n == nil {
		n = &namespace[ID]{facts: map[ID]*Facts{}, order: map[ID]int{}, linked: map[link]map[ID]bool{}, needing: map[ID]bool{}, shared: map[string]bool{}}
		x.namespaces[name] = n
	}
	return n
}

// Set replaces the facts about an object, and returns the other objects about which this may change
// the decision: those that need its pods, and those that it connects.
func (x *Index[ID]) Set(in string, id ID, now Facts) (affected []ID) {
	n := x.in(in)
	was := n.facts[id]
	if was != nil && reflect.DeepEqual(*was, now) {
		return nil
	}
	affected = n.affectedBy(id)
	n.remove(id)
	if links := now.links(); len(links) > 0 || now.related() {
		n.facts[id] = &now
		n.order[id] = n.next
		n.next++
		for _, l := range links {
			if n.linked[l] == nil {
				n.linked[l] = map[ID]bool{}
			}
			n.linked[l][id] = true
		}
		if len(now.Affinity) > 0 {
			n.needing[id] = true
		}
	}
	for _, other := range n.affectedBy(id) {
		if !slices.Contains(affected, other) {
			affected = append(affected, other)
		}
	}
	x.dropEmpty(in)
	return affected
}

// Delete forgets an object, and returns the objects that this may affect.
func (x *Index[ID]) Delete(in string, id ID) (affected []ID) {
	n := x.namespaces[in]
	if n == nil || n.facts[id] == nil {
		return nil
	}
	affected = n.affectedBy(id)
	n.remove(id)
	x.dropEmpty(in)
	return affected
}

func (x *Index[ID]) dropEmpty(in string) {
	if n := x.namespaces[in]; len(n.facts) == 0 && len(n.shared) == 0 {
		delete(x.namespaces, in)
	}
}

// SetClaim records a claim that exists. Several clusters may have it if shared is set. It returns the
// objects that mount it, if that is news.
func (x *Index[ID]) SetClaim(in, name string, shared bool) (affected []ID) {
	n := x.in(in)
	if was, known := n.shared[name]; known && was == shared {
		return nil
	}
	n.shared[name] = shared
	return n.sorted(maps.Clone(n.linked[link{byClaim, name}]))
}

// DeleteClaim forgets a claim, and returns the objects that mount it.
func (x *Index[ID]) DeleteClaim(in, name string) (affected []ID) {
	n := x.namespaces[in]
	if n == nil {
		return nil
	}
	if _, known := n.shared[name]; !known {
		return nil
	}
	delete(n.shared, name)
	affected = n.sorted(maps.Clone(n.linked[link{byClaim, name}]))
	x.dropEmpty(in)
	return affected
}

func (n *namespace[ID]) remove(id ID) {
	was := n.facts[id]
	if was == nil {
		return
	}
	for _, l := range was.links() {
		delete(n.linked[l], id)
		if len(n.linked[l]) == 0 {
			delete(n.linked, l)
		}
	}
	delete(n.facts, id)
	delete(n.order, id)
	delete(n.needing, id)
}

// Dependents returns the objects whose decision depends on where an object is: those whose pods require
// its pods beside them, and those that mount the claims of its replicas.
func (x *Index[ID]) Dependents(in string, id ID) []ID {
	n := x.namespaces[in]
	if n == nil || n.facts[id] == nil || !n.facts[id].Placed {
		return nil
	}
	return n.affectedBy(id)
}

// affectedBy returns the objects whose decision depends on whether another one exists: its dependents,
// and those that an owner in between connects.
func (n *namespace[ID]) affectedBy(id ID) []ID {
	f := n.facts[id]
	if f == nil {
		return nil
	}
	out := map[ID]bool{}
	if f.Pods != nil {
		for other := range n.needing {
			if other != id && slices.ContainsFunc(n.facts[other].Affinity, func(s labels.Selector) bool { return s.Matches(labels.Set(f.Pods)) }) {
				out[other] = true
			}
		}
	}
	if !f.Placed {
		for _, l := range f.links() {
			for other := range n.linked[l] {
				out[other] = n.facts[other].Placed
			}
		}
	}
	for _, t := range f.Templates {
		for other := range n.linked[link{byTemplate, t}] {
			out[other] = other != id
		}
	}
	maps.DeleteFunc(out, func(_ ID, yes bool) bool { return !yes })
	return n.sorted(out)
}

// sorted returns objects in the order in which they came.
func (n *namespace[ID]) sorted(set map[ID]bool) []ID {
	return slices.SortedFunc(maps.Keys(set), func(a, b ID) int { return n.order[a] - n.order[b] })
}
