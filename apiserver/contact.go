package apiserver

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// What a request waits for a datastore that does not answer: doubtAfter, then for
// the question whether it still answers anybody, so at most 4 s.
const (
	doubtAfter = 1500 * time.Millisecond
	probeLimit = 2500 * time.Millisecond
	// probeEvery is the pause between such questions while there is doubt.
	probeEvery = 500 * time.Millisecond
)

// contact finds out that the datastore cannot be reached, so that requests are told
// within seconds, and at once while that is known.
//
// Calls are not bounded in time, because a list of everything takes as long as it
// takes. A call that has waited for a while raises doubt; then a small read
// is tried, and only if that gets no answer either, all calls give up.
type contact struct {
	probe func(context.Context) error
	clock clock.WithDelayedExecution
	life  context.Context // in which probes are made
	stop  func()

	mu      sync.Mutex
	held    context.Context // ends when contact is lost
	lose    func()
	doubts  int // calls that have waited for long
	probing bool
}

func newContact(clock clock.WithDelayedExecution, probe func(context.Context) error) *contact {
	c := &contact{probe: probe, clock: clock}
	c.life, c.stop = context.WithCancel(context.Background())
	c.held, c.lose = context.WithCancel(context.Background())
	return c
}

// lost tells whether the datastore is known not to answer.
func (c *contact) lost() bool { return c.now().Err() != nil }

func (c *contact) now() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

// during gives a call a context that ends when contact is lost. The call says when
// it is over.
func (c *contact) during(ctx context.Context) (_ context.Context, over func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.now(), cancel)
	timer := c.clock.AfterFunc(doubtAfter, c.doubt)
	return ctx, func() {
		if !timer.Stop() {
			c.trust()
		}
		stop()
		cancel()
	}
}

func (c *contact) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts++
	if !c.probing {
		c.probing = true
		go c.probeWhileInDoubt()
	}
}

// trust takes a doubt back. It may come before the doubt does, which is then none.
func (c *contact) trust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts--
}

func (c *contact) probeWhileInDoubt() {
	for {
		ctx, cancel := context.WithTimeout(c.life, probeLimit)
		err := c.probe(ctx)
		cancel()
		if !c.judge(err) {
			return
		}
		select {
		case <-c.clock.After(probeEvery):
		case <-c.life.Done():
		}
	}
}

// judge takes in the outcome of a probe, and tells whether to go on.
func (c *contact) judge(err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch lost := c.held.Err() != nil; {
	case c.life.Err() != nil:
		c.probing = false
		return false
	case err != nil && !lost:
		c.lose()
	case err == nil && lost:
		c.held, c.lose = context.WithCancel(context.Background())
	}
	c.probing = err != nil || c.doubts > 0
	return c.probing
}
