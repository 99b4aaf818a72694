package provider

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// TestTurns: both sorts of calls have as many turns, and none takes the other's.
func TestTurns(t *testing.T) {
	turns := newTurns(Limits{Parallel: 2}, clock.RealClock{})
	full, gaveUp := context.WithCancel(t.Context())
	gaveUp()
	for _, remote := range []bool{false, true} {
		var last func()
		for range 2 {
			free, gaveUp := context.WithTimeout(t.Context(), 10*time.Second)
			defer gaveUp()
			done, err := turns.take(free, remote, nil)
			if err != nil {
				t.Fatal(err)
			}
			last = done
		}
		for range 20 { // one that is free is found sooner or later
			if _, err := turns.take(full, remote, nil); !errors.Is(err, context.Canceled) {
				t.Fatalf("a third turn (remote %t): %v", remote, err)
			}
		}
		last()
		again, gaveUp := context.WithTimeout(t.Context(), 10*time.Second)
		defer gaveUp()
		if _, err := turns.take(again, remote, nil); err != nil {
			t.Errorf("after one has ended (remote %t): %v", remote, err)
		}
	}
}
