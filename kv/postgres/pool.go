package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// pool keeps a limited number of connections for reuse: each is a process of the database,
// which has a limited number of them.
type pool struct {
	db    *DB
	slots chan struct{}
	// reads bounds the connections for reads: many concurrent lists must not block writers.
	reads chan struct{}

	mu     sync.Mutex
	idle   []*conn // most recently used last
	closed bool
}

func newPool(db *DB, size int) *pool {
	return &pool{
		db:    db,
		slots: make(chan struct{}, size),
		reads: make(chan struct{}, max(1, size-max(1, size/4))),
	}
}

// take returns an idle connection or a new one, and waits if all are in use.
func (p *pool) take(ctx context.Context) (*conn, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("all %d connections are busy: %w", cap(p.slots), context.Cause(ctx))
		}
	}
	p.mu.Lock()
	closed := p.closed
	var c *conn
	if n := len(p.idle); n > 0 && !closed {
		c = p.idle[n-1]
		p.idle = p.idle[:n-1]
	}
	p.mu.Unlock()
	if closed {
		<-p.slots
		return nil, kv.ErrClosed
	}
	if c != nil && c.generation == p.db.generation.Load() {
		c.fresh = false
		return c, nil
	}
	if c != nil {
		c.close()
		p.dropIdle()
	}
	c, err := p.db.connect(ctx)
	if err != nil {
		<-p.slots
		return nil, err
	}
	return c, nil
}

// give returns a connection to the pool.
func (p *pool) give(c *conn) {
	defer func() { <-p.slots }()
	if c.generation != p.db.generation.Load() {
		c.broken = true
	}
	if c.broken || c.status != 'I' {
		c.close()
		if !c.fresh {
			// Idle connections have most likely ended for the same reason.
			p.dropIdle()
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.close()
		return
	}
	p.idle = append(p.idle, c)
}

func (p *pool) dropIdle() {
	p.mu.Lock()
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
}

// close waits until no connection is in use.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for range cap(p.slots) {
		p.slots <- struct{}{}
	}
	p.dropIdle()
}

// Pauses between attempts.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
	// Between attempts that failed because of concurrent transactions: all that waited for
	// the same lock may restart at the same moment.
	firstYield = 2 * time.Millisecond
	lastYield  = 32 * time.Millisecond
)

// retry runs try until it succeeds, fails permanently, or the database has been unavailable
// for the whole timeout. If try returns a transient error, it must have had no effect. wait
// ends with the timeout: an attempt that begins late must not have the whole timeout again.
func (db *DB) retry(ctx context.Context, op string, try func(wait context.Context) error) error {
	return db.retryFor(ctx, op, db.opts.timeout, try)
}

func (db *DB) retryFor(ctx context.Context, op string, limit time.Duration, try func(wait context.Context) error) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	yield := firstYield
	var last error
	for pause := firstPause; ; {
		err := try(wait)
		if err != nil && ctx.Err() == nil && wait.Err() != nil && last != nil && isTimeout(err) {
			err = last // the cause
		}
		if err == nil || wait.Err() != nil || !db.dialect.transient(err) || isOwn(err) {
			return db.fail(ctx, op, err)
		}
		last = err
		if db.isClosing() {
			return fmt.Errorf("%s: database %s: %w", op, db.where, kv.ErrClosed)
		}
		rest := pause
		if db.dialect.contended(err) {
			rest = rand.N(yield) + 1
			yield = min(2*yield, lastYield)
		} else {
			pause = min(2*pause, lastPause)
		}
		select {
		case <-db.clock.After(rest):
		case <-wait.Done():
			return db.fail(ctx, op, err)
		case <-db.closing:
		}
	}
}

// isTimeout reports whether an error is a timeout, which does not explain the cause.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

func isOwn(err error) bool {
	return errors.Is(err, kv.ErrUnknownOutcome) || errors.Is(err, kv.ErrBehind) || errors.Is(err, kv.ErrDropped)
}

// read runs fn, which changes nothing, with a connection, until it succeeds. limit bounds
// each attempt.
func (db *DB) read(ctx context.Context, op string, limit time.Duration, fn func(c *conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err // otherwise it might go unnoticed until the answer arrives
	}
	ctx, span := db.span(ctx, op)
	defer func() { finish(span, err) }()
	select {
	case db.pool.reads <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-db.pool.reads }()
	return db.retry(ctx, op, func(wait context.Context) error {
		return db.with(ctx, wait, limit, func(c *conn) error {
			err := fn(c)
			if err != nil {
				c.rollback()
			}
			return err
		})
	})
}

// with runs fn with a connection, for which it waits until wait ends. The connection fails
// when ctx ends, after limit, or when the database is silent. If limit is not longer than
// the database may be silent, it fails when wait ends.
func (db *DB) with(ctx, wait context.Context, limit time.Duration, fn func(c *conn) error) error {
	if limit <= db.opts.timeout {
		ctx = wait
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, err := db.pool.take(wait)
	if err != nil {
		return err
	}
	defer db.pool.give(c)
	ctx, stopListening := db.untilSilent(ctx, limit)
	defer stopListening()
	stop := c.watch(ctx)
	err = fn(c)
	if !stop() {
		c.broken = true // its deadline has passed
	}
	return err
}

// untilSilent returns a context that ends when the database has not answered anybody for
// the timeout. A statement may take longer than that, but while this process follows
// keyspaces, it asks the database for their heads every second.
func (db *DB) untilSilent(ctx context.Context, limit time.Duration) (context.Context, func()) {
	if limit <= db.opts.timeout || !db.notifier.follows() {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	begin := time.Now()
	var mu sync.Mutex
	var timer *time.Timer
	mu.Lock()
	timer = time.AfterFunc(db.opts.timeout, func() {
		silent := min(time.Since(begin), db.heard.since())
		if silent >= db.opts.timeout {
			cancel()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		timer.Reset(db.opts.timeout - silent)
	})
	mu.Unlock()
	return ctx, func() {
		mu.Lock()
		timer.Stop()
		mu.Unlock()
		cancel()
	}
}

// lastHeard is when the database last answered, on any connection.
type lastHeard struct {
	begin time.Time
	at    atomic.Int64 // since begin
}

func (h *lastHeard) now()                 { h.at.Store(int64(time.Since(h.begin))) }
func (h *lastHeard) since() time.Duration { return time.Since(h.begin) - time.Duration(h.at.Load()) }
