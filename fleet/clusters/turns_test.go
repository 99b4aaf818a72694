package clusters

import (
	"context"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// TestStartLimiter: there are a fixed number of slots, and one that is released or times out goes
// to the next member.
func TestTurns(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	turns := newTurns(longestProbe)
	most := cap(turns.taken)
	var end func()
	for range most {
		var ok bool
		if end, ok = turns.begin(t.Context(), clock); !ok {
			t.Fatal("no slot, although some are free")
		}
	}
	impatient, give := context.WithCancel(t.Context())
	give()
	if full := len(turns.taken); full != most {
		t.Fatalf("%d of %d slots are taken", full, most)
	}
	next := make(chan func())
	await := func() {
		end, ok := turns.begin(t.Context(), clock)
		if !ok {
			t.Error("no slot, although one was released")
		}
		next <- end
	}
	go await()
	select {
	case <-next:
		t.Fatal("more slots than allowed")
	default:
	}
	if _, ok := turns.begin(impatient, clock); ok {
		t.Error("a slot after the context ended")
	}
	end()
	end() // a second call has no effect
	(<-next)()
	if _, ok := turns.begin(t.Context(), clock); !ok {
		t.Error("no slot, although one was released")
	}
	go await()
	for deadline := time.Now().Add(10 * time.Second); ; {
		clock.Step(longestProbe) // all current holders hang
		select {
		case <-next:
			return
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("a hanging member blocks the others")
		}
	}
}
