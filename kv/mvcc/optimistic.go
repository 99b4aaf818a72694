package mvcc

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// If several servers write to one keyspace, each waits while another holds the head, which
// includes that server's round trips to the database. So a batch is computed on the table's
// present state while others commit. The table then commits it if its inputs are unchanged:
// single keys, and existing leases. A server that writes alone gains nothing from it.

// optimisticMode decides for which commits an optimistic attempt is worthwhile.
type optimisticMode struct {
	table optimisticTable // nil: not supported by the table
	// last is the revision of this server's last commit.
	last kv.Revision
	// othersCommit reports whether another server has committed between this server's last
	// two commits.
	othersCommit bool
	// skip is the number of commits to make without an attempt; nextSkip doubles with each
	// failure.
	skip, nextSkip int
}

// optimisticTable is the part of kv.OptimisticTable that the committer needs.
type optimisticTable interface {
	TryUpdate(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error)
}

// maxSkip bounds the commits without an attempt if attempts keep failing because servers
// contend for the same keys.
const maxSkip = 64

// shouldTry reports whether to attempt an optimistic commit.
func (o *optimisticMode) shouldTry(writes []*write) bool {
	if o.table == nil || !o.othersCommit {
		return false
	}
	if o.skip > 0 {
		o.skip--
		return false
	}
	for _, w := range writes {
		if w.txn == nil || !orderIndependent(w.txn) {
			return false
		}
	}
	return true
}

// recordTry records the outcome of an attempt.
func (o *optimisticMode) recordTry(done bool) {
	if done {
		o.skip, o.nextSkip = 0, 0
		return
	}
	o.nextSkip = min(max(1, o.nextSkip*2), maxSkip)
	o.skip = o.nextSkip
}

// committed records a commit, and the revision that it followed.
func (o *optimisticMode) committed(follows, rev kv.Revision) {
	o.othersCommit = o.last != 0 && follows > o.last
	o.last = rev
}

// errFutureCompare is returned if the effect of a batch depends on the revisions that it
// gets.
var errFutureCompare = errors.New("compare with a future revision")

// try runs writes without holding the head. If done is false nothing has happened.
func (c *committer) try(ctx context.Context, writes []*write, prefetch, withLeases []kv.Lookup, wantPrev bool) (b *batch, done bool, err error) {
	var tried *batch
	follows, done, err := c.optimisticMode.table.TryUpdate(ctx, withLeases, func(tx kv.Tx) error {
		tried = newBatch(tx, wantPrev)
		for _, w := range writes {
			if comparesFuture(w.txn, tried.base.Revision) {
				return errFutureCompare
			}
		}
		if err := tried.prepare(writes, prefetch, nil); err != nil {
			return err
		}
		return tried.run(writes)
	})
	if errors.Is(err, errFutureCompare) {
		return nil, false, nil
	}
	if err != nil || !done {
		return nil, false, err
	}
	// From here on the tailer may receive hints of these revisions.
	c.k.tail.committing(follows.Revision, follows.Revision+tried.rev-tried.base.Revision)
	b, err = tried.replay(follows, writes)
	return b, err == nil, err
}

// replay runs the writes again on the same keys and leases, but with the revisions that the
// commit got.
func (b *batch) replay(follows kv.Head, writes []*write) (*batch, error) {
	if follows.Revision == b.base.Revision {
		return b, nil
	}
	next := newBatch(committedTx{head: follows}, b.wantPrev)
	next.leases = b.leases
	for key, c := range b.keys {
		next.keys[key] = &keyState{base: c.base, hasValue: c.hasValue}
	}
	err := next.run(writes)
	if err == nil && (len(next.changes) != len(b.changes) || next.rev-follows.Revision != b.rev-b.base.Revision) {
		err = errors.New("different outcome")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: a commit cannot be replayed: %w", kv.ErrUnknownOutcome, err)
	}
	return next, nil
}

// committedTx is the kv.Tx of a batch that has been committed.
type committedTx struct {
	kv.Tx // nil: all reads have been made before
	head  kv.Head
}

func (d committedTx) Head() kv.Head                        { return d.head }
func (d committedTx) Write(kv.Revision, []kv.Change) error { return nil }

// orderIndependent reports whether a transaction has the same effect at any position in the
// order of commits, as long as the keys that it names are unchanged.
func orderIndependent(req *kv.TxnRequest) bool {
	for i := range req.If {
		if !req.If[i].Span.Single() {
			return false
		}
	}
	for _, ops := range [][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			switch op := &ops[i]; {
			case op.Range != nil:
				if !op.Range.Span.Single() || op.Range.Revision > 0 || needsAll(op.Range) {
					return false
				}
			case op.Delete != nil:
				if !op.Delete.Span.Single() {
					return false
				}
			case op.Txn != nil:
				if !orderIndependent(op.Txn) {
					return false
				}
			}
		}
	}
	return true
}

// comparesFuture reports whether an order-independent transaction compares with revisions
// above rev, which the batch itself might make.
func comparesFuture(req *kv.TxnRequest, rev kv.Revision) bool {
	for i := range req.If {
		c := &req.If[i]
		if (c.Target == kv.CompareMod || c.Target == kv.CompareCreate) && c.Int > rev {
			return true
		}
	}
	for _, ops := range [][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			if ops[i].Txn != nil && comparesFuture(ops[i].Txn, rev) {
				return true
			}
		}
	}
	return false
}
