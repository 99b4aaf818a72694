package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/atoll-dev/atoll/kv"
)

// writer is the one goroutine that writes. Updates of any keyspaces that wait during a
// commit share the next one in the order of their arrival, so that none can starve another
// and all share the sync to disk.
type writer struct {
	db     *DB
	conn   *conn
	nextID int64 // of the log
	reqs   chan *writeRequest
	chores chan *writeRequest // may wait for a commit to share
	large  chan *writeRequest // run alone in a transaction
	stopc  chan struct{}
	done   chan struct{}
	once   sync.Once
	// walPages is the length of the write-ahead log after the last commit.
	walPages atomic.Int64
	// truncateAt is the length of the log at which to try to empty it.
	truncateAt int64
	// fenced is set after a commit of unknown outcome until a later one proves it undone.
	fenced bool
}

type writeRequest struct {
	fn      func(*conn) error
	err     error
	done    chan struct{}
	claimed atomic.Bool
	large   bool
	outside bool // fn runs outside a transaction
}

// maxJoined bounds the number of updates in a commit, and so the time that the first of
// them waits for the last.
const maxJoined = 64

func startWriter(db *DB, c *conn, nextID int64) *writer {
	w := &writer{
		db: db, conn: c, nextID: nextID,
		reqs:   make(chan *writeRequest, maxJoined),
		chores: make(chan *writeRequest),
		large:  make(chan *writeRequest),
		stopc:  make(chan struct{}),
		done:   make(chan struct{}),
	}
	c.c.WALHook(func(_ *sqlite3.Conn, _ string, pages int) error {
		w.walPages.Store(int64(pages))
		return nil
	})
	go w.loop()
	return w
}

// do runs fn in a write transaction and returns when it is durable. ctx can cancel it until
// the writer claims the request.
func (w *writer) do(ctx context.Context, fn func(*conn) error) error {
	return w.submit(ctx, w.reqs, &writeRequest{fn: fn})
}

// alone is like do for a transaction that may exceed the memory: pages that do not fit the
// cache go to the write-ahead log before the commit.
func (w *writer) alone(ctx context.Context, fn func(*conn) error) error {
	return w.submit(ctx, w.large, &writeRequest{fn: fn, large: true})
}

// chore is like do for background work: it shares the commit of the next update, so that it
// costs no separate sync while there are updates.
func (w *writer) chore(ctx context.Context, fn func(*conn) error) error {
	return w.submit(ctx, w.chores, &writeRequest{fn: fn})
}

func (w *writer) submit(ctx context.Context, queue chan<- *writeRequest, r *writeRequest) error {
	r.done = make(chan struct{})
	select {
	case queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.stopc:
		return fmt.Errorf("write: database %s: %w", w.db.path, kv.ErrClosed)
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		if r.claimed.CompareAndSwap(false, true) {
			return ctx.Err()
		}
	case <-w.done:
		// The loop may have ended after it answered, or without seeing r.
		if r.claimed.CompareAndSwap(false, true) {
			return fmt.Errorf("write: database %s: %w", w.db.path, kv.ErrClosed)
		}
	}
	<-r.done
	return r.err
}

func (w *writer) stop() {
	w.once.Do(func() { close(w.stopc) })
	<-w.done
}

// choreDelay is how long a chore waits for an update to share a commit with.
const choreDelay = 2 * time.Millisecond

func (w *writer) loop() {
	defer close(w.done)
	batch := make([]*writeRequest, 0, maxJoined+1)
	for {
		batch = w.next(batch[:0])
		if batch == nil {
			return
		}
		live := batch[:0]
		for _, r := range batch {
			switch {
			case !r.claimed.CompareAndSwap(false, true):
			case r.outside:
				if r.err = w.ready(); r.err == nil {
					r.err = r.fn(w.conn)
				}
				close(r.done)
			default:
				live = append(live, r)
			}
		}
		if len(live) > 0 {
			w.run(live)
			for _, r := range live {
				close(r.done)
			}
		}
		w.boundLog()
	}
}

// next waits for the requests of the next commit; nil when the writer stops.
func (w *writer) next(batch []*writeRequest) []*writeRequest {
	var chore *writeRequest
	select {
	case r := <-w.reqs:
		batch = append(batch, r)
	case r := <-w.large:
		return append(batch, r)
	case chore = <-w.chores:
		select {
		case r := <-w.reqs:
			batch = append(batch, r)
		case <-time.After(choreDelay):
		case <-w.stopc:
		}
	case <-w.stopc:
		return nil
	}
	for more := true; more && len(batch) < maxJoined; {
		select {
		case r := <-w.reqs:
			batch = append(batch, r)
		default:
			more = false
		}
	}
	if chore == nil {
		select {
		case chore = <-w.chores:
		default:
			return batch
		}
	}
	return append(batch, chore)
}

// run runs requests in one transaction and sets the error of each. A failed request does
// not affect the others.
func (w *writer) run(batch []*writeRequest) {
	failAll := func(err error) {
		for _, r := range batch {
			if r.err == nil {
				r.err = err
			}
		}
	}
	if err := w.ready(); err != nil {
		failAll(err)
		return
	}
	c := w.conn
	if batch[0].large {
		// It cannot be changed in a transaction.
		if err := c.c.Exec(`PRAGMA cache_spill = ON`); err != nil {
			failAll(w.db.fail("begin", err))
			return
		}
		defer c.c.Exec(`PRAGMA cache_spill = OFF`)
	}
	if err := c.exec(qBegin); err != nil {
		failAll(w.db.fail("begin", err))
		return
	}
	succeeded := 0
	for _, r := range batch {
		r.err = w.one(r, len(batch) > 1)
		if c.c.GetAutocommit() {
			// SQLite has rolled back the whole transaction (disk full, I/O error).
			failAll(fmt.Errorf("write: database %s: %w: another change in the same commit failed: %w",
				w.db.path, kv.ErrUnavailable, r.err))
			return
		}
		if r.err == nil {
			succeeded++
		}
	}
	if succeeded == 0 {
		w.rollback()
		return
	}
	if err := c.exec(qCommit); err != nil {
		failAll(w.commitFailed(err))
	}
}

// one runs a request, and undoes its changes if it fails.
func (w *writer) one(r *writeRequest, joined bool) error {
	c := w.conn
	if !joined {
		return w.sqlError(r.fn(c))
	}
	if err := c.exec(qSavepoint); err != nil {
		return w.sqlError(err)
	}
	err := r.fn(c)
	if err != nil && !c.c.GetAutocommit() {
		if rerr := c.exec(qRollbackTo); rerr != nil {
			// It could not be undone separately, so nothing of this transaction may be
			// committed.
			w.rollback()
			return w.sqlError(errors.Join(err, rerr))
		}
	}
	if !c.c.GetAutocommit() {
		if rerr := c.exec(qRelease); rerr != nil {
			w.rollback()
			return w.sqlError(errors.Join(err, rerr))
		}
	}
	return w.sqlError(err)
}

func (w *writer) sqlError(err error) error {
	if err == nil {
		return nil
	}
	return w.db.fail("write", err)
}

func (w *writer) rollback() {
	if !w.conn.c.GetAutocommit() {
		if err := w.conn.exec(qRollback); err != nil {
			w.breakDown(err)
		}
	}
}

// commitFailed determines the outcome of a transaction whose COMMIT failed, and returns the
// error for its requests.
//
// The frames of the transaction may already be in the log file, so that the next recovery
// would find it committed. If the disk was full, they are incomplete, because the frame that ends the transaction is
// written last. If writing failed for another reason, the next transaction starts
// at the same place of the log and overwrites them: once it is durable, the failed one can
// never come back. If syncing failed, the system may have dropped the data that it could
// not write, and report no error the next time. Then no data that this process reads back
// proves anything, and writing ends until a restart reads the disk again.
func (w *writer) commitFailed(err error) error {
	w.rollback()
	err = noSpace(err)
	var code sqlite3.ExtendedErrorCode
	switch {
	case errors.As(err, &code) && code == sqlite3.IOERR_FSYNC:
		w.breakDown(err)
	case errors.Is(err, kv.ErrNoSpace):
		return fmt.Errorf("commit: database %s: %w: %w (nothing was changed; free disk space; writes then resume automatically)", w.db.path, kv.ErrUnavailable, err)
	default:
		w.fenced = true
		if w.ready() == nil {
			return fmt.Errorf("commit: database %s: %w: %w (nothing was changed)", w.db.path, kv.ErrUnavailable, err)
		}
	}
	return fmt.Errorf("commit: database %s: %w: %w", w.db.path, kv.ErrUnknownOutcome, err)
}

// noSpace adds kv.ErrNoSpace to the error of a full disk.
func noSpace(err error) error {
	var code sqlite3.ErrorCode
	if errors.As(err, &code) && code == sqlite3.FULL {
		return fmt.Errorf("%w: %w", kv.ErrNoSpace, err)
	}
	return err
}

// ready reports whether writing is possible. After a commit of unknown outcome it first
// commits a harmless change in its place.
func (w *writer) ready() error {
	if p := w.db.broken.Load(); p != nil {
		return *p
	}
	if !w.fenced {
		return nil
	}
	err := w.conn.exec(qFence) // in its own transaction
	if err == nil {
		w.fenced = false
		return nil
	}
	w.rollback()
	var code sqlite3.ExtendedErrorCode
	if errors.As(err, &code) && code == sqlite3.IOERR_FSYNC {
		w.breakDown(err)
	}
	return w.db.fail("write", err)
}

// breakDown ends writing permanently.
func (w *writer) breakDown(err error) {
	err = fmt.Errorf("write: database %s: %w: the disk failed to make a commit durable, so writing has stopped: %w (check the disk, then restart)",
		w.db.path, kv.ErrUnavailable, err)
	w.db.broken.CompareAndSwap(nil, &err)
}

// truncateTimeout bounds the time that writers wait for the log to be emptied.
const truncateTimeout = 100 * time.Millisecond

// boundLog triggers checkpoints of the log, and empties it when readers have kept it
// growing for too long.
func (w *writer) boundLog() {
	pages := w.walPages.Load()
	if pages >= checkpointPages {
		w.db.ckpt.wake()
	}
	limit := w.db.opts.walLimit / w.db.pageSize
	if pages < limit {
		w.truncateAt = limit
		return
	}
	if pages < w.truncateAt || w.db.broken.Load() != nil {
		return
	}
	// Rare: it requires readers whose snapshots overlap continuously. Writers wait for the
	// present readers; if that takes too long, the log may grow a little more before the
	// next attempt.
	w.truncateAt = pages + limit/8
	w.emptyLog()
}
