package infra

import (
	"fmt"
	"slices"
	"sort"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// look takes what the plan is about out of the World, as it is now, with what is taken for written.
func (r *run) look() error {
	l := &looking{run: r, world: r.World, written: map[reference.Ref]*writtenObject{}}
	for _, o := range r.what.Written {
		if o.Ref.Namespace != r.what.Namespace {
			return fmt.Errorf("%s is not in the namespace %q that is planned: plan each namespace on its own", o.Ref, r.what.Namespace)
		}
		read, refs := readSpec(r.Language, o)
		l.written[o.Ref] = &writtenObject{o, read, refs}
	}
	r.World.mu.Lock()
	defer r.World.mu.Unlock()
	r.looked = r.World.clock
	l.candidates()
	l.used()
	r.views = make([]view, len(r.slots))
	return nil
}

// looking fills in the slots of a plan, while the World does not change.
type looking struct {
	*run
	world   *World
	written map[reference.Ref]*writtenObject
	// places are the slots of the World's nodes, plus 1; others those of what the World has never heard of.
	places []int32
	others map[reference.Ref]int32
}

// writtenObject is taken for written.
type writtenObject struct {
	object *Object
	read   reading
	refs   []reference.Ref
}

// candidates makes the slots of all that the plan has to say something of, by address.
func (l *looking) candidates() {
	w := l.world
	order := w.inOrder(l.what.Namespace)
	l.places = make([]int32, len(w.nodes))
	l.slots = make([]slot, 0, len(order)+len(l.written))
	var fresh []reference.Ref // written, and nothing is there yet
	for ref := range l.written {
		if at, known := w.numbers[ref]; !known || w.nodes[at].empty() {
			fresh = append(fresh, ref)
		}
	}
	slices.SortFunc(fresh, compareRefs)
	for _, at := range order {
		ref := w.nodes[at].ref
		for len(fresh) > 0 && compareRefs(fresh[0], ref) < 0 {
			l.candidate(fresh[0])
			fresh = fresh[1:]
		}
		l.candidate(ref)
	}
	for _, ref := range fresh {
		l.candidate(ref)
	}
	l.count = len(l.slots)
}

func (l *looking) candidate(ref reference.Ref) {
	s := l.slot(ref)
	if written := l.written[ref]; written != nil {
		s.was = s.object
		s.object, s.reading, s.written = written.object, written.read, true
	}
	deleting := s.object != nil && s.object.Deleting
	switch l.what.Mode {
	case plan.Destroy:
		if s.data() || s.state == nil && !deleting {
			return
		}
	case plan.RefreshOnly:
		if s.state == nil && (!s.data() || s.object == nil || deleting) {
			return
		}
	default:
		if s.state == nil && (s.object == nil || s.data() && deleting) {
			return
		}
	}
	l.add(s)
}

// slot is what the World has of a reference.
func (l *looking) slot(ref reference.Ref) slot {
	at, known := l.world.numbers[ref]
	if !known {
		return slot{ref: ref, node: -1}
	}
	n := &l.world.nodes[at]
	return slot{ref: n.ref, node: at, object: n.object, state: n.state, reading: n.reading, moved: n.moved, seen: n.seen, memo: n.memo}
}

func (l *looking) add(s slot) int32 {
	at := int32(len(l.slots))
	l.slots = append(l.slots, s)
	if s.node >= 0 {
		l.places[s.node] = at + 1
	}
	return at
}

// used has each slot say which others it refers to. What is not planned itself gets a slot behind the others: only its value
// counts.
func (l *looking) used() {
	l.others = map[reference.Ref]int32{}
	for i := range l.count {
		node, from := l.slots[i].node, len(l.lists)
		if l.slots[i].written {
			for _, ref := range l.written[l.slots[i].ref].refs {
				l.lists = append(l.lists, l.place(ref))
			}
		} else {
			for _, u := range l.world.nodes[node].uses {
				if at := l.places[u]; at > 0 {
					l.lists = append(l.lists, at-1)
				} else {
					l.lists = append(l.lists, l.place(l.world.nodes[u].ref))
				}
			}
		}
		l.slots[i].uses = l.lists[from:len(l.lists):len(l.lists)]
	}
}

// place is the slot of a reference, made if there is none.
func (l *looking) place(ref reference.Ref) int32 {
	if at, is := l.find(ref); is {
		return at
	}
	at, known := l.others[ref]
	if !known {
		at = l.add(l.slot(ref))
		l.others[ref] = at
	}
	return at
}

// find gives the slot of what can be planned.
func (r *run) find(ref reference.Ref) (int32, bool) {
	at := sort.Search(r.count, func(i int) bool { return compareRefs(r.slots[i].ref, ref) >= 0 })
	return int32(at), at < r.count && r.slots[at].ref == ref
}
