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

// maxTombstones is how many removed objects a change log remembers. A watcher that missed more
// lists again.
const maxTombstones = 10_000

// objectKey identifies an object of a view.
type objectKey struct {
	resource schema.GroupVersionResource
	types.NamespacedName
}

// item is an object that is in a view, in the state that digest identifies.
type item struct {
	objectKey
	kind   schema.GroupVersionKind
	uid    types.UID
	digest string
	// origin is the binding that the object comes from.
	origin types.NamespacedName
}

// logEntry is the entry of an object in the change log.
type logEntry struct {
	item
	version uint64 // version of the last change
	created uint64 // version since which the object exists
	removed bool
}

// changeLog assigns versions to the changes of a view, so that a watcher can resume. It holds
// no objects: they are read when an event is sent. So a slow watcher gets the last state of an
// object instead of every intermediate one.
//
// Versions are valid only for the change log that assigned them: the first one is random, far
// from that of every other log. A version of another server, or from before a restart, is
// unknown here, and the client lists again.
type changeLog struct {
	mu         sync.Mutex
	entries    map[objectKey]*list.Element // of order
	byOrigin   map[types.NamespacedName][]objectKey
	order      *list.List // *record elements, by version
	tombstones int
	oldest     uint64 // older versions are not known
	version    uint64
	changed    chan struct{} // closed on the next change
}

func newChangeLog() *changeLog {
	first := (1 + uint64(rand.Uint32N(1<<30))) << 32
	return &changeLog{entries: map[objectKey]*list.Element{}, byOrigin: map[types.NamespacedName][]objectKey{}, order: list.New(),
		oldest: first, version: first, changed: make(chan struct{})}
}

// update replaces the items of a binding: it adds new items, records changed ones, and marks
// the others as removed.
func (l *changeLog) update(origin types.NamespacedName, now []item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	for _, was := range l.byOrigin[origin] {
		if !slices.ContainsFunc(now, func(f item) bool { return f.objectKey == was }) {
			changed = l.remove(was) || changed
		}
	}
	delete(l.byOrigin, origin)
	for _, f := range now {
		changed = l.put(f) || changed
		l.byOrigin[origin] = append(l.byOrigin[origin], f.objectKey)
	}
	l.trim()
	if changed {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

func (l *changeLog) put(f item) (changed bool) {
	at, known := l.entries[f.objectKey]
	if !known {
		l.version++
		l.entries[f.objectKey] = l.order.PushBack(&logEntry{item: f, version: l.version, created: l.version})
		return true
	}
	r := at.Value.(*logEntry)
	if !r.removed && r.digest == f.digest && r.uid == f.uid {
		r.origin = f.origin
		return false
	}
	l.version++
	born := r.created
	if r.removed || r.uid != f.uid {
		born = l.version
	}
	if r.removed {
		l.tombstones--
	}
	*r = logEntry{item: f, version: l.version, created: born}
	l.order.MoveToBack(at)
	return true
}

func (l *changeLog) remove(p objectKey) (changed bool) {
	at, known := l.entries[p]
	if !known || at.Value.(*logEntry).removed {
		return false
	}
	r := at.Value.(*logEntry)
	l.version++
	r.removed, r.version = true, l.version
	l.tombstones++
	l.order.MoveToBack(at)
	return true
}

// touchTombstone sends the removal of an object again, once for each reason.
func (l *changeLog) touchTombstone(p objectKey, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.entries[p]
	if !known || !at.Value.(*logEntry).removed || at.Value.(*logEntry).digest == reason {
		return
	}
	r := at.Value.(*logEntry)
	l.version++
	r.version, r.digest = l.version, reason
	l.order.MoveToBack(at)
	close(l.changed)
	l.changed = make(chan struct{})
}

// trim removes the oldest tombstones beyond the limit.
func (l *changeLog) trim() {
	for at := l.order.Front(); at != nil && l.tombstones > maxTombstones; {
		next := at.Next()
		if r := at.Value.(*logEntry); r.removed {
			l.oldest = r.version
			l.tombstones--
			delete(l.entries, r.objectKey)
			l.order.Remove(at)
		}
		at = next
	}
}

// snapshot returns the existing objects and the version of that state.
func (l *changeLog) snapshot(want func(objectKey) bool) (entries []logEntry, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := l.order.Front(); at != nil; at = at.Next() {
		if r := at.Value.(*logEntry); !r.removed && want(r.objectKey) {
			entries = append(entries, *r)
		}
	}
	return entries, l.version
}

// page returns at most limit existing objects after a name, ordered by namespace and name;
// limit 0 means all. left is the number of objects after them.
func (l *changeLog) page(want func(objectKey) bool, after types.NamespacedName, limit int) (entries []logEntry, left int64, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	cut := func() {
		slices.SortFunc(entries, func(a, b logEntry) int { return compareNames(a.NamespacedName, b.NamespacedName) })
		if limit > 0 && len(entries) > limit {
			left += int64(len(entries) - limit)
			clear(entries[limit:])
			entries = entries[:limit]
		}
	}
	for at := l.order.Front(); at != nil; at = at.Next() {
		r := at.Value.(*logEntry)
		if r.removed || !want(r.objectKey) || compareNames(r.NamespacedName, after) <= 0 {
			continue
		}
		if entries = append(entries, *r); limit > 0 && len(entries) >= 2*limit {
			cut() // so that a page never needs more memory than two pages
		}
	}
	cut()
	return entries, left, l.version
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// contains reports whether all changes after a version are known.
func (l *changeLog) contains(version uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return version >= l.oldest && version <= l.version
}

// since returns the changes after a version in order, the version that they lead to, and a
// channel that is closed on the next change. It returns false if the version is unknown or too
// old.
func (l *changeLog) since(version uint64, want func(objectKey) bool) (changes []logEntry, upTo uint64, more <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version < l.oldest || version > l.version {
		return nil, 0, nil, false
	}
	for at := l.order.Back(); at != nil; at = at.Prev() {
		r := at.Value.(*logEntry)
		if r.version <= version {
			break
		}
		if want(r.objectKey) {
			changes = append(changes, *r)
		}
	}
	slices.Reverse(changes)
	return changes, l.version, l.changed, true
}

// find returns the entry of an object; false if the object does not exist.
func (l *changeLog) find(p objectKey) (logEntry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.entries[p]
	if !known || at.Value.(*logEntry).removed {
		return logEntry{}, false
	}
	return *at.Value.(*logEntry), true
}

// hasNamespace reports whether the view contains, or recently contained, anything in a
// namespace.
func (l *changeLog) hasNamespace(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.entries {
		if p.Namespace == namespace {
			return true
		}
	}
	return false
}
