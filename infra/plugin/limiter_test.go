package plugin

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// TestCallLimiter: remote and local calls have equally many slots, and do not use each other's.
func TestCallLimiter(t *testing.T) {
	limiter := newCallLimiter(Limits{Parallel: 2}, clock.RealClock{})
	full, gaveUp := context.WithCancel(t.Context())
	gaveUp()
	for _, remote := range []bool{false, true} {
		var last func()
		for range 2 {
			free, gaveUp := context.WithTimeout(t.Context(), 10*time.Second)
			defer gaveUp()
			done, err := limiter.acquire(free, remote, nil)
			if err != nil {
				t.Fatal(err)
			}
			last = done
		}
		for range 20 { // select would choose a free slot sooner or later
			if _, err := limiter.acquire(full, remote, nil); !errors.Is(err, context.Canceled) {
				t.Fatalf("a third slot (remote %t): %v", remote, err)
			}
		}
		last()
		again, gaveUp := context.WithTimeout(t.Context(), 10*time.Second)
		defer gaveUp()
		if _, err := limiter.acquire(again, remote, nil); err != nil {
			t.Errorf("after a release (remote %t): %v", remote, err)
		}
	}
}
