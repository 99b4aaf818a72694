package view

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func all(objectKey) bool { return true }

func itemOf(origin, name int, digest int) item {
	return item{objectKey: objectKey{schema.GroupVersionResource{Resource: "things"}, types.NamespacedName{Name: fmt.Sprint(name)}},
		origin: types.NamespacedName{Name: fmt.Sprint(origin)}, uid: types.UID(fmt.Sprint("uid-", name)), digest: fmt.Sprint(digest)}
}

// watcher is the state of a client that follows a change log.
type watcher struct {
	have    map[objectKey]string
	version uint64
}

// follow applies the changes, and lists again if required.
func (w *watcher) follow(l *changeLog) (listed bool) {
	changes, upTo, _, ok := l.since(w.version, all)
	if !ok {
		objects, version := l.snapshot(all)
		w.have, w.version = map[objectKey]string{}, version
		for _, r := range objects {
			w.have[r.objectKey] = r.digest
		}
		return true
	}
	for _, r := range changes {
		if r.removed {
			delete(w.have, r.objectKey)
		} else {
			w.have[r.objectKey] = r.digest
		}
	}
	w.version = upTo
	return false
}

// TestChangeLogWatchersConverge: every watcher ends with the existing objects, whatever its
// starting point and however rarely it reads.
func TestChangeLogWatchersConverge(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := newChangeLog()
		truth := map[objectKey]string{}
		watchers := make([]watcher, 4)
		for range 300 {
			origin := random.IntN(12)
			var now []item
			for i := range random.IntN(4) { // a binding has up to three objects
				now = append(now, itemOf(origin, origin*10+i, random.IntN(3)))
			}
			for i := range 4 {
				delete(truth, itemOf(origin, origin*10+i, 0).objectKey)
			}
			for _, f := range now {
				truth[f.objectKey] = f.digest
			}
			l.update(types.NamespacedName{Name: fmt.Sprint(origin)}, now)
			for i := range watchers {
				if random.IntN(1+10*i) == 0 {
					watchers[i].follow(l)
				}
			}
		}
		for i := range watchers {
			watchers[i].follow(l)
			if !maps.Equal(watchers[i].have, truth) {
				t.Fatalf("seed %d: watcher %d has %v, want %v", seed, i, watchers[i].have, truth)
			}
		}
	}
}

func TestUnchangedItemsWakeNoWatcher(t *testing.T) {
	l := newChangeLog()
	origin := types.NamespacedName{Name: "1"}
	l.update(origin, []item{itemOf(1, 1, 7)})
	_, before := l.snapshot(all)
	_, _, more, _ := l.since(before, all)
	l.update(origin, []item{itemOf(1, 1, 7)})
	select {
	case <-more:
		t.Error("watchers are woken although nothing changed")
	default:
	}
	if _, after := l.snapshot(all); after != before {
		t.Errorf("version %d became %d although nothing changed", before, after)
	}
	l.update(origin, nil)
	select {
	case <-more:
	default:
		t.Error("watchers are not woken although an object was removed")
	}
}

// TestForeignVersionsAreRejected: a version of another server is unknown, whatever its random
// start.
func TestForeignVersionsAreRejected(t *testing.T) {
	one, other := newChangeLog(), newChangeLog()
	one.update(types.NamespacedName{Name: "1"}, []item{itemOf(1, 1, 1)})
	_, version := one.snapshot(all)
	for _, strange := range []uint64{0, 1, version + 1, one.oldest - 1} {
		if _, _, _, ok := one.since(strange, all); ok {
			t.Errorf("version %d is accepted by this log, which has %d to %d", strange, one.oldest, version)
		}
	}
	if _, _, _, ok := other.since(version, all); ok && other.oldest>>32 != one.oldest>>32 {
		t.Error("a version of another log is accepted")
	}
}

// TestOldTombstonesAreRemoved: only a watcher that missed a removed tombstone has to list
// again.
func TestOldTombstonesAreRemoved(t *testing.T) {
	l := newChangeLog()
	origin := types.NamespacedName{Name: "kept"}
	l.update(origin, []item{itemOf(0, 0, 1)})
	w := watcher{}
	w.follow(l)
	for i := 1; i <= maxTombstones+5; i++ {
		origin := types.NamespacedName{Name: fmt.Sprint(i)}
		l.update(origin, []item{itemOf(i, i, 1)})
		if i == maxTombstones {
			w.follow(l)
		}
		l.update(origin, nil)
	}
	if len(l.entries) > maxTombstones+1 {
		t.Errorf("%d entries are kept, but only one object exists", len(l.entries))
	}
	if w.follow(l) {
		t.Error("a recent watcher has to list again")
	}
	if late := (&watcher{version: l.oldest - 1}); !late.follow(l) || len(late.have) != 1 {
		t.Errorf("a watcher with an old version has %v", late.have)
	}
}
