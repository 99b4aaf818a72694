package reach

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ledger remembers for each resource version that a client was given how far each source had been read, so that a watch
// resumes there. It keeps no objects, only which the client knows: one that is gone when the watch resumes has to be
// reported.
type ledger struct {
	server int

	mu    sync.Mutex
	next  uint64
	marks []mark // by position, ascending
	known int    // objects that the tracks of marks know, together
}

// Bounds of the ledger. A watch from a version that it no longer has gets 410, as from an API server after
// a compaction.
const (
	maxMarks     = 100_000
	maxMarkAge   = 10 * time.Minute
	maxMarkKnown = 1_000_000 // of some 150 B each
)

// mark is a position that a client was given.
type mark struct {
	position uint64
	at       time.Time
	track    *track
	known    int // objects that the track knows, on its first mark; 0 on the others
}

// track is what one client has read: the answer to a list, and then the events of a watch. The ledger's lock protects it.
type track struct {
	scope    scope
	versions map[string]string // how far each source was read
	objects  map[objectKey]struct{}
	events   []trackEvent // in the order of their positions
	marked   bool         // it has a mark
}

// trackEvent is an event that was sent to the client, with the state before it.
type trackEvent struct {
	position uint64
	source   string
	before   string // the source's version before the event
	object   objectKey
	change   change
}

type change int

const (
	changed change = iota
	added
	removed
)

// objectKey identifies an object of a source.
type objectKey struct {
	source string
	name   types.NamespacedName
	uid    types.UID
}

func newLedger(now time.Time) *ledger {
	return &ledger{server: randomServer(), next: firstPosition(now)}
}

// begin makes a track of a list, or of a watch that begins with everything, and returns the list's position.
func (l *ledger) begin(s scope, versions map[string]string, objects map[objectKey]struct{}, now time.Time) (*track, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &track{scope: s, versions: versions, objects: objects}
	return t, l.mark(t, now)
}

// mark returns a new position of a track, and forgets the oldest positions beyond the bounds.
func (l *ledger) mark(t *track, now time.Time) uint64 {
	l.next++
	is := mark{position: l.next, at: now, track: t}
	if !t.marked {
		t.marked, is.known = true, len(t.objects)
	}
	l.marks = append(l.marks, is)
	l.known += is.known
	drop := 0
	for drop < len(l.marks)-1 && (len(l.marks)-drop > maxMarks || l.known > maxMarkKnown || now.Sub(l.marks[drop].at) > maxMarkAge) {
		old := l.marks[drop]
		l.known -= old.known
		if events := old.track.events; len(events) > 0 && events[0].position <= old.position {
			old.track.events = events[1:]
		}
		drop++
	}
	l.marks = slices.Delete(l.marks, 0, drop)
	return l.next
}

// record adds an event of a source to a track, and returns its position.
func (l *ledger) record(t *track, key objectKey, version string, c change, now time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	position := l.mark(t, now)
	t.events = append(t.events, trackEvent{position, key.source, t.versions[key.source], key, c})
	if version != "" {
		t.versions[key.source] = version
	}
	switch c {
	case added:
		t.objects[key] = struct{}{}
	case removed:
		delete(t.objects, key)
	}
	return position
}

// bookmark returns a position of a track at which nothing changed.
func (l *ledger) bookmark(t *track, now time.Time) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mark(t, now)
}

// advance notes that a source was read to a version without an event for the client. With "", it has to be listed again.
func (l *ledger) advance(t *track, source, version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t.versions[source] = version
}

// versionOf returns how far a source was read.
func (l *ledger) versionOf(t *track, source string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.versions[source]
}

// objectsOf returns the objects of a source that the client knows.
func (l *ledger) objectsOf(t *track, source string) (known map[types.UID]types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known = map[types.UID]types.NamespacedName{}
	for key := range t.objects {
		if key.source == source {
			known[key.uid] = key.name
		}
	}
	return known
}

// sourcesOf returns the sources of a track.
func (l *ledger) sourcesOf(t *track) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(t.versions))
}

// knows reports whether the client knows an object.
func (l *ledger) knows(t *track, key objectKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := t.objects[key]
	return known
}

// resume returns a new track that continues at the position of a resource version. It returns nil if the ledger does not
// have it, or if it is of another scope.
func (l *ledger) resume(v version, s scope) *track {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := slices.BinarySearchFunc(l.marks, v.position, func(m mark, position uint64) int {
		return cmp.Compare(m.position, position)
	})
	if v.server != l.server || !found || l.marks[i].track.scope != s {
		return nil
	}
	from := l.marks[i].track
	t := &track{scope: s, versions: maps.Clone(from.versions), objects: maps.Clone(from.objects)}
	for _, e := range slices.Backward(from.events) {
		if e.position <= v.position {
			break
		}
		t.versions[e.source] = e.before
		switch e.change {
		case added:
			delete(t.objects, e.object)
		case removed:
			t.objects[e.object] = struct{}{}
		}
	}
	return t
}

// now returns the last position. No watch resumes at it, unless a client was given it by a list.
func (l *ledger) now() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// version returns the resource version at a position.
func (l *ledger) version(position, member uint64) string {
	return version{position, l.server, member}.String()
}
