package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/atoll-dev/atoll/kv"
)

// keepIdle is the number of commits without a revision that can still be looked up.
const keepIdle = 1024

// Update implements kv.Table. It takes two round trips: begin, lock and read the head, and
// load the prefetched keys; then write, commit and notify.
func (t *table) Update(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) error {
	return t.update(ctx, "update", prefetch, func(x *tx) error { return fn(x) })
}

// SetCompacted implements kv.Table.
func (t *table) SetCompacted(ctx context.Context, rev kv.Revision) error {
	return t.update(ctx, "compact", nil, func(x *tx) error {
		// Another server may have compacted or written since the caller checked.
		if rev <= x.head.Compacted {
			return fmt.Errorf("compact keyspace %q at revision %d: %w (already at %d)", t.name, rev, kv.ErrCompacted, x.head.Compacted)
		}
		if rev > x.head.Revision {
			return fmt.Errorf("compact keyspace %q at revision %d: %w (it is at %d)", t.name, rev, kv.ErrFutureRevision, x.head.Revision)
		}
		x.compact = rev
		return nil
	})
}

// update runs fn in transactions until one of them commits or fn returns an error. A
// transaction is retried only if it certainly had no effect.
func (t *table) update(ctx context.Context, op string, prefetch []kv.Lookup, fn func(*tx) error) error {
	if err := t.writable(op); err != nil {
		return err
	}
	if err := t.usable(); err != nil {
		return err
	}
	var refused error
	err := t.db.retry(ctx, op, func(wait context.Context) error {
		refused = nil
		return t.attempt(ctx, wait, prefetch, func(x *tx) error {
			err := fn(x)
			if x.err != nil {
				return x.err // the database's error has precedence over fn's
			}
			refused = err
			return err
		}, &refused)
	})
	if refused != nil {
		return refused
	}
	if behind := t.usable(); behind != nil && err != nil {
		return behind
	}
	return err
}

// attempt is one transaction, which waits for a connection and the head's lock until wait
// ends.
func (t *table) attempt(ctx, wait context.Context, prefetch []kv.Lookup, fn func(*tx) error, refused *error) error {
	_, span := t.db.span(ctx, "begin")
	c, err := t.db.pool.take(wait)
	if err != nil {
		finish(span, err)
		return err
	}
	defer t.db.pool.give(c)
	x := &tx{t: t, c: c, ctx: ctx}
	err = x.begin(wait, prefetch)
	finish(span, err)
	if err != nil {
		return t.giveUp(wait, c, err)
	}
	if err := fn(x); err != nil {
		c.rollback()
		if *refused != nil {
			return nil // the caller returns it
		}
		return err
	}
	if !x.dirty() {
		c.rollback()
		return nil
	}
	// From here on the caller cannot cancel: the commit happens or not, and its outcome is
	// determined.
	return t.commit(wait, x)
}

// giveUp ends a failed transaction. If it timed out waiting for another session, that
// session may be frozen, or wait for a standby, which the returned error names.
func (t *table) giveUp(wait context.Context, c *conn, err error) error {
	c.rollback()
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && t.db.dialect.waited(pgErr.Code) {
		if t.db.evict(wait, c) {
			return &standbyError{err}
		}
	} else if c.broken && isTimeout(err) {
		t.db.evictFromAnother()
	}
	return err
}

// standbyError is returned if commits wait for the synchronous standby.
type standbyError struct{ error }

func (e *standbyError) Unwrap() error { return e.error }

// left returns the time until wait ends, but at least a third of the timeout: a message
// that was sent late must have time for an answer.
func (db *DB) left(wait context.Context) time.Duration {
	left := db.opts.timeout
	if deadline, ok := wait.Deadline(); ok {
		left = time.Until(deadline)
	}
	return max(left, db.opts.timeout/3)
}

// commitLimit is how long a commit waits for its answer, so that time remains to look it
// up.
func (db *DB) commitLimit(wait context.Context) time.Duration {
	return max(db.left(wait)-db.opts.timeout/3, db.opts.timeout/3)
}

// within runs a round trip that fails when ctx ends or after limit.
func (c *conn) within(ctx context.Context, limit time.Duration, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := c.watch(ctx)
	err := fn()
	if !stop() {
		c.broken = true
	}
	return err
}

// commit writes the transaction's changes and commits it.
func (t *table) commit(wait context.Context, x *tx) error {
	c := x.c
	id := x.nextCommit()
	c.warning = ""
	_, span := t.db.span(x.ctx, "commit")
	failed := c.within(context.Background(), t.db.commitLimit(wait), func() error {
		statements := x.send(id)
		c.send(qCommit)
		c.sync()
		if t.db.dialect.notify && len(x.changes) > 0 {
			c.send(qNotify, []byte(t.db.opts.schema), notice(t.id, id.rev), int4(t.id), int8(id.rev))
			c.sync()
		}
		if err := c.flush(); err != nil {
			return err
		}
		if err := c.results(statements); err != nil {
			return err
		}
		return t.committed(c)
	})
	finish(span, failed)
	if !c.broken && t.db.dialect.notify && len(x.changes) > 0 {
		c.owed++ // the answer to the notification, which no caller reads
	}
	switch {
	case failed == nil && c.warning == "":
		t.learn(id)
		return nil
	case failed != nil && !c.broken:
		c.rollback()
		return failed // the server refused it: nothing has happened
	}
	if failed == nil {
		failed = warned(c.warning)
	}
	reached, err := t.resolve(x.ctx, t.db.left(wait), sought{commitID: id}, failed)
	if err == nil && reached == 0 {
		// A lost connection is retried.
		return &lostError{fmt.Errorf("the commit did not happen: %w", failed)}
	}
	return err
}

// committed reads the answer to COMMIT, and to the end of its series.
func (t *table) committed(c *conn) error {
	tag, err := c.result(nil)
	if err != nil {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && t.db.dialect.unknown(pgErr.Code) {
			return c.lost(err)
		}
		return err
	}
	if tag != "COMMIT" {
		return fmt.Errorf("%w: the database answered COMMIT with %s", kv.ErrUnavailable, tag)
	}
	return c.ready()
}

// warned is the error of a commit with a warning, for instance that it no longer waits for
// the synchronous standby.
func warned(warning string) error {
	return fmt.Errorf("the server committed with a warning: %s", warning)
}

// sought is a commit whose answer was lost. If it is optimistic, its revision is the lowest
// that it can have reached.
type sought struct {
	commitID
	optimistic bool
}

// resolve determines the outcome of a commit without an answer. A session that locks the
// head afterwards knows that the commit has ended; and the look-up itself commits, which
// makes its result as durable as any commit.
//
// It returns the revision that the commit has reached, or 0 if it certainly has not
// happened and never will.
func (t *table) resolve(ctx context.Context, limit time.Duration, id sought, failed error) (reached kv.Revision, err error) {
	ctx, span := t.db.span(context.WithoutCancel(ctx), "look up a commit")
	defer func() { finish(span, err) }()
	if isTimeout(failed) {
		t.db.evictFromAnother()
	}
	known := false
	err = t.db.retryFor(ctx, "look up a commit", limit, func(wait context.Context) error {
		return t.db.with(ctx, wait, t.db.opts.timeout, func(c *conn) error {
			found, oldest, at, err := t.findCommit(c, id)
			if err != nil {
				return t.giveUp(wait, c, err)
			}
			reached = found
			// The oldest possible row of a commit with more revisions than this one; rows
			// younger than those that may have been swept all exist.
			known = found != 0 || id.rev >= min(oldest, at.rev-keepCommits) && !t.trimmed(id.commitID, at)
			return nil
		})
	})
	switch {
	case errors.Is(err, kv.ErrBehind) && !errors.Is(err, kv.ErrRepartitioned):
		return 0, err
	case err != nil:
		if t.db.standbyWaits(ctx) {
			failed = fmt.Errorf("%w%s", failed, waitingForStandby)
		}
		return 0, fmt.Errorf("commit: database %s: %w: its answer was lost (%w), and its outcome cannot be looked up yet: %w", t.db.where, kv.ErrUnknownOutcome, failed, err)
	case reached != 0:
		id.rev = reached
		t.learn(id.commitID)
		return reached, nil
	case !known:
		return 0, fmt.Errorf("commit: database %s: %w: its answer was lost (%w), and history has been compacted beyond it", t.db.where, kv.ErrUnknownOutcome, failed)
	}
	return 0, nil
}

// findCommit looks up a commit with the head locked, and returns the revision that it has
// reached, 0 if it has not happened. An optimistic commit that has not begun never will: it
// requires the fence that it has read.
func (t *table) findCommit(c *conn, id sought) (found, oldest kv.Revision, at commitID, err error) {
	floor := t.floor()
	c.warning = ""
	begun := t.db.sendLock(c, t.id)
	if id.optimistic {
		c.send(qFindOptimistic, int4(t.id), int8(id.rev), id.token[:])
	} else {
		c.send(qFindCommit, int4(t.id), int8(id.rev), int4(id.sub))
	}
	c.send(qFence, int4(t.id))
	c.send(qCommit)
	c.sync()
	if err = c.flush(); err != nil {
		return
	}
	if err = c.results(begun); err != nil {
		return
	}
	h, err := t.resultHead(c)
	if err != nil {
		return
	}
	_, err = c.result(func(cols *columns) error {
		token := cols.next()
		ours := string(token) == string(id.token[:])
		oldest = cols.int()
		if found = 0; ours {
			found = id.rev
			if id.optimistic {
				found = cols.int()
			}
		}
		return nil
	})
	if err != nil {
		return
	}
	if err = c.results(2); err != nil {
		return
	}
	if err = c.ready(); err != nil {
		return
	}
	if c.warning != "" {
		err = c.lost(errors.New(c.warning))
		return
	}
	if err = t.observe(h, floor); errors.Is(err, kv.ErrRepartitioned) || errors.Is(err, kv.ErrDropped) {
		err = nil // later events do not change the commit's outcome
	}
	return found, oldest, h.last, err
}

// learn records an own commit.
func (t *table) learn(id commitID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.newest.before(id) {
		t.newest = id
	}
}

// nextCommit returns the ID of the commit that a transaction is going to make.
func (x *tx) nextCommit() commitID {
	id := commitID{rev: x.revision}
	if len(x.changes) == 0 {
		id.rev, id.sub = x.head.Revision, x.head.last.sub+1
	}
	rand.Read(id.token[:])
	return id
}

// sendLock begins a transaction and locks a keyspace's head. It returns the number of
// answers before the head's.
func (db *DB) sendLock(c *conn, ks int32) (begun int) {
	c.send(qBegin)
	begun = 1
	if db.dialect.lockWait != "" {
		c.send(qLockWait)
		begun++
	}
	c.send(qLock, int4(ks))
	return begun
}

// evict ends transactions that a frozen server has left in the middle of sending its
// changes. It reports whether commits wait for the synchronous standby instead.
func (db *DB) evict(wait context.Context, c *conn) (standby bool) {
	if c.broken || db.dialect.evict == "" {
		return false
	}
	// A failure is harmless: the waiting transaction retries.
	_ = c.within(context.WithoutCancel(wait), db.left(wait), func() error {
		if err := c.simple(db.dialect.evict, nil); err != nil || db.dialect.standbyWaits == "" {
			return err
		}
		return c.simple(db.dialect.standbyWaits, func([][]byte) { standby = true })
	})
	return standby
}

// evictFromAnother begins an evict on another connection, because the client ended its wait before
// the database did: waits for the lock add up, and the client's time is limited. The caller does not
// wait: if the database does not answer at all, it must fail in time.
func (db *DB) evictFromAnother() {
	if db.dialect.evict == "" || db.isClosing() || db.evicting.Swap(true) {
		return
	}
	db.background.Go(func() {
		defer db.evicting.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), db.opts.timeout/3)
		defer cancel()
		if c, err := db.pool.take(ctx); err == nil {
			db.evict(ctx, c)
			db.pool.give(c)
		}
	})
}

// standbyWaits reports whether commits wait for the synchronous standby, as far as can be
// told in a moment.
func (db *DB) standbyWaits(ctx context.Context) (standby bool) {
	ctx, cancel := context.WithTimeout(ctx, db.opts.timeout/10)
	defer cancel()
	if db.dialect.standbyWaits == "" {
		return false
	}
	_ = db.with(ctx, ctx, db.opts.timeout, func(c *conn) error {
		return c.simple(db.dialect.standbyWaits, func([][]byte) { standby = true })
	})
	return standby
}
