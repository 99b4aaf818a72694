package mvcc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of one commit, so that the first of many writers need not wait for a long
// transaction.
const (
	maxBatchWrites = 1024
	maxBatchBytes  = 8 << 20
)

// write is a change that waits for a commit: a client transaction, or a change of a lease.
type write struct {
	txn   *kv.TxnRequest
	lease *leaseWrite

	res *kv.TxnResult // result of txn
	rev kv.Revision   // revision after lease
	err error

	done chan struct{}
	// claimed by the committer, or by a caller that gave up.
	claimed atomic.Bool
	// exempt is set if no limits apply.
	exempt bool
	bytes  int
	trace  *writeTrace // nil if the call is not traced
}

// writeOverhead is the approximate memory of a write in addition to keys and values.
const writeOverhead = 512

// committer is the one goroutine of a keyspace that writes to its table. During a commit,
// the next batch accumulates in the queue. The more clients there are, the more of them
// share one commit; a single client waits for no one.
type committer struct {
	k     *Keyspace
	queue *writeQueue
	bytes atomic.Int64 // total size of the queue
	rows  atomic.Int64 // rows written since the start
	done  chan struct{}
	// waiting is the length of the queue when the last commit ended. Both fields belong to
	// the loop.
	waiting        int
	optimisticMode optimisticMode
}

func newCommitter(k *Keyspace) *committer {
	c := &committer{k: k, queue: newWriteQueue(k.opts.MaxPending), done: make(chan struct{})}
	if t, ok := k.table.(sharedTable); ok {
		c.optimisticMode.table = t.optimistic()
	}
	return c
}

// do queues a write for the committer and waits until it is durable.
func (c *committer) do(ctx context.Context, w *write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.k.open(); err != nil {
		return err
	}
	w.done = make(chan struct{})
	w.trace = traceWrite(ctx)
	w.bytes += writeOverhead
	if n := c.bytes.Add(int64(w.bytes)); n > c.k.opts.MaxPendingBytes && n > int64(w.bytes) {
		c.bytes.Add(-int64(w.bytes))
		return fmt.Errorf("write: pending writes take %d bytes: %w", n-int64(w.bytes), kv.ErrOverloaded)
	}
	if !c.queue.push(w) {
		c.bytes.Add(-int64(w.bytes))
		return fmt.Errorf("write: %d writes are pending: %w", c.queue.limit, kv.ErrOverloaded)
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		if w.claimed.CompareAndSwap(false, true) {
			return ctx.Err() // nothing has happened, and nothing will
		}
	case <-c.done:
		if w.claimed.CompareAndSwap(false, true) {
			return c.k.ended()
		}
	}
	// The write is in a commit already: it ends soon, and then the outcome is known.
	<-w.done
	return w.err
}

func (c *committer) loop() {
	defer close(c.done)
	var batch []*write
	last := 0 // number of writes in the last commit
	var took time.Duration
	for {
		w := c.first()
		if w == nil {
			return
		}
		batch = append(batch[:0], w)
		c.linger(last, took)
		batch = c.gather(batch)
		last = len(batch)
		if last > 0 {
			begin := time.Now()
			c.commit(batch)
			took = time.Since(begin)
		}
	}
}

// first waits for the first write of the next batch; nil when the keyspace has ended.
func (c *committer) first() *write {
	for {
		if c.k.ctx.Err() != nil {
			return nil
		}
		if w := c.queue.pop(); w != nil {
			return w
		}
		select {
		case <-c.queue.wakec:
		case <-c.k.ctx.Done():
		}
	}
}

// Bounds of linger: the maximum time, and a sufficient number of writes. From 64 writes on,
// a larger batch costs as much per write and only increases latency.
const (
	maxLinger    = 100 * time.Microsecond
	enoughWrites = 64
	// If a commit takes longer than this, as over a network, a write that just misses it
	// waits for two commits. Then it pays to wait for all writers, for a small part of that
	// time. Measured with 20 ms added to each round trip and 256 clients: 3,600 writes per
	// second instead of 2,300.
	longCommit = 20 * time.Millisecond
)

// linger lets the writers that were just answered run, since most of them have the next
// write ready at once. Without it, each commit finds only the few fastest of them (17 of
// 64, measured). If there are few writers, or one, they do not wait.
func (c *committer) linger(last int, took time.Duration) {
	if last < 8 {
		return
	}
	enough, limit, wait := min(last*3/4, enoughWrites), maxLinger, runtime.Gosched
	// The writers that were just answered, and those that arrived while they waited.
	all := min((last+c.waiting)*7/8, maxBatchWrites)
	switch {
	case took > longCommit:
		enough, limit = all, took/25
	case c.optimisticMode.othersCommit:
		// While other servers commit, it is not this server's turn, so waiting costs
		// nothing and makes commits fewer. With three servers and 64 clients each, it
		// increased the writes per commit from 11 to 19.
		enough, limit, wait = all, took/4, nap
	}
	for begin := time.Now(); c.queue.len()+1 < enough && time.Since(begin) < limit; {
		wait()
	}
}

// nap yields the processor for about the shortest time that a timer can wait.
func nap() { time.Sleep(20 * time.Microsecond) }

// gather takes pending writes, up to the bounds, and skips those whose callers gave up.
func (c *committer) gather(first []*write) []*write {
	batch := first[:0]
	bytes := 0
	for w := first[0]; ; {
		c.bytes.Add(-int64(w.bytes))
		if w.claimed.CompareAndSwap(false, true) {
			batch = append(batch, w)
			bytes += w.bytes
		}
		if len(batch) >= maxBatchWrites || bytes >= maxBatchBytes {
			return batch
		}
		if w = c.queue.pop(); w == nil {
			return batch
		}
	}
}

// commit runs a batch in one transaction of the table, publishes its changes to watches,
// and then answers the writers. So a client that has its answer can rely on watches that it
// starts, or progress that it requests, from then on.
func (c *committer) commit(writes []*write) {
	k := c.k
	begin := time.Now()
	var b *batch
	limits := *k.limits.Load()
	wantPrev := k.hub.wantsPrev() || limits.Any()
	prefetch := prefetchKeys(writes, wantPrev, limits.Any())
	ctx, spans := traceCommit(k.writing, writes)
	attempts := 0
	withLeases := c.withLeases(prefetch, writes)
	done, err := false, error(nil)
	if !limits.Any() && c.optimisticMode.shouldTry(writes) {
		attempts++
		b, done, err = c.try(ctx, writes, prefetch, withLeases, wantPrev)
		c.optimisticMode.recordTry(done)
		if o := k.opts.Observer.Optimistic; o != nil {
			o(done)
		}
	}
	if !done && err == nil {
		err = k.table.Update(ctx, withLeases, func(tx kv.Tx) error {
			attempts++
			b = newBatch(tx, wantPrev).tracked(limits, &k.reservations)
			if err := b.prepare(writes, prefetch, k.cache); err != nil {
				return err
			}
			if err := b.run(writes); err != nil {
				return err
			}
			if len(b.changes) > 0 {
				k.tail.committing(b.base.Revision, b.rev)
			}
			return nil
		})
	}
	if err != nil {
		err = c.commitError(err)
		for _, w := range writes {
			if w.err == nil {
				w.res, w.err = nil, err
			}
		}
	} else {
		c.publish(b, writes)
	}
	k.tail.commitDone()
	if o := k.opts.Observer.Commit; o != nil {
		changes := 0
		if b != nil {
			changes = len(b.changes)
		}
		o(len(writes), changes, time.Since(begin), err)
	}
	spans.end(len(writes), attempts, b, err)
	c.waiting = c.queue.len()
	for _, w := range writes {
		close(w.done)
	}
}

// withLeases adds the leases of writes to the prefetched keys, for tables that are reached
// over a network.
func (c *committer) withLeases(prefetch []kv.Lookup, writes []*write) []kv.Lookup {
	if !c.k.shared {
		return prefetch
	}
	return append(prefetch, prefetchLeases(writes)...)
}

// publish makes the changes of a committed batch visible to cache, watches and leases.
func (c *committer) publish(b *batch, writes []*write) {
	k := c.k
	if k.cache != nil {
		k.cache.commit(b)
	}
	if len(b.changes) > 0 {
		c.rows.Add(int64(len(b.changes)))
		c.optimisticMode.committed(b.base.Revision, b.rev)
		k.hub.publish(publication{first: b.base.Revision + 1, last: b.rev, changes: b.changes, hasPrev: b.wantPrev})
		k.tail.confirm(b.rev)
		k.observed(b.rev)
	}
	for _, w := range writes {
		if w.err == nil && w.lease != nil {
			k.leases.committed(w.lease)
		}
	}
}

// commitError returns the error of a failed commit for its writers. If the outcome is
// unknown, the engine discards its in-memory state. Otherwise nothing has happened, and a
// retry may succeed.
func (c *committer) commitError(err error) error {
	switch {
	case errors.Is(err, kv.ErrUnknownOutcome):
		if c.k.cache != nil {
			c.k.cache.invalidate()
		}
	case errors.Is(err, kv.ErrBehind), errors.Is(err, kv.ErrDropped):
	case c.k.ctx.Err() != nil && errors.Is(err, context.Canceled):
		return c.k.ended()
	case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrClosed):
		err = fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	return fmt.Errorf("write: %w", err)
}

// run runs writes on the batch and records their changes. A refused write has its own
// error; a returned error is the table's and affects all of them.
func (b *batch) run(writes []*write) error {
	for _, w := range writes {
		w.res, w.rev, w.err = nil, 0, nil // this may be the second attempt
		var err error
		switch {
		case w.txn != nil:
			b.exempt = w.exempt
			if w.res, err = b.txn(w.txn); err == nil {
				w.rev = w.res.Revision
			}
		default:
			w.rev, err = b.lease(w.lease)
		}
		if refused, ok := errors.AsType[requestError](err); ok {
			w.err = refused.error
		} else if err != nil {
			return err
		}
	}
	if len(b.changes) == 0 {
		return nil
	}
	return b.write()
}

// Txn implements kv.Keyspace.
func (k *Keyspace) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	if traced(ctx) {
		return k.tracedTxn(ctx, &req)
	}
	return k.txn(ctx, &req)
}

func (k *Keyspace) txn(ctx context.Context, req *kv.TxnRequest) (*kv.TxnResult, error) {
	if err := k.opts.checkTxn(req); err != nil {
		return nil, err
	}
	if readOnly(req) {
		return k.readTxn(ctx, req)
	}
	w := &write{txn: req, bytes: txnSize(req), exempt: kv.Exempt(ctx)}
	if err := k.commits.do(ctx, w); err != nil {
		return nil, err
	}
	return w.res, nil
}
