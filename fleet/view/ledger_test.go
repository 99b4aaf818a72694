package view

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func all(place) bool { return true }

func factOf(origin, name int, digest int) fact {
	return fact{place: place{schema.GroupVersionResource{Resource: "things"}, types.NamespacedName{Name: fmt.Sprint(name)}},
		origin: types.NamespacedName{Name: fmt.Sprint(origin)}, uid: types.UID(fmt.Sprint("uid-", name)), digest: fmt.Sprint(digest)}
}

// watcher has what a client has that follows a ledger.
type watcher struct {
	have    map[place]string
	version uint64
}

// follow takes in what changed, and lists anew where it has to.
func (w *watcher) follow(l *ledger) (listed bool) {
	changes, upTo, _, ok := l.since(w.version, all)
	if !ok {
		there, version := l.now(all)
		w.have, w.version = map[place]string{}, version
		for _, r := range there {
			w.have[r.place] = r.digest
		}
		return true
	}
	for _, r := range changes {
		if r.gone {
			delete(w.have, r.place)
		} else {
			w.have[r.place] = r.digest
		}
	}
	w.version = upTo
	return false
}

// Whoever follows a ledger, from wherever and as rarely as it likes, has in the end what
// is there.
func TestWhoFollowsALedgerMissesNothing(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := newLedger()
		truth := map[place]string{}
		watchers := make([]watcher, 4)
		for range 300 {
			origin := random.IntN(12)
			var now []fact
			for i := range random.IntN(4) { // up to three things come from one binding
				now = append(now, factOf(origin, origin*10+i, random.IntN(3)))
			}
			for i := range 4 {
				delete(truth, factOf(origin, origin*10+i, 0).place)
			}
			for _, f := range now {
				truth[f.place] = f.digest
			}
			l.note(types.NamespacedName{Name: fmt.Sprint(origin)}, now)
			for i := range watchers {
				if random.IntN(1+10*i) == 0 {
					watchers[i].follow(l)
				}
			}
		}
		for i := range watchers {
			watchers[i].follow(l)
			if !maps.Equal(watchers[i].have, truth) {
				t.Fatalf("seed %d: watcher %d has %v, and there is %v", seed, i, watchers[i].have, truth)
			}
		}
	}
}

func TestNothingChangesWhenNothingDoes(t *testing.T) {
	l := newLedger()
	origin := types.NamespacedName{Name: "1"}
	l.note(origin, []fact{factOf(1, 1, 7)})
	_, before := l.now(all)
	_, _, more, _ := l.since(before, all)
	l.note(origin, []fact{factOf(1, 1, 7)})
	select {
	case <-more:
		t.Error("watchers are woken although nothing changed")
	default:
	}
	if _, after := l.now(all); after != before {
		t.Errorf("version %d became %d although nothing changed", before, after)
	}
	l.note(origin, nil)
	select {
	case <-more:
	default:
		t.Error("watchers are not woken although something went")
	}
}

// A version of another server is not known, whatever was drawn there.
func TestVersionsOfOthersAreRefused(t *testing.T) {
	one, other := newLedger(), newLedger()
	one.note(types.NamespacedName{Name: "1"}, []fact{factOf(1, 1, 1)})
	_, version := one.now(all)
	for _, strange := range []uint64{0, 1, version + 1, one.first - 1} {
		if _, _, _, ok := one.since(strange, all); ok {
			t.Errorf("version %d is taken for one of this ledger, which has %d to %d", strange, one.first, version)
		}
	}
	if _, _, _, ok := other.since(version, all); ok && other.first>>32 != one.first>>32 {
		t.Error("a version of another ledger is taken for one's own")
	}
}

// What was forgotten has to be listed; what was not, has not.
func TestOldTombstonesAreForgotten(t *testing.T) {
	l := newLedger()
	kept := types.NamespacedName{Name: "kept"}
	l.note(kept, []fact{factOf(0, 0, 1)})
	w := watcher{}
	w.follow(l)
	for i := 1; i <= tombstones+5; i++ {
		origin := types.NamespacedName{Name: fmt.Sprint(i)}
		l.note(origin, []fact{factOf(i, i, 1)})
		if i == tombstones {
			w.follow(l)
		}
		l.note(origin, nil)
	}
	if len(l.records) > tombstones+1 {
		t.Errorf("%d places are remembered, of which one is there", len(l.records))
	}
	if w.follow(l) {
		t.Error("who was there lately has to list anew")
	}
	if late := (&watcher{version: l.first - 1}); !late.follow(l) || len(late.have) != 1 {
		t.Errorf("who comes from before has %v", late.have)
	}
}
