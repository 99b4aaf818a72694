package plugin

import (
	"context"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// A callLimiter limits concurrency and rate of calls. Calls that can reach the infrastructure
// (remote) and local calls have separate slots, as many each. A validation thus waits for no remote
// answer and for no rate limit.
type callLimiter struct {
	clock         clock.Clock
	remote, local chan struct{}
	rate          *rate.Limiter // of remote calls; nil if unlimited
}

func newCallLimiter(limits Limits, clock clock.Clock) *callLimiter {
	l := &callLimiter{clock: clock, remote: make(chan struct{}, limits.Parallel), local: make(chan struct{}, limits.Parallel)}
	if limits.PerSecond > 0 {
		l.rate = rate.NewLimiter(rate.Limit(limits.PerSecond), limits.Burst)
	}
	return l
}

// acquire waits for a slot. Calling done releases it.
func (l *callLimiter) acquire(ctx context.Context, remote bool, closing <-chan struct{}) (done func(), err error) {
	slots := l.local
	if remote {
		slots = l.remote
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-closing:
		return nil, errStopping
	}
	done = func() { <-slots }
	if remote && l.rate != nil {
		if err := l.awaitRate(ctx, closing); err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

func (l *callLimiter) awaitRate(ctx context.Context, closing <-chan struct{}) error {
	now := l.clock.Now()
	place := l.rate.ReserveN(now, 1)
	wait := place.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	timer := l.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		place.CancelAt(l.clock.Now()) // frees the reservation for another call
		return ctx.Err()
	case <-closing:
		return errStopping
	}
}
