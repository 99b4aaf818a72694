package clusters

import (
	"context"
	"runtime"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// turnsPerProcessor is how many members are taken up at once, for each processor. When
	// a leader begins it takes up all of them. With a thousand that connect, list and
	// compare at once, each waits for all others: the first is served when the last is, and
	// what cannot wait, renewals of Leases and probes, waits as long.
	turnsPerProcessor = 8
	// The longest turns, after which the next one's comes all the same: members that are
	// far away, or hang, keep no processor busy.
	longestProbe = time.Second
	longestCatch = 10 * time.Second
)

// turns bound how many members do the same at once, in the order in which they came.
type turns struct {
	taken   chan struct{}
	longest time.Duration
}

func newTurns(longest time.Duration) *turns {
	return &turns{taken: make(chan struct{}, turnsPerProcessor*runtime.GOMAXPROCS(0)), longest: longest}
}

// begin waits for a turn; end ends it, and may be called again. It is false if ctx ended.
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
