package clusters

import (
	"context"
	"runtime"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// startsPerCPU is how many members are started at once, for each CPU. A new leader starts all
	// of them. If a thousand members connect, list and compare at once, each waits for all others:
	// the first is ready when the last is, and urgent Lease renewals and probes wait as long.
	startsPerCPU = 8
	// The maximum time for a slot. Then the next member starts anyway, so distant or hanging
	// members do not hold up a CPU.
	maxProbeStart = time.Second
	maxCatchUp    = 10 * time.Second
)

// startLimiter limits how many members do the same thing at once, in order of arrival.
type startLimiter struct {
	slots   chan struct{}
	timeout time.Duration
}

func newStartLimiter(longest time.Duration) *startLimiter {
	return &startLimiter{slots: make(chan struct{}, startsPerCPU*runtime.GOMAXPROCS(0)), timeout: longest}
}

// acquire waits for a slot. release frees it, and may be called again. ok is false if ctx ended.
func (t *startLimiter) acquire(ctx context.Context, clock clock.Clock) (end func(), ok bool) {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	ended := make(chan struct{})
	go func() {
		timer := clock.NewTimer(t.timeout)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C():
		case <-ctx.Done():
		}
		<-t.slots
	}()
	return sync.OnceFunc(func() { close(ended) }), true
}
