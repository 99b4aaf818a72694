package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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
	if c != nil {
		c.fresh = false
		return c, nil
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
// for the whole timeout. If try returns a transient error, it must have had no effect.
func (db *DB) retry(ctx context.Context, op string, try func() error) error {
	deadline := db.clock.Now().Add(db.opts.timeout)
	yield := firstYield
	for pause := firstPause; ; {
		err := try()
		if err == nil || ctx.Err() != nil || !db.dialect.transient(err) || db.clock.Now().After(deadline) || isOwn(err) {
			return db.fail(ctx, op, err)
		}
		if db.isClosing() {
			return fmt.Errorf("%s: database %s: %w", op, db.where, kv.ErrClosed)
		}
		wait := pause
		if db.dialect.contended(err) {
			wait = rand.N(yield) + 1
			yield = min(2*yield, lastYield)
		} else {
			pause = min(2*pause, lastPause)
		}
		select {
		case <-db.clock.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		case <-db.closing:
		}
	}
}

func isOwn(err error) bool {
	return errors.Is(err, kv.ErrUnknownOutcome) || errors.Is(err, kv.ErrBehind)
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
	return db.retry(ctx, op, func() error {
		return db.with(ctx, limit, func(c *conn) error {
			err := fn(c)
			if err != nil {
				c.rollback()
			}
			return err
		})
	})
}

// with runs fn with a connection that fails when ctx ends, or after limit.
func (db *DB) with(ctx context.Context, limit time.Duration, fn func(c *conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	wait, done := context.WithTimeout(ctx, db.opts.timeout)
	c, err := db.pool.take(wait)
	done()
	if err != nil {
		return err
	}
	defer db.pool.give(c)
	stop := c.watch(ctx)
	err = fn(c)
	if !stop() {
		c.broken = true // its deadline has passed
	}
	return err
}
