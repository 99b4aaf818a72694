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

// World is what is written and what is there, in memory, with who refers to whom. Whoever follows
// the API tells it of changes. It is safe for concurrent use.
//
// It has a clock of its own, which counts changes: what a plan found out is good as long
// as nothing that it came from has changed since. So nobody has to spread a change to all that depends
// on it: see memo.
type World struct {
	language  *reference.Language
	providers Providers

	mu      sync.RWMutex
	numbers map[reference.Ref]int32
	nodes   []node
	free    []int32
	clock   int64
	// sorted is what is written or there in a namespace, by address. It is made when it is asked
	// for, and thrown away when something comes or goes.
	sorted map[string][]int32
	// served is by which revision each type was served when it was looked at last.
	served map[typeName]string
}

// typeName is a type of resources or of data sources.
type typeName struct {
	kind reference.Kind
	name string
}

func typeOf(ref reference.Ref) typeName { return typeName{ref.Kind, ref.Type} }

// node is one object with its state. A node with neither stands for what is referred to and not
// there, so that it connects when it comes.
type node struct {
	ref    reference.Ref
	object *Object
	state  *State
	reading
	// uses is what the object's spec refers to, each once; users how many refer to this one. A list is
	// never changed, but replaced.
	uses  []int32
	users int32
	// moved is when the object or the state last changed in a way that a plan could see, and seen when
	// that did which others see of it.
	moved, seen int64
	memo        memo
}

func (n *node) empty() bool { return n.object == nil && n.state == nil }

// NewWorld gives a World in which nothing is. It needs the language to read references.
func NewWorld(language *reference.Language, providers Providers) *World {
	return &World{
		language: language, providers: providers,
		numbers: map[reference.Ref]int32{}, sorted: map[string][]int32{}, served: map[typeName]string{},
	}
}

// Object gives what is written, nil if nothing is.
func (w *World) Object(ref reference.Ref) *Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if at, known := w.numbers[ref]; known {
		return w.nodes[at].object
	}
	return nil
}

// State gives what is stored, nil if nothing is.
func (w *World) State(ref reference.Ref) *State {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if at, known := w.numbers[ref]; known {
		return w.nodes[at].state
	}
	return nil
}

// Unapplied are the objects of a namespace that were written since they were last carried out, with the spec that was.
func (w *World) Unapplied(namespace string) map[reference.Ref][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[reference.Ref][]byte{}
	for _, at := range w.inOrder(namespace) {
		n := &w.nodes[at]
		if n.object != nil && n.state != nil && len(n.state.Spec.Written) > 0 && !bytes.Equal(n.object.Spec, n.state.Spec.Written) {
			out[n.ref] = n.state.Spec.Written
		}
	}
	return out
}

// SetObject takes in an object that was made or has changed.
func (w *World) SetObject(o *Object) {
	o = compactObject(o)
	old := w.Object(o.Ref)
	same := old != nil && sameObject(old, o)
	var read reading
	var uses []reference.Ref
	if !same {
		read, uses = readSpec(w.language, o)
	}
	w.look(o.Ref)

	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.number(o.Ref)
	if state := w.nodes[at].state; state != nil && bytes.Equal(o.Spec, state.Spec.Written) {
		o.Spec = state.Spec.Written // of nearly all it is the same, and held once
	}
	if same && w.nodes[at].object == old {
		w.nodes[at].object = o
		return
	}
	if same { // somebody else has set it in between
		read, uses = readSpec(w.language, o)
	}
	w.connect(at, uses)
	n := &w.nodes[at]
	if n.object == nil || n.object.Deleting != o.Deleting {
		n.seen = w.tick()
	}
	if n.empty() {
		delete(w.sorted, n.ref.Namespace)
	}
	n.object, n.reading, n.moved = o, read, w.tick()
}

// sameObject tells whether two versions of an object come to the same for a plan.
func sameObject(a, b *Object) bool {
	return a.UID == b.UID && a.Group == b.Group && a.Kind == b.Kind && a.Deleting == b.Deleting &&
		a.ImportID == b.ImportID && a.Forget == b.Forget && bytes.Equal(a.Spec, b.Spec)
}

// RemoveObject takes in that there is no such object any more.
func (w *World) RemoveObject(ref reference.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.numbers[ref]
	if !known || w.nodes[at].object == nil {
		return
	}
	w.connect(at, nil)
	n := &w.nodes[at]
	n.object, n.reading, n.memo = nil, reading{}, memo{}
	n.moved = w.tick()
	n.seen = n.moved
	if n.empty() {
		delete(w.sorted, ref.Namespace)
	}
	w.drop(at)
}

// SetState takes in a state that was stored, and gives it as it is kept: who keeps it too keeps that one, so that there
// is one of it.
func (w *World) SetState(s *State) *State {
	s = compactState(s)
	w.look(s.Ref)
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.number(s.Ref)
	n := &w.nodes[at]
	if n.state != nil && n.state.UID == s.UID && n.state.ResourceVersion == s.ResourceVersion && s.ResourceVersion != "" {
		return n.state
	}
	if n.state == nil || !sameSeen(n.state.Spec.Current, s.Spec.Current) {
		n.seen = w.tick()
	}
	if n.empty() {
		delete(w.sorted, n.ref.Namespace)
	}
	if n.object != nil && bytes.Equal(n.object.Spec, s.Spec.Written) {
		s.Spec.Written = n.object.Spec // of nearly all it is the same, and held once
	}
	n.state, n.moved = s, w.tick()
	return s
}

// sameSeen tells whether others see the same of two states.
func sameSeen(a, b *v1alpha1.ResourceValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SchemaVersion == b.SchemaVersion && bytes.Equal(a.Value, b.Value) && slices.Equal(a.Sensitive, b.Sensitive)
}

// RemoveState takes in that there is no such state any more.
func (w *World) RemoveState(ref reference.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, known := w.numbers[ref]
	if !known || w.nodes[at].state == nil {
		return
	}
	n := &w.nodes[at]
	n.state, n.moved = nil, w.tick()
	n.seen = n.moved
	if n.empty() {
		delete(w.sorted, ref.Namespace)
	}
	w.drop(at)
}

// KindsChanged takes in that Providers serve other types than before, or other versions of them.
func (w *World) KindsChanged() {
	w.mu.RLock()
	known := make(map[typeName]string, len(w.served))
	for of := range w.served {
		known[of] = ""
	}
	w.mu.RUnlock()
	for of := range known {
		known[of] = w.revision(of)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.tick()
	changed := map[typeName]bool{}
	for of, revision := range known {
		if w.served[of] != revision {
			w.served[of], changed[of] = revision, true
		}
	}
	for i := range w.nodes {
		if n := &w.nodes[i]; changed[typeOf(n.ref)] {
			n.moved, n.seen = now, now
		}
	}
}

// look notes which revision serves a type, when the first of it comes.
func (w *World) look(ref reference.Ref) {
	of := typeOf(ref)
	w.mu.RLock()
	_, known := w.served[of]
	w.mu.RUnlock()
	if known {
		return
	}
	revision := w.revision(of)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.served[of]; !known {
		w.served[of] = revision
	}
}

// revision is what serves a type, empty if nothing does.
func (w *World) revision(of typeName) string {
	kind, err := w.providers.Kind(reference.Ref{Kind: of.kind, Type: of.name})
	if err != nil {
		return ""
	}
	return kind.Revision
}

// tick is the time of a change.
func (w *World) tick() int64 {
	w.clock++
	return w.clock
}

// number finds a node, or makes one.
func (w *World) number(ref reference.Ref) int32 {
	if at, known := w.numbers[ref]; known {
		return at
	}
	ref = compactRef(ref)
	fresh := node{ref: ref, seen: w.tick()}
	at := int32(len(w.nodes))
	if last := len(w.free) - 1; last >= 0 {
		at, w.free = w.free[last], w.free[:last]
		w.nodes[at] = fresh
	} else {
		w.nodes = append(w.nodes, fresh)
	}
	w.numbers[ref] = at
	return at
}

// connect says what a node refers to from now on.
func (w *World) connect(at int32, refs []reference.Ref) {
	var uses []int32
	for _, ref := range refs {
		uses = append(uses, w.number(ref))
	}
	for _, u := range uses {
		w.nodes[u].users++
	}
	had := w.nodes[at].uses
	w.nodes[at].uses = uses
	for _, u := range had {
		w.nodes[u].users--
		if u != at {
			w.drop(u)
		}
	}
}

// drop forgets a node that nothing is left of and nobody refers to. The number will be given again.
func (w *World) drop(at int32) {
	n := &w.nodes[at]
	if !n.empty() || n.users > 0 {
		return
	}
	delete(w.numbers, n.ref)
	*n = node{}
	w.free = append(w.free, at)
}

// inOrder is what is written or there in a namespace, by address. The caller holds the lock for writing, and does not change the
// list.
func (w *World) inOrder(namespace string) []int32 {
	if list, made := w.sorted[namespace]; made {
		return list
	}
	var list []int32
	for i := range w.nodes {
		if n := &w.nodes[i]; n.ref.Namespace == namespace && !n.empty() {
			list = append(list, int32(i))
		}
	}
	slices.SortFunc(list, func(a, b int32) int { return compareRefs(w.nodes[a].ref, w.nodes[b].ref) })
	w.sorted[namespace] = list
	return list
}

// compareRefs orders references as plan.Address.Compare does.
func compareRefs(a, b reference.Ref) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group),
	)
}

// shared is the one copy of a text that a hundred thousand objects have.
func shared(text string) string { return unique.Make(text).Value() }

func compactRef(ref reference.Ref) reference.Ref {
	ref.Group, ref.Type, ref.Namespace = shared(ref.Group), shared(ref.Type), shared(ref.Namespace)
	return ref
}

func compactObject(o *Object) *Object {
	out := *o
	out.Ref = compactRef(o.Ref)
	out.Group, out.Kind, out.Plural = shared(o.Group), shared(o.Kind), shared(o.Plural)
	if len(o.Labels) == 0 {
		out.Labels = nil
	}
	return &out
}

func compactState(s *State) *State {
	out := *s
	out.Ref = compactRef(s.Ref)
	out.Spec.Type, out.Spec.Provider, out.Spec.ProviderConfig = shared(s.Spec.Type), shared(s.Spec.Provider), shared(s.Spec.ProviderConfig)
	out.Spec.Object.Group, out.Spec.Object.Kind = shared(s.Spec.Object.Group), shared(s.Spec.Object.Kind)
	out.Spec.Object.Name = out.Ref.Name
	if s.Spec.Carried != nil {
		carried := *s.Spec.Carried
		carried.ApplyUID = shared(carried.ApplyUID)
		out.Spec.Carried = &carried
	}
	return &out
}
