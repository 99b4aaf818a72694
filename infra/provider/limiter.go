package provider

import (
	"context"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// turns are whose call is next: so many at once, and so many in a second. Calls that can reach what the provider
// manages have turns of their own, and the others as many: what is validated waits for no answer from far away, and for no rate.
type turns struct {
	clock         clock.Clock
	remote, local chan struct{}
	rate          *rate.Limiter // of remote ones; nil if there is no bound
}

func newTurns(limits Limits, clock clock.Clock) *turns {
	t := &turns{clock: clock, remote: make(chan struct{}, limits.Parallel), local: make(chan struct{}, limits.Parallel)}
	if limits.PerSecond > 0 {
		t.rate = rate.NewLimiter(rate.Limit(limits.PerSecond), limits.Burst)
	}
	return t
}

// take waits for a turn, which lasts until done is called.
func (t *turns) take(ctx context.Context, remote bool, closing <-chan struct{}) (done func(), err error) {
	slots := t.local
	if remote {
		slots = t.remote
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-closing:
		return nil, errStopping
	}
	done = func() { <-slots }
	if remote && t.rate != nil {
		if err := t.await(ctx, closing); err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

func (t *turns) await(ctx context.Context, closing <-chan struct{}) error {
	now := t.clock.Now()
	place := t.rate.ReserveN(now, 1)
	wait := place.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	timer := t.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		place.CancelAt(t.clock.Now()) // somebody else has it now
		return ctx.Err()
	case <-closing:
		return errStopping
	}
}
