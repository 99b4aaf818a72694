package apiserver

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// Request timing while the datastore does not respond: suspectAfter, then the probe, so
// a request waits at most 4 s.
const (
	suspectAfter        = 1500 * time.Millisecond
	reachabilityTimeout = 2500 * time.Millisecond
	// probeEvery is the pause between probes while calls are suspect.
	probeEvery = 500 * time.Millisecond
)

// reachability detects that the datastore is unreachable. Requests then fail within
// seconds, and at once while the outage is known.
//
// Calls have no timeout of their own, because a list of everything takes as long as it
// takes. A call that has waited for suspectAfter becomes suspect. Then a small read
// probes the datastore, and only if that gets no answer either, all calls fail.
type reachability struct {
	probe func(context.Context) error
	// whole probes all parts of the datastore: one may fail while calls to others succeed.
	whole func(context.Context) error
	clock clock.WithDelayedExecution
	tell  func(cause error) // when the datastore begins to fail, and with nil when it no longer does
	life  context.Context   // probes run in it
	stop  func()

	mu       sync.Mutex
	current  context.Context // ends when contact is lost
	markLost func()
	suspects int // number of calls that have waited for suspectAfter
	probing  bool

	failing    atomic.Bool // tell was called with a cause
	confirming atomic.Bool // confirm is running
	full       atomic.Bool // the last write found the disk full
}

// failed records that the datastore fails, whether it is silent or answers with errors.
func (c *reachability) failed(cause error) {
	if c.failing.CompareAndSwap(false, true) {
		c.tell(cause)
	}
}

// succeeded records that the datastore answers.
func (c *reachability) succeeded() {
	if c.failing.Load() && c.confirming.CompareAndSwap(false, true) {
		go c.confirm()
	}
}

// confirm ends a failure if all of the datastore is served.
func (c *reachability) confirm() {
	defer c.confirming.Store(false)
	ctx, cancel := context.WithTimeout(c.life, reachabilityTimeout)
	err := c.whole(ctx)
	cancel()
	if err == nil {
		if c.failing.CompareAndSwap(true, false) {
			c.tell(nil)
		}
		return
	}
	select { // until the next attempt
	case <-c.clock.After(probeEvery):
	case <-c.life.Done():
	}
}

func newReachability(clock clock.WithDelayedExecution, probe, whole func(context.Context) error, tell func(cause error)) *reachability {
	c := &reachability{probe: probe, whole: whole, clock: clock, tell: tell}
	c.life, c.stop = context.WithCancel(context.Background())
	c.current, c.markLost = context.WithCancel(context.Background())
	return c
}

// lost reports whether the datastore is known to be unreachable.
func (c *reachability) lost() bool { return c.reachable().Err() != nil }

func (c *reachability) reachable() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// guard returns a context for a call that ends when contact is lost. The call runs
// over when it is done.
func (c *reachability) guard(ctx context.Context) (_ context.Context, over func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.reachable(), cancel)
	timer := c.clock.AfterFunc(suspectAfter, c.suspect)
	return ctx, func() {
		if !timer.Stop() {
			c.clear()
		}
		stop()
		cancel()
	}
}

func (c *reachability) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspects++
	if !c.probing {
		c.probing = true
		go c.probeLoop()
	}
}

// clear ends a suspicion. It may be called before suspect; the two then cancel out.
func (c *reachability) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.suspects--
}

func (c *reachability) probeLoop() {
	for {
		ctx, cancel := context.WithTimeout(c.life, reachabilityTimeout)
		err := c.probe(ctx)
		cancel()
		if !c.record(err) {
			return
		}
		select {
		case <-c.clock.After(probeEvery):
		case <-c.life.Done():
		}
	}
}

// record handles the result of a probe, and reports whether to continue.
func (c *reachability) record(err error) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch lost := c.current.Err() != nil; {
	case c.life.Err() != nil:
		c.probing = false
		return false
	case err != nil && !lost:
		c.markLost()
		c.failed(err)
	case err == nil && lost:
		c.current, c.markLost = context.WithCancel(context.Background())
		c.succeeded()
	}
	c.probing = err != nil || c.suspects > 0
	return c.probing
}
