package infra

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"unique"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/reference"
)

// Inventory holds the desired objects and prior states in memory, and the references between them.
// The watcher of the API reports every change to it. It is safe for concurrent use.
//
// It has a logical clock that counts changes. The result of a plan stays valid as long as none of
// its inputs has changed since. So a change need not be propagated to its dependents: see memo.
type Inventory struct {
	language  *reference.Language
	providers Providers

	mu        sync.RWMutex
	index     map[reference.Ref]int32
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
	kind reference.RefKind
	name string
}

func typeKeyOf(ref reference.Ref) typeKey { return typeKey{ref.Kind, ref.Type} }

// node is one object with its state. A node with neither stands for a reference to a missing
// object, so that the edge exists when the object is created.
type node struct {
	ref    reference.Ref
	object *Object
	state  *State
	specInfo
	// uses are the nodes that the object's spec refers to, each once. The list is replaced, never
	// modified. userCount is the number of nodes that use this one.
	uses      []int32
	userCount int32
	// changedAt is the time of the last change of object or state that a plan could see.
	// valueChangedAt is the time of the last such change that is visible to its dependents.
	changedAt, valueChangedAt int64
	memo                      memo
}

func (n *node) isEmpty() bool { return n.object == nil && n.state == nil }

// NewInventory returns an empty Inventory. It parses references with language.
func NewInventory(language *reference.Language, providers Providers) *Inventory {
	return &Inventory{
		language: language, providers: providers,
		index: map[reference.Ref]int32{}, sortedNodes: map[string][]int32{}, kindRevisions: map[typeKey]string{},
	}
}

// Object returns the desired object, or nil.
func (w *Inventory) Object(ref reference.Ref) *Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if at, known := w.index[ref]; known {
		return w.nodes[at].object
	}
	return nil
}

// State returns the stored state, or nil.
func (w *Inventory) State(ref reference.Ref) *State {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if at, known := w.index[ref]; known {
		return w.nodes[at].state
	}
	return nil
}

// Unapplied returns the objects of a namespace whose spec changed since they were last applied,
// with the spec that was last applied.
func (w *Inventory) Unapplied(namespace string) map[reference.Ref][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[reference.Ref][]byte{}
	for _, at := range w.namespaceNodes(namespace) {
		n := &w.nodes[at]
		if n.object != nil && n.state != nil && len(n.state.Spec.Written) > 0 && !bytes.Equal(n.object.Spec, n.state.Spec.Written) {
			out[n.ref] = n.state.Spec.Written
		}
	}
	return out
}

// SetObject records an object that was created or has changed.
func (w *Inventory) SetObject(o *Object) {
	o = internObject(o)
	old := w.Object(o.Ref)
	same := old != nil && equalForPlan(old, o)
	var read specInfo
	var uses []reference.Ref
	if !same {
		read, uses = parseSpec(w.language, o)
	}
	w.noteKind(o.Ref)

	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.nodeOf(o.Ref)
	if state := w.nodes[at].state; state != nil && bytes.Equal(o.Spec, state.Spec.Written) {
		o.Spec = state.Spec.Written // nearly always equal, so that one copy is kept
	}
	if same && w.nodes[at].object == old {
		w.nodes[at].object = o
		return
	}
	if same { // changed concurrently
		read, uses = parseSpec(w.language, o)
	}
	w.setUses(at, uses)
	n := &w.nodes[at]
	if n.object == nil || n.object.Deleting != o.Deleting {
		n.valueChangedAt = w.tick()
	}
	if n.isEmpty() {
		delete(w.sortedNodes, n.ref.Namespace)
	}
	n.object, n.specInfo, n.changedAt = o, read, w.tick()
}

// equalForPlan reports whether two versions of an object give the same plan.
func equalForPlan(a, b *Object) bool {
	return a.UID == b.UID && a.Group == b.Group && a.Kind == b.Kind && a.Deleting == b.Deleting &&
		a.ImportID == b.ImportID && a.Forget == b.Forget && bytes.Equal(a.Spec, b.Spec)
}

// RemoveObject records that an object was deleted.
func (w *Inventory) RemoveObject(ref reference.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.index[ref]
	if !known || w.nodes[at].object == nil {
		return
	}
	w.setUses(at, nil)
	n := &w.nodes[at]
	n.object, n.specInfo, n.memo = nil, specInfo{}, memo{}
	n.changedAt = w.tick()
	n.valueChangedAt = n.changedAt
	if n.isEmpty() {
		delete(w.sortedNodes, ref.Namespace)
	}
	w.dropUnused(at)
}

// SetState records a stored state and returns the copy that the Inventory keeps. Callers that keep
// the state should keep that copy, so that there is only one in memory.
func (w *Inventory) SetState(s *State) *State {
	s = internState(s)
	w.noteKind(s.Ref)
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.nodeOf(s.Ref)
	n := &w.nodes[at]
	if n.state != nil && n.state.UID == s.UID && n.state.ResourceVersion == s.ResourceVersion && s.ResourceVersion != "" {
		return n.state
	}
	if n.state == nil || !equalValue(n.state.Spec.Current, s.Spec.Current) {
		n.valueChangedAt = w.tick()
	}
	if n.isEmpty() {
		delete(w.sortedNodes, n.ref.Namespace)
	}
	if n.object != nil && bytes.Equal(n.object.Spec, s.Spec.Written) {
		s.Spec.Written = n.object.Spec // nearly always equal, so that one copy is kept
	}
	n.state, n.changedAt = s, w.tick()
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
func (w *Inventory) RemoveState(ref reference.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.index[ref]
	if !known || w.nodes[at].state == nil {
		return
	}
	n := &w.nodes[at]
	n.state, n.changedAt = nil, w.tick()
	n.valueChangedAt = n.changedAt
	if n.isEmpty() {
		delete(w.sortedNodes, ref.Namespace)
	}
	w.dropUnused(at)
}

// KindsChanged records that Providers serve other types, or other versions of them.
func (w *Inventory) KindsChanged() {
	w.mu.RLock()
	known := make(map[typeKey]string, len(w.kindRevisions))
	for of := range w.kindRevisions {
		known[of] = ""
	}
	w.mu.RUnlock()
	for of := range known {
		known[of] = w.kindRevision(of)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.tick()
	changed := map[typeKey]bool{}
	for of, revision := range known {
		if w.kindRevisions[of] != revision {
			w.kindRevisions[of], changed[of] = revision, true
		}
	}
	for i := range w.nodes {
		if n := &w.nodes[i]; changed[typeKeyOf(n.ref)] {
			n.changedAt, n.valueChangedAt = now, now
		}
	}
}

// noteKind records the revision of a type when its first object or state arrives.
func (w *Inventory) noteKind(ref reference.Ref) {
	of := typeKeyOf(ref)
	w.mu.RLock()
	_, known := w.kindRevisions[of]
	w.mu.RUnlock()
	if known {
		return
	}
	revision := w.kindRevision(of)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.kindRevisions[of]; !known {
		w.kindRevisions[of] = revision
	}
}

// kindRevision returns the revision of a type, empty if it is not served.
func (w *Inventory) kindRevision(of typeKey) string {
	kind, err := w.providers.Kind(reference.Ref{Kind: of.kind, Type: of.name})
	if err != nil {
		return ""
	}
	return kind.Revision
}

// tick advances the clock and returns the time.
func (w *Inventory) tick() int64 {
	w.clock++
	return w.clock
}

// nodeOf returns the node of a reference and creates it if needed.
func (w *Inventory) nodeOf(ref reference.Ref) int32 {
	if at, known := w.index[ref]; known {
		return at
	}
	ref = internRef(ref)
	fresh := node{ref: ref, valueChangedAt: w.tick()}
	at := int32(len(w.nodes))
	if last := len(w.freeNodes) - 1; last >= 0 {
		at, w.freeNodes = w.freeNodes[last], w.freeNodes[:last]
		w.nodes[at] = fresh
	} else {
		w.nodes = append(w.nodes, fresh)
	}
	w.index[ref] = at
	return at
}

// setUses replaces the nodes that a node refers to.
func (w *Inventory) setUses(at int32, refs []reference.Ref) {
	var uses []int32
	for _, ref := range refs {
		uses = append(uses, w.nodeOf(ref))
	}
	for _, u := range uses {
		w.nodes[u].userCount++
	}
	had := w.nodes[at].uses
	w.nodes[at].uses = uses
	for _, u := range had {
		w.nodes[u].userCount--
		if u != at {
			w.dropUnused(u)
		}
	}
}

// dropUnused removes a node that is empty and unreferenced. Its index is reused.
func (w *Inventory) dropUnused(at int32) {
	n := &w.nodes[at]
	if !n.isEmpty() || n.userCount > 0 {
		return
	}
	delete(w.index, n.ref)
	*n = node{}
	w.freeNodes = append(w.freeNodes, at)
}

// namespaceNodes returns the non-empty nodes of a namespace by address. The caller holds the write lock and
// does not modify the list.
func (w *Inventory) namespaceNodes(namespace string) []int32 {
	if list, made := w.sortedNodes[namespace]; made {
		return list
	}
	var list []int32
	for i := range w.nodes {
		if n := &w.nodes[i]; n.ref.Namespace == namespace && !n.isEmpty() {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return compareRefs(w.nodes[a].ref, w.nodes[b].ref) })
	w.sortedNodes[namespace] = list
	return list
}

// compareRefs orders references as plan.Address.Compare does.
func compareRefs(a, b reference.Ref) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.APIVersion, b.APIVersion),
	)
}

// intern returns the shared copy of a string that a hundred thousand objects have.
func intern(text string) string { return unique.Make(text).Value() }

func internRef(ref reference.Ref) reference.Ref {
	ref.APIVersion, ref.Type, ref.Namespace = intern(ref.APIVersion), intern(ref.Type), intern(ref.Namespace)
	return ref
}

func internObject(o *Object) *Object {
	out := *o
	out.Ref = internRef(o.Ref)
	out.Group, out.Kind, out.Plural = intern(o.Group), intern(o.Kind), intern(o.Plural)
	if len(o.Labels) == 0 {
		out.Labels = nil
	}
	return &out
}

func internState(s *State) *State {
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
