// Package inventory keeps desired objects and prior states in memory, with the references between
// them and what the last plan found about each. Plans take a Snapshot of it.
//
// It parses specs for their references and does nothing else with them: it evaluates no expression
// and calls no provider.
package inventory

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"unique"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

// Inventory holds the desired objects and prior states in memory, and the references between them.
// The watcher of the API reports every change to it. It is safe for concurrent use.
//
// It has a logical clock that counts changes. The result of a plan stays valid as long as none of
// its inputs has changed since. So a change need not be propagated to its dependents: see memo.
type Inventory struct {
	language  *expr.Language
	providers infra.Providers

	mu        sync.RWMutex
	index     map[expr.Ref]int32
	nodes     []node
	freeNodes []int32
	clock     int64
	// sortedNodes caches the non-empty nodes of a namespace by address. It is built on demand and
	// dropped when a node becomes empty or non-empty.
	sortedNodes map[string][]int32
	// kindRevisions is the last known revision of each type.
	kindRevisions map[typeKey]string
}

// typeKey is a resource or data source type.
type typeKey struct {
	kind expr.RefKind
	name string
}

func typeKeyOf(ref expr.Ref) typeKey { return typeKey{ref.Kind, ref.Type} }

// node is one object with its state. A node with neither stands for a reference to a missing
// object, so that the edge exists when the object is created.
type node struct {
	ref    expr.Ref
	object *infra.Object
	state  *infra.State
	SpecInfo
	// uses are the nodes that the object's spec refers to, each once. The list is replaced, never
	// modified. userCount is the number of nodes that use this one.
	uses      []int32
	userCount int32
	// changedAt is the time of the last change of object or state that a plan could see.
	// valueChangedAt is the time of the last such change that is visible to its dependents.
	changedAt, valueChangedAt int64
	memo                      Memo
}

func (n *node) isEmpty() bool { return n.object == nil && n.state == nil }

// New returns an empty Inventory. It parses references with language.
func New(language *expr.Language, providers infra.Providers) *Inventory {
	return &Inventory{
		language: language, providers: providers,
		index: map[expr.Ref]int32{}, sortedNodes: map[string][]int32{}, kindRevisions: map[typeKey]string{},
	}
}

// Object returns the desired object, or nil.
func (inv *Inventory) Object(ref expr.Ref) *infra.Object {
	inv.mu.RLock()
	defer inv.mu.RUnlock()
	if at, known := inv.index[ref]; known {
		return inv.nodes[at].object
	}
	return nil
}

// State returns the stored state, or nil.
func (inv *Inventory) State(ref expr.Ref) *infra.State {
	inv.mu.RLock()
	defer inv.mu.RUnlock()
	if at, known := inv.index[ref]; known {
		return inv.nodes[at].state
	}
	return nil
}

// Uses returns the resources and data sources that an object refers to, each once. It returns none
// for an invalid spec.
func (inv *Inventory) Uses(ref expr.Ref) []expr.Ref {
	inv.mu.RLock()
	defer inv.mu.RUnlock()
	at, known := inv.index[ref]
	if !known {
		return nil
	}
	var out []expr.Ref
	for _, u := range inv.nodes[at].uses {
		out = append(out, inv.nodes[u].ref)
	}
	return out
}

// Unapplied returns the objects of a namespace whose spec changed since they were last applied,
// with the spec that was last applied.
func (inv *Inventory) Unapplied(namespace string) map[expr.Ref][]byte {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	out := map[expr.Ref][]byte{}
	for _, at := range inv.namespaceNodes(namespace) {
		n := &inv.nodes[at]
		if n.object != nil && n.state != nil && len(n.state.Spec.Written) > 0 && !bytes.Equal(n.object.Spec, n.state.Spec.Written) {
			out[n.ref] = n.state.Spec.Written
		}
	}
	return out
}

// SetObject records an object that was created or has changed.
func (inv *Inventory) SetObject(o *infra.Object) {
	o = internObject(o)
	old := inv.Object(o.Ref)
	unchanged := old != nil && equalForPlan(old, o)
	var info SpecInfo
	var uses []expr.Ref
	if !unchanged {
		info, uses = parseSpec(inv.language, o)
	}
	inv.noteKind(o.Ref)

	inv.mu.Lock()
	defer inv.mu.Unlock()
	at := inv.nodeOf(o.Ref)
	if state := inv.nodes[at].state; state != nil && bytes.Equal(o.Spec, state.Spec.Written) {
		o.Spec = state.Spec.Written // nearly always equal, so that one copy is kept
	}
	if unchanged && inv.nodes[at].object == old {
		inv.nodes[at].object = o
		return
	}
	if unchanged { // changed concurrently
		info, uses = parseSpec(inv.language, o)
	}
	inv.setUses(at, uses)
	n := &inv.nodes[at]
	if n.object == nil || n.object.Deleting != o.Deleting {
		n.valueChangedAt = inv.tick()
	}
	if n.isEmpty() {
		delete(inv.sortedNodes, n.ref.Namespace)
	}
	n.object, n.SpecInfo, n.changedAt = o, info, inv.tick()
}

// equalForPlan reports whether two versions of an object give the same plan.
func equalForPlan(a, b *infra.Object) bool {
	return a.UID == b.UID && a.Group == b.Group && a.Kind == b.Kind && a.Deleting == b.Deleting &&
		a.ImportID == b.ImportID && a.Forget == b.Forget && a.MovedTo == b.MovedTo && bytes.Equal(a.Spec, b.Spec)
}

// RemoveObject records that an object was deleted.
func (inv *Inventory) RemoveObject(ref expr.Ref) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	at, known := inv.index[ref]
	if !known || inv.nodes[at].object == nil {
		return
	}
	inv.setUses(at, nil)
	n := &inv.nodes[at]
	n.object, n.SpecInfo, n.memo = nil, SpecInfo{}, Memo{}
	n.changedAt = inv.tick()
	n.valueChangedAt = n.changedAt
	if n.isEmpty() {
		delete(inv.sortedNodes, ref.Namespace)
	}
	inv.dropUnused(at)
}

// SetState records a stored state and returns the copy that the Inventory keeps. Callers that keep
// the state should keep that copy, so that there is only one in memory.
func (inv *Inventory) SetState(s *infra.State) *infra.State {
	s = internState(s)
	inv.noteKind(s.Ref)
	inv.mu.Lock()
	defer inv.mu.Unlock()
	at := inv.nodeOf(s.Ref)
	n := &inv.nodes[at]
	if n.state != nil && n.state.UID == s.UID && n.state.ResourceVersion == s.ResourceVersion && s.ResourceVersion != "" {
		return n.state
	}
	if n.state == nil || !equalValue(n.state.Spec.Current, s.Spec.Current) {
		n.valueChangedAt = inv.tick()
	}
	if n.isEmpty() {
		delete(inv.sortedNodes, n.ref.Namespace)
	}
	if n.object != nil && bytes.Equal(n.object.Spec, s.Spec.Written) {
		s.Spec.Written = n.object.Spec // nearly always equal, so that one copy is kept
	}
	if applied := s.Spec.Applied; n.object != nil && applied != nil && maps.Equal(n.object.Labels, applied.Labels) {
		s.Spec.Applied = &v1alpha1.AppliedObject{Labels: n.object.Labels} // likewise
	}
	n.state, n.changedAt = s, inv.tick()
	return s
}

// equalValue reports whether two states have the same value for their dependents.
func equalValue(a, b *v1alpha1.ResourceValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SchemaVersion == b.SchemaVersion && bytes.Equal(a.Value, b.Value) && slices.Equal(a.Sensitive, b.Sensitive)
}

// RemoveState records that a state was deleted.
func (inv *Inventory) RemoveState(ref expr.Ref) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	at, known := inv.index[ref]
	if !known || inv.nodes[at].state == nil {
		return
	}
	n := &inv.nodes[at]
	n.state, n.changedAt = nil, inv.tick()
	n.valueChangedAt = n.changedAt
	if n.isEmpty() {
		delete(inv.sortedNodes, ref.Namespace)
	}
	inv.dropUnused(at)
}

// KindsChanged records that Providers serve other types, or other versions of them.
func (inv *Inventory) KindsChanged() {
	inv.mu.RLock()
	known := make(map[typeKey]string, len(inv.kindRevisions))
	for key := range inv.kindRevisions {
		known[key] = ""
	}
	inv.mu.RUnlock()
	for key := range known {
		known[key] = inv.kindRevision(key)
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	now := inv.tick()
	changed := map[typeKey]bool{}
	for key, revision := range known {
		if inv.kindRevisions[key] != revision {
			inv.kindRevisions[key], changed[key] = revision, true
		}
	}
	for i := range inv.nodes {
		if n := &inv.nodes[i]; changed[typeKeyOf(n.ref)] {
			n.changedAt, n.valueChangedAt = now, now
		}
	}
}

// noteKind records the revision of a type when its first object or state arrives.
func (inv *Inventory) noteKind(ref expr.Ref) {
	key := typeKeyOf(ref)
	inv.mu.RLock()
	_, known := inv.kindRevisions[key]
	inv.mu.RUnlock()
	if known {
		return
	}
	revision := inv.kindRevision(key)
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if _, known := inv.kindRevisions[key]; !known {
		inv.kindRevisions[key] = revision
	}
}

// kindRevision returns the revision of a type, empty if it is not served.
func (inv *Inventory) kindRevision(key typeKey) string {
	kind, err := inv.providers.Kind(expr.Ref{Kind: key.kind, Type: key.name})
	if err != nil {
		return ""
	}
	return kind.Revision
}

// tick advances the clock and returns the time.
func (inv *Inventory) tick() int64 {
	inv.clock++
	return inv.clock
}

// nodeOf returns the node of a reference and creates it if needed.
func (inv *Inventory) nodeOf(ref expr.Ref) int32 {
	if at, known := inv.index[ref]; known {
		return at
	}
	ref = internRef(ref)
	added := node{ref: ref, valueChangedAt: inv.tick()}
	at := int32(len(inv.nodes))
	if last := len(inv.freeNodes) - 1; last >= 0 {
		at, inv.freeNodes = inv.freeNodes[last], inv.freeNodes[:last]
		inv.nodes[at] = added
	} else {
		inv.nodes = append(inv.nodes, added)
	}
	inv.index[ref] = at
	return at
}

// setUses replaces the nodes that a node refers to.
func (inv *Inventory) setUses(at int32, refs []expr.Ref) {
	var uses []int32
	for _, ref := range refs {
		uses = append(uses, inv.nodeOf(ref))
	}
	for _, u := range uses {
		inv.nodes[u].userCount++
	}
	old := inv.nodes[at].uses
	inv.nodes[at].uses = uses
	for _, u := range old {
		inv.nodes[u].userCount--
		if u != at {
			inv.dropUnused(u)
		}
	}
}

// dropUnused removes a node that is empty and unreferenced. Its index is reused.
func (inv *Inventory) dropUnused(at int32) {
	n := &inv.nodes[at]
	if !n.isEmpty() || n.userCount > 0 {
		return
	}
	delete(inv.index, n.ref)
	*n = node{}
	inv.freeNodes = append(inv.freeNodes, at)
}

// namespaceNodes returns the non-empty nodes of a namespace by address. The caller holds the write
// lock and does not modify the list.
func (inv *Inventory) namespaceNodes(namespace string) []int32 {
	if list, cached := inv.sortedNodes[namespace]; cached {
		return list
	}
	var list []int32
	for i := range inv.nodes {
		if n := &inv.nodes[i]; n.ref.Namespace == namespace && !n.isEmpty() {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return inv.nodes[a].ref.Compare(inv.nodes[b].ref) })
	inv.sortedNodes[namespace] = list
	return list
}

// intern returns the shared copy of a string that a hundred thousand objects have.
func intern(text string) string { return unique.Make(text).Value() }

func internRef(ref expr.Ref) expr.Ref {
	ref.APIVersion, ref.Type, ref.Namespace = intern(ref.APIVersion), intern(ref.Type), intern(ref.Namespace)
	return ref
}

func internObject(o *infra.Object) *infra.Object {
	out := *o
	out.Ref = internRef(o.Ref)
	out.Group, out.Kind, out.Plural = intern(o.Group), intern(o.Kind), intern(o.Plural)
	if len(o.Labels) == 0 {
		out.Labels = nil
	}
	return &out
}

func internState(s *infra.State) *infra.State {
	out := *s
	out.Ref = internRef(s.Ref)
	out.Spec.Type, out.Spec.Provider, out.Spec.ProviderConfig = intern(s.Spec.Type), intern(s.Spec.Provider), intern(s.Spec.ProviderConfig)
	out.Spec.Object.Group, out.Spec.Object.Kind = intern(s.Spec.Object.Group), intern(s.Spec.Object.Kind)
	out.Spec.Object.Name = out.Ref.Name
	if s.Spec.Carried != nil {
		carried := *s.Spec.Carried
		carried.ApplyUID = intern(carried.ApplyUID)
		out.Spec.Carried = &carried
	}
	return &out
}
