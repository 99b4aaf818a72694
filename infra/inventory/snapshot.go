package inventory

import (
	"fmt"
	"slices"
	"sort"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Snapshot is what the Inventory knew at one moment about the resources of a namespace, and about
// the others that they refer to. Later changes of the Inventory do not reach it.
type Snapshot struct {
	// Resources are those that were selected, by address, followed by the others that they refer to.
	Resources []Resource
	// Selected is how many were selected.
	Selected int

	at int64 // by the Inventory's clock
}

// Resource is one object with its state in a Snapshot. Callers do not modify it.
type Resource struct {
	Ref    expr.Ref
	Object *infra.Object // nil if it does not exist
	State  *infra.State  // nil if it does not exist
	SpecInfo
	// Uses are the resources that the spec refers to, each once, as positions in the Snapshot. Only
	// selected resources have them.
	Uses []int32
	// Memo is what the last plan or apply has found.
	Memo Memo
	// Overridden means that Object is an override. Original is the Inventory's object then.
	Overridden bool
	Original   *infra.Object

	node                      int32 // in the Inventory; -1 if it is not there
	changedAt, valueChangedAt int64
}

// IsData reports whether the resource is a data source.
func (r *Resource) IsData() bool { return r.Ref.Kind == expr.Data }

// IsMemoValid reports whether the resource was found to need no change, and has not changed since.
// The values that it uses may have changed, see IsInMemo.
func (r *Resource) IsMemoValid() bool {
	return r.Memo.validAt != 0 && r.changedAt <= r.Memo.validAt && !r.Memo.Unwatched
}

// IsInMemo reports whether the memo was written with the value that used has in the Snapshot.
func (r *Resource) IsInMemo(used *Resource) bool { return used.valueChangedAt <= r.Memo.validAt }

// SnapshotOptions selects the resources of a Snapshot.
type SnapshotOptions struct {
	Namespace string
	// Overrides are objects of the namespace that replace those of the same name.
	Overrides []*infra.Object
	// Select reports whether a resource of the namespace is selected. It is called while the
	// Inventory is locked.
	Select func(*Resource) bool
}

// Snapshot returns the selected resources of a namespace, taken at one moment.
func (inv *Inventory) Snapshot(opts SnapshotOptions) (*Snapshot, error) {
	t := &snapshotter{inventory: inv, opts: opts, overrides: map[expr.Ref]*override{}}
	for _, o := range opts.Overrides {
		if o.Ref.Namespace != opts.Namespace {
			return nil, fmt.Errorf("%s is not in the planned namespace %q: plan each namespace separately", o.Ref, opts.Namespace)
		}
		info, refs := parseSpec(inv.language, o)
		t.overrides[o.Ref] = &override{o, info, refs}
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	t.at = inv.clock
	t.selectResources()
	t.resolveUses()
	return &t.Snapshot, nil
}

// Find returns the position of a selected resource.
func (s *Snapshot) Find(ref expr.Ref) (int32, bool) {
	at := sort.Search(s.Selected, func(i int) bool { return s.Resources[i].Ref.Compare(ref) >= 0 })
	return int32(at), at < s.Selected && s.Resources[at].Ref == ref
}

// snapshotter fills a Snapshot while the Inventory is locked.
type snapshotter struct {
	Snapshot
	inventory *Inventory
	opts      SnapshotOptions
	overrides map[expr.Ref]*override
	// positions maps nodes of the Inventory to their positions, plus 1. missing maps references
	// that the Inventory does not know.
	positions []int32
	missing   map[expr.Ref]int32
	lists     []int32 // backing array of all Uses
}

// override is an object that replaces the one in the Inventory.
type override struct {
	object *infra.Object
	info   SpecInfo
	refs   []expr.Ref
}

// selectResources adds the selected resources, by address.
func (t *snapshotter) selectResources() {
	inv := t.inventory
	order := inv.namespaceNodes(t.opts.Namespace)
	t.positions = make([]int32, len(inv.nodes))
	t.Resources = make([]Resource, 0, len(order)+len(t.overrides))
	var added []expr.Ref // overrides without a resource in the Inventory
	for ref := range t.overrides {
		if at, known := inv.index[ref]; !known || inv.nodes[at].isEmpty() {
			added = append(added, ref)
		}
	}
	slices.SortFunc(added, expr.Ref.Compare)
	for _, at := range order {
		ref := inv.nodes[at].ref
		for len(added) > 0 && added[0].Compare(ref) < 0 {
			t.addIfSelected(added[0])
			added = added[1:]
		}
		t.addIfSelected(ref)
	}
	for _, ref := range added {
		t.addIfSelected(ref)
	}
	t.Selected = len(t.Resources)
}

func (t *snapshotter) addIfSelected(ref expr.Ref) {
	r := t.resource(ref)
	if o := t.overrides[ref]; o != nil {
		r.Original = r.Object
		r.Object, r.SpecInfo, r.Overridden = o.object, o.info, true
	}
	if t.opts.Select(&r) {
		t.add(r)
	}
}

// resource returns the Inventory's object and state of a reference.
func (t *snapshotter) resource(ref expr.Ref) Resource {
	at, known := t.inventory.index[ref]
	if !known {
		return Resource{Ref: ref, node: -1}
	}
	n := &t.inventory.nodes[at]
	return Resource{Ref: n.ref, node: at, Object: n.object, State: n.state, SpecInfo: n.SpecInfo, changedAt: n.changedAt, valueChangedAt: n.valueChangedAt, Memo: n.memo}
}

func (t *snapshotter) add(r Resource) int32 {
	at := int32(len(t.Resources))
	t.Resources = append(t.Resources, r)
	if r.node >= 0 {
		t.positions[r.node] = at + 1
	}
	return at
}

// resolveUses sets the Uses of each selected resource. A used resource that is not selected itself
// is added after the others.
func (t *snapshotter) resolveUses() {
	t.missing = map[expr.Ref]int32{}
	for i := range t.Selected {
		node, from := t.Resources[i].node, len(t.lists)
		if t.Resources[i].Overridden {
			for _, ref := range t.overrides[t.Resources[i].Ref].refs {
				t.lists = append(t.lists, t.position(ref))
			}
		} else {
			for _, u := range t.inventory.nodes[node].uses {
				if at := t.positions[u]; at > 0 {
					t.lists = append(t.lists, at-1)
				} else {
					t.lists = append(t.lists, t.position(t.inventory.nodes[u].ref))
				}
			}
		}
		t.Resources[i].Uses = t.lists[from:len(t.lists):len(t.lists)]
	}
}

// position returns the position of a reference, and adds its resource if needed.
func (t *snapshotter) position(ref expr.Ref) int32 {
	if at, ok := t.Find(ref); ok {
		return at
	}
	at, known := t.missing[ref]
	if !known {
		at = t.add(t.resource(ref))
		t.missing[ref] = at
	}
	return at
}
