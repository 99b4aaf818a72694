package clusters

import (
	"context"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// TestTurns: so many at once and no more; who ends one, or takes too long, lets the next
// one in.
func TestTurns(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	turns := newTurns(longestProbe)
	most := cap(turns.taken)
	var end func()
	for range most {
		var ok bool
		if end, ok = turns.begin(t.Context(), clock); !ok {
			t.Fatal("no turn, though some are free")
		}
	}
	impatient, give := context.WithCancel(t.Context())
	give()
	if full := len(turns.taken); full != most {
		t.Fatalf("%d of %d turns are taken", full, most)
	}
	next := make(chan func())
	await := func() {
		end, ok := turns.begin(t.Context(), clock)
		if !ok {
			t.Error("no turn, though one came free")
		}
		next <- end
	}
	go await()
	select {
	case <-next:
		t.Fatal("one more than at once")
	default:
	}
	if _, ok := turns.begin(impatient, clock); ok {
		t.Error("a turn for whoever does not wait")
	}
	end()
	end() // again is nothing
	(<-next)()
	if _, ok := turns.begin(t.Context(), clock); !ok {
		t.Error("no turn, though one was given back")
	}
	go await()
	for deadline := time.Now().Add(10 * time.Second); ; {
		clock.Step(longestProbe) // all that are taken hang
		select {
		case <-next:
			return
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("who hangs keeps the others waiting")
		}
	}
}
