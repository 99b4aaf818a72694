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

// Bounds of one commit, so that the first of many writers need not wait for a
// long transaction.
const (
	maxBatchWrites = 1024
	maxBatchBytes  = 8 << 20
)

// write is something that waits for a commit: a client transaction, or a
// change of a lease.
type write struct {
	txn   *kv.TxnRequest
	lease *leaseWrite

	res *kv.TxnResult // of txn
	rev kv.Revision   // after it
	err error

	done chan struct{}
	// taken by the committer, or by the caller who gave up.
	taken atomic.Bool
	bytes int
	trace *writeTrace // nil if the call is not traced
}

// writeOverhead is about what a write takes in memory beside keys and values.
const writeOverhead = 512

// committer is the one goroutine of a keyspace that writes to its table. While
// a commit is on its way to the disk the next batch gathers in the queue; so
// the more clients there are, the more of them share one commit, and a single
// client waits for nobody.
type committer struct {
	k     *Keyspace
	queue chan *write
	bytes atomic.Int64 // in the queue
	rows  atomic.Int64 // written since the start
	done  chan struct{}
	// waiting when the last commit ended, and how to go about the next; the loop's own.
	waiting  int
	optimist optimist
}

func newCommitter(k *Keyspace) *committer {
	c := &committer{k: k, queue: make(chan *write, k.opts.MaxPending), done: make(chan struct{})}
	if t, ok := k.table.(sharedTable); ok {
		c.optimist.table = t.optimistic()
	}
	return c
}

// do hands a write to the committer and waits for it to be durable.
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
		return fmt.Errorf("write: writes of %d bytes are waiting: %w", n-int64(w.bytes), kv.ErrOverloaded)
	}
	select {
	case c.queue <- w:
	default:
		c.bytes.Add(-int64(w.bytes))
		return fmt.Errorf("write: %d are waiting: %w", cap(c.queue), kv.ErrOverloaded)
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return ctx.Err() // nothing has happened, nor will it
		}
	case <-c.done:
		if w.taken.CompareAndSwap(false, true) {
			return c.k.ended()
		}
	}
	// It is in a commit already: that ends soon, and then the outcome is known.
	<-w.done
	return w.err
}

func (c *committer) loop() {
	defer close(c.done)
	var batch []*write
	last := 0 // how many writes the last commit had
	var took time.Duration
	for {
		batch = batch[:0]
		select {
		case w := <-c.queue:
			batch = append(batch, w)
		case <-c.k.ctx.Done():
			return
		}
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

// Bounds of linger: how long, and how many writes are enough. From 64 writes
// on a larger batch costs as much per write, and only makes all wait longer.
const (
	maxLinger    = 100 * time.Microsecond
	enoughWrites = 64
	// Where a commit takes longer than this, as over a network, whoever comes too
	// late for it waits for two: then all are worth waiting for, for a small part of that
	// time. Measured with 20 ms more in each round trip and 256 clients: 3,600 writes a
	// second instead of 2,300.
	longCommit = 20 * time.Millisecond
)

// linger lets the writers that were just answered run, since most of them have
// the next write ready at once: without it each commit finds only those few
// who were quickest (17 of 64, measured). Few writers, or a single one, do not
// wait.
func (c *committer) linger(last int, took time.Duration) {
	if last < 8 {
		return
	}
	enough, limit, wait := min(last*3/4, enoughWrites), maxLinger, runtime.Gosched
	// Those who were answered, and those who came while they waited.
	all := min((last+c.waiting)*7/8, maxBatchWrites)
	switch {
	case took > longCommit:
		enough, limit = all, took/25
	case c.optimist.others:
		// While others commit this server's turn does not come, so waiting costs
		// nothing, and makes commits fewer. Of three servers with 64 clients each commit
		// had 11 writes without it, and has 19.
		enough, limit, wait = all, took/4, nap
	}
	for begin := time.Now(); len(c.queue)+1 < enough && time.Since(begin) < limit; {
		wait()
	}
}

// nap leaves the processor to others for about as long as a timer takes.
func nap() { time.Sleep(20 * time.Microsecond) }

// gather takes what waits, up to the bounds, without those who gave up.
func (c *committer) gather(first []*write) []*write {
	batch := first[:0]
	bytes := 0
	for w := first[0]; ; {
		c.bytes.Add(-int64(w.bytes))
		if w.taken.CompareAndSwap(false, true) {
			batch = append(batch, w)
			bytes += w.bytes
		}
		if len(batch) >= maxBatchWrites || bytes >= maxBatchBytes {
			return batch
		}
		select {
		case w = <-c.queue:
		default:
			return batch
		}
	}
}

// commit carries out a batch in one transaction of the table, tells watchers,
// then the writers. So whoever has an answer can rely on watches started or asked
// for progress from then on.
func (c *committer) commit(writes []*write) {
	k := c.k
	begin := time.Now()
	var b *batch
	wantPrev := k.hub.wantsPrev()
	ahead := lookAhead(writes, wantPrev)
	ctx, spans := traceCommit(k.writing, writes)
	attempts := 0
	hint := c.hint(ahead, writes)
	done, err := false, error(nil)
	if c.optimist.worth(writes) {
		attempts++
		b, done, err = c.try(ctx, writes, ahead, hint, wantPrev)
		c.optimist.tried(done)
		if o := k.opts.Observer.Optimistic; o != nil {
			o(done)
		}
	}
	if !done && err == nil {
		err = k.table.Update(ctx, hint, func(tx kv.Tx) error {
			attempts++
			b = newBatch(tx, wantPrev)
			if err := b.prepare(writes, ahead, k.cache); err != nil {
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
		err = c.failed(err)
		for _, w := range writes {
			if w.err == nil {
				w.res, w.err = nil, err
			}
		}
	} else {
		c.tell(b, writes)
	}
	k.tail.committed()
	if o := k.opts.Observer.Commit; o != nil {
		changes := 0
		if b != nil {
			changes = len(b.changes)
		}
		o(len(writes), changes, time.Since(begin), err)
	}
	spans.end(len(writes), attempts, b, err)
	c.waiting = len(c.queue)
	for _, w := range writes {
		close(w.done)
	}
}

// hint adds the leases of writes to the keys that are looked up ahead, for
// tables that are far away.
func (c *committer) hint(ahead []kv.Lookup, writes []*write) []kv.Lookup {
	if !c.k.shared {
		return ahead
	}
	return append(ahead, leasesAhead(writes)...)
}

// tell makes known what a batch has committed.
func (c *committer) tell(b *batch, writes []*write) {
	k := c.k
	if k.cache != nil {
		k.cache.commit(b)
	}
	if len(b.changes) > 0 {
		c.rows.Add(int64(len(b.changes)))
		c.optimist.committed(b.base.Revision, b.rev)
		k.hub.publish(publication{first: b.base.Revision + 1, last: b.rev, changes: b.changes, hasPrev: b.wantPrev})
		k.tail.reached(b.rev)
		k.saw(b.rev)
	}
	for _, w := range writes {
		if w.err == nil && w.lease != nil {
			k.leases.committed(w.lease)
		}
	}
}

// failed says what a failed commit means to its writers. If it is unknown
// whether it happened, the engine must not go on from what it remembers.
// Otherwise nothing has happened, and another try may succeed.
func (c *committer) failed(err error) error {
	switch {
	case errors.Is(err, kv.ErrUnknownOutcome):
		if c.k.cache != nil {
			c.k.cache.forget()
		}
	case errors.Is(err, kv.ErrBehind):
	case c.k.ctx.Err() != nil && errors.Is(err, context.Canceled):
		return c.k.ended()
	case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrClosed):
		err = fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	return fmt.Errorf("write: %w", err)
}

// run carries out writes on the batch and records what they changed. A write
// that is refused has its error; an error returned is the table's and concerns all.
func (b *batch) run(writes []*write) error {
	for _, w := range writes {
		w.res, w.rev, w.err = nil, 0, nil // this may be the second try
		var err error
		switch {
		case w.txn != nil:
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
	return b.tx.Write(b.rev, b.changes)
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
	w := &write{txn: req, bytes: txnSize(req)}
	if err := k.commits.do(ctx, w); err != nil {
		return nil, err
	}
	return w.res, nil
}
