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
	turnsPerProcessor = 8
	// The maximum time for a slot. Then the next member starts anyway, so distant or hanging
	// members do not hold up a CPU.
	longestProbe = time.Second
	longestCatch = 10 * time.Second
)

// startLimiter limits how many members do the same thing at once, in order of arrival.
type turns struct {
	taken   chan struct{}
	longest time.Duration
}

func newTurns(longest time.Duration) *turns {
	return &turns{taken: make(chan struct{}, turnsPerProcessor*runtime.GOMAXPROCS(0)), longest: longest}
}

// acquire waits for a slot. release frees it, and may be called again. ok is false if ctx ended.
func (t *turns) begin(ctx context.Context, clock clock.Clock) (end func(), ok bool) {
	select {
	case t.taken <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	ended := make(chan struct{})
	go func() {
		timer := clock.NewTimer(t.longest)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C():
		case <-ctx.Done():
		}
		<-t.taken
	}()
	return sync.OnceFunc(func() { close(ended) }), true
}
