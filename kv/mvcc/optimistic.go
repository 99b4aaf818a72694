package mvcc

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

// Where several servers write to one keyspace, each would wait for all that the
// others do while they hold the head, their way to the database and back included.
// So a batch is worked out on what the table has now, while others commit, and the table
// commits it if what it depends on has stayed the same: single keys, and leases
// that exist. A server that writes alone has nothing to gain from it.

// optimist decides for which commits that is worth a try.
type optimist struct {
	table optimisticTable // nil: the table does not offer it
	// last is the revision of this server's last commit.
	last kv.Revision
	// others is whether somebody else has committed since the one before.
	others bool
	// pass is how many commits not to try, after failures as many times doubled.
	pass, penalty int
}

// optimisticTable is what the optimist needs of a kv.OptimisticTable.
type optimisticTable interface {
	TryUpdate(ctx context.Context, ahead []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error)
}

// maxPenalty is for how many commits nothing is tried where it keeps failing,
// because servers contend for the same keys.
const maxPenalty = 64

// worth tells whether to try.
func (o *optimist) worth(writes []*write) bool {
	if o.table == nil || !o.others {
		return false
	}
	if o.pass > 0 {
		o.pass--
		return false
	}
	for _, w := range writes {
		if w.txn == nil || !movable(w.txn) {
			return false
		}
	}
	return true
}

// tried takes note of what came of a try.
func (o *optimist) tried(done bool) {
	if done {
		o.pass, o.penalty = 0, 0
		return
	}
	o.penalty = min(max(1, o.penalty*2), maxPenalty)
	o.pass = o.penalty
}

// committed takes note of a commit, and of the revision that it has followed on.
func (o *optimist) committed(follows, rev kv.Revision) {
	o.others = o.last != 0 && follows > o.last
	o.last = rev
}

// errRevisions: which revision a batch gets matters to what it does.
var errRevisions = errors.New("a compare with a revision that is not there yet")

// try carries out writes without holding the head. If done is false nothing has
// happened.
func (c *committer) try(ctx context.Context, writes []*write, ahead, hint []kv.Lookup, wantPrev bool) (b *batch, done bool, err error) {
	var tried *batch
	follows, done, err := c.optimist.table.TryUpdate(ctx, hint, func(tx kv.Tx) error {
		tried = newBatch(tx, wantPrev)
		for _, w := range writes {
			if foreseen(w.txn, tried.base.Revision) {
				return errRevisions
			}
		}
		if err := tried.prepare(writes, ahead, nil); err != nil {
			return err
		}
		return tried.run(writes)
	})
	if errors.Is(err, errRevisions) {
		return nil, false, nil
	}
	if err != nil || !done {
		return nil, false, err
	}
	// From here on it may be in what the tailer hears of.
	c.k.tail.committing(follows.Revision, follows.Revision+tried.rev-tried.base.Revision)
	b, err = tried.again(follows, writes)
	return b, err == nil, err
}

// again carries out writes as before, on the same keys and leases but with the
// revisions that they have got by now.
func (b *batch) again(follows kv.Head, writes []*write) (*batch, error) {
	if follows.Revision == b.base.Revision {
		return b, nil
	}
	next := newBatch(decided{head: follows}, b.wantPrev)
	next.leases = b.leases
	for key, c := range b.cells {
		next.cells[key] = &cell{base: c.base, hasValue: c.hasValue}
	}
	err := next.run(writes)
	if err == nil && (len(next.changes) != len(b.changes) || next.rev-follows.Revision != b.rev-b.base.Revision) {
		err = errors.New("another outcome")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: a commit cannot be told again: %w", kv.ErrUnknownOutcome, err)
	}
	return next, nil
}

// decided is the kv.Tx of what has been committed.
type decided struct {
	kv.Tx // nil: everything has been asked before
	head  kv.Head
}

func (d decided) Head() kv.Head                        { return d.head }
func (d decided) Write(kv.Revision, []kv.Change) error { return nil }

// movable tells whether a transaction does the same wherever it comes in the order of all,
// as long as the keys that it names stay as they are.
func movable(req *kv.TxnRequest) bool {
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
				if !movable(op.Txn) {
					return false
				}
			}
		}
	}
	return true
}

// foreseen tells whether a movable transaction compares with revisions above rev,
// that the batch itself might make.
func foreseen(req *kv.TxnRequest, rev kv.Revision) bool {
	for i := range req.If {
		c := &req.If[i]
		if (c.Target == kv.CompareMod || c.Target == kv.CompareCreate) && c.Int > rev {
			return true
		}
	}
	for _, ops := range [][]kv.Op{req.Then, req.Else} {
		for i := range ops {
			if ops[i].Txn != nil && foreseen(ops[i].Txn, rev) {
				return true
			}
		}
	}
	return false
}
