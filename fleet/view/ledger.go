package view

import (
	"cmp"
	"container/list"
	"math/rand/v2"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// tombstones is how many things that are gone a ledger remembers. Who was away for
// more than that lists anew.
const tombstones = 10_000

// place is where something is in a view.
type place struct {
	resource schema.GroupVersionResource
	types.NamespacedName
}

// fact is that something is in a view, in the state that the digest tells.
type fact struct {
	place
	kind   schema.GroupVersionKind
	uid    types.UID
	digest string
	// origin is the binding that it comes from.
	origin types.NamespacedName
}

// record is what a ledger knows of a place.
type record struct {
	fact
	version uint64 // of the last change
	born    uint64 // since when it is there
	gone    bool
}

// ledger numbers the changes of a view, so that whoever watches it can go on where it
// was. It holds no objects: they are read, as they are then, when somebody is told of
// them. So a watcher that is slow is told of the last state of a thing instead of every
// state that it went through.
//
// Versions mean something to the ledger that gave them alone: the first is drawn by
// lot, far from that of every other. Who comes with the version of another server, or
// from before this one, is not known here and lists anew.
type ledger struct {
	mu       sync.Mutex
	records  map[place]*list.Element // of order
	byOrigin map[types.NamespacedName][]place
	order    *list.List // of *record, by version
	buried   int
	first    uint64 // what came before is not known
	version  uint64
	changed  chan struct{} // closed with the next change
}

func newLedger() *ledger {
	first := (1 + uint64(rand.Uint32N(1<<30))) << 32
	return &ledger{records: map[place]*list.Element{}, byOrigin: map[types.NamespacedName][]place{}, order: list.New(),
		first: first, version: first, changed: make(chan struct{})}
}

// note takes in what of a view comes from a binding now: new facts, changed ones, and
// that others of it are gone.
func (l *ledger) note(origin types.NamespacedName, now []fact) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	for _, was := range l.byOrigin[origin] {
		if !slices.ContainsFunc(now, func(f fact) bool { return f.place == was }) {
			changed = l.bury(was) || changed
		}
	}
	delete(l.byOrigin, origin)
	for _, f := range now {
		changed = l.put(f) || changed
		l.byOrigin[origin] = append(l.byOrigin[origin], f.place)
	}
	l.trim()
	if changed {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

func (l *ledger) put(f fact) (changed bool) {
	at, known := l.records[f.place]
	if !known {
		l.version++
		l.records[f.place] = l.order.PushBack(&record{fact: f, version: l.version, born: l.version})
		return true
	}
	r := at.Value.(*record)
	if !r.gone && r.digest == f.digest && r.uid == f.uid {
		r.origin = f.origin
		return false
	}
	l.version++
	born := r.born
	if r.gone || r.uid != f.uid {
		born = l.version
	}
	if r.gone {
		l.buried--
	}
	*r = record{fact: f, version: l.version, born: born}
	l.order.MoveToBack(at)
	return true
}

func (l *ledger) bury(p place) (changed bool) {
	at, known := l.records[p]
	if !known || at.Value.(*record).gone {
		return false
	}
	r := at.Value.(*record)
	l.version++
	r.gone, r.version = true, l.version
	l.buried++
	l.order.MoveToBack(at)
	return true
}

// remind has something that is gone told again, once for each reason.
func (l *ledger) remind(p place, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.records[p]
	if !known || !at.Value.(*record).gone || at.Value.(*record).digest == reason {
		return
	}
	r := at.Value.(*record)
	l.version++
	r.version, r.digest = l.version, reason
	l.order.MoveToBack(at)
	close(l.changed)
	l.changed = make(chan struct{})
}

// trim forgets the oldest tombstones beyond what is remembered.
func (l *ledger) trim() {
	for at := l.order.Front(); at != nil && l.buried > tombstones; {
		next := at.Next()
		if r := at.Value.(*record); r.gone {
			l.first = r.version
			l.buried--
			delete(l.records, r.place)
			l.order.Remove(at)
		}
		at = next
	}
}

// now gives what is there, and the version of that.
func (l *ledger) now(want func(place) bool) (there []record, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := l.order.Front(); at != nil; at = at.Next() {
		if r := at.Value.(*record); !r.gone && want(r.place) {
			there = append(there, *r)
		}
	}
	return there, l.version
}

// page gives what is there beyond a name, by namespace and name: at most limit, unless
// that is 0. left counts what comes after these.
func (l *ledger) page(want func(place) bool, after types.NamespacedName, limit int) (there []record, left int64, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cut := func() {
		slices.SortFunc(there, func(a, b record) int { return compareNames(a.NamespacedName, b.NamespacedName) })
		if limit > 0 && len(there) > limit {
			left += int64(len(there) - limit)
			clear(there[limit:])
			there = there[:limit]
		}
	}
	for at := l.order.Front(); at != nil; at = at.Next() {
		r := at.Value.(*record)
		if r.gone || !want(r.place) || compareNames(r.NamespacedName, after) <= 0 {
			continue
		}
		if there = append(there, *r); limit > 0 && len(there) >= 2*limit {
			cut() // so that a page takes no more memory than two, however much there is
		}
	}
	cut()
	return there, left, l.version
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// knows tells whether what changed after a version is known.
func (l *ledger) knows(version uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return version >= l.first && version <= l.version
}

// since gives what changed after a version, in order, up to which version, and a
// channel that is closed when there is more. It is false if the version is not of this
// ledger, or too old.
func (l *ledger) since(version uint64, want func(place) bool) (changes []record, upTo uint64, more <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version < l.first || version > l.version {
		return nil, 0, nil, false
	}
	for at := l.order.Back(); at != nil; at = at.Prev() {
		r := at.Value.(*record)
		if r.version <= version {
			break
		}
		if want(r.place) {
			changes = append(changes, *r)
		}
	}
	slices.Reverse(changes)
	return changes, l.version, l.changed, true
}

// find gives what is at a place; false if nothing is.
func (l *ledger) find(p place) (record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.records[p]
	if !known || at.Value.(*record).gone {
		return record{}, false
	}
	return *at.Value.(*record), true
}

// holds tells whether anything in a namespace is, or lately was, in the view.
func (l *ledger) holds(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.records {
		if p.Namespace == namespace {
			return true
		}
	}
	return false
}
