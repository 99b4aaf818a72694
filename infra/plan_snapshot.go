package infra

import (
	"fmt"
	"slices"
	"sort"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// snapshot copies the objects and states of the plan from the Inventory, and applies the overrides.
func (r *planRun) snapshot() error {
	l := &snapshotter{planRun: r, inventory: r.Inventory, overrides: map[reference.Ref]*override{}}
	for _, o := range r.opts.Overrides {
		if o.Ref.Namespace != r.opts.Namespace {
			return fmt.Errorf("%s is not in the planned namespace %q: plan each namespace separately", o.Ref, r.opts.Namespace)
		}
		info, refs := parseSpec(r.Language, o)
		l.overrides[o.Ref] = &override{o, info, refs}
	}
	r.Inventory.mu.Lock()
	defer r.Inventory.mu.Unlock()
	r.snapshotAt = r.Inventory.clock
	l.candidates()
	l.resolveUses()
	r.values = make([]lazyValue, len(r.slots))
	return nil
}

// snapshotter fills the slots of a plan while the Inventory is locked.
type snapshotter struct {
	*planRun
	inventory *Inventory
	overrides map[reference.Ref]*override
	// slotOf maps nodes of the Inventory to their slots, plus 1. missing maps references that the
	// Inventory does not know.
	slotOf  []int32
	missing map[reference.Ref]int32
}

// override is a desired object that replaces the one in the Inventory.
type override struct {
	object *Object
	info   specInfo
	refs   []reference.Ref
}

// candidates creates the slots of all resources that the plan may change, by address.
func (l *snapshotter) candidates() {
	inv := l.inventory
	order := inv.namespaceNodes(l.opts.Namespace)
	l.slotOf = make([]int32, len(inv.nodes))
	l.slots = make([]slot, 0, len(order)+len(l.overrides))
	var added []reference.Ref // overrides without a resource in the Inventory
	for ref := range l.overrides {
		if at, known := inv.index[ref]; !known || inv.nodes[at].isEmpty() {
			added = append(added, ref)
		}
	}
	slices.SortFunc(added, compareRefs)
	for _, at := range order {
		ref := inv.nodes[at].ref
		for len(added) > 0 && compareRefs(added[0], ref) < 0 {
			l.addCandidate(added[0])
			added = added[1:]
		}
		l.addCandidate(ref)
	}
	for _, ref := range added {
		l.addCandidate(ref)
	}
	l.count = len(l.slots)
}

func (l *snapshotter) addCandidate(ref reference.Ref) {
	s := l.newSlot(ref)
	if o := l.overrides[ref]; o != nil {
		s.original = s.object
		s.object, s.specInfo, s.overridden = o.object, o.info, true
	}
	deleting := s.object != nil && s.object.Deleting
	switch l.opts.Mode {
	case plan.Destroy:
		if s.isData() || s.state == nil && !deleting {
			return
		}
	case plan.RefreshOnly:
		if s.state == nil && (!s.isData() || s.object == nil || deleting) {
			return
		}
	default:
		if s.state == nil && (s.object == nil || s.isData() && deleting) {
			return
		}
	}
	l.add(s)
}

// newSlot returns a slot with the Inventory's object and state of a reference.
func (l *snapshotter) newSlot(ref reference.Ref) slot {
	at, known := l.inventory.index[ref]
	if !known {
		return slot{ref: ref, node: -1}
	}
	n := &l.inventory.nodes[at]
	return slot{ref: n.ref, node: at, object: n.object, state: n.state, specInfo: n.specInfo, changedAt: n.changedAt, valueChangedAt: n.valueChangedAt, memo: n.memo}
}

func (l *snapshotter) add(s slot) int32 {
	at := int32(len(l.slots))
	l.slots = append(l.slots, s)
	if s.node >= 0 {
		l.slotOf[s.node] = at + 1
	}
	return at
}

// resolveUses sets the dependencies of each slot. A dependency that is not planned itself gets a
// slot after the others, for its value.
func (l *snapshotter) resolveUses() {
	l.missing = map[reference.Ref]int32{}
	for i := range l.count {
		node, from := l.slots[i].node, len(l.lists)
		if l.slots[i].overridden {
			for _, ref := range l.overrides[l.slots[i].ref].refs {
				l.lists = append(l.lists, l.slotFor(ref))
			}
		} else {
			for _, u := range l.inventory.nodes[node].uses {
				if at := l.slotOf[u]; at > 0 {
					l.lists = append(l.lists, at-1)
				} else {
					l.lists = append(l.lists, l.slotFor(l.inventory.nodes[u].ref))
				}
			}
		}
		l.slots[i].uses = l.lists[from:len(l.lists):len(l.lists)]
	}
}

// slotFor returns the slot of a reference and creates it if needed.
func (l *snapshotter) slotFor(ref reference.Ref) int32 {
	if at, ok := l.find(ref); ok {
		return at
	}
	at, known := l.missing[ref]
	if !known {
		at = l.add(l.newSlot(ref))
		l.missing[ref] = at
	}
	return at
}

// find returns the slot of a resource that can be planned.
func (r *planRun) find(ref reference.Ref) (int32, bool) {
	at := sort.Search(r.count, func(i int) bool { return compareRefs(r.slots[i].ref, ref) >= 0 })
	return int32(at), at < r.count && r.slots[at].ref == ref
}
