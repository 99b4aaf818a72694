package clusters

import (
	"context"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

// TestStartLimiter: there are a fixed number of slots, and one that is released or times out goes
// to the next member.
func TestStartLimiter(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	turns := newStartLimiter(maxProbeStart)
	most := cap(turns.slots)
	var end func()
	for range most {
		var ok bool
		if end, ok = turns.acquire(t.Context(), clock); !ok {
			t.Fatal("no slot, although some are free")
		}
	}
	impatient, give := context.WithCancel(t.Context())
	give()
	if full := len(turns.slots); full != most {
		t.Fatalf("%d of %d slots are taken", full, most)
	}
	next := make(chan func())
	await := func() {
		end, ok := turns.acquire(t.Context(), clock)
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
	if _, ok := turns.acquire(impatient, clock); ok {
		t.Error("a slot after the context ended")
	}
	end()
	end() // a second call has no effect
	(<-next)()
	if _, ok := turns.acquire(t.Context(), clock); !ok {
		t.Error("no slot, although one was released")
	}
	go await()
	for deadline := time.Now().Add(10 * time.Second); ; {
		clock.Step(maxProbeStart) // all current holders hang
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
