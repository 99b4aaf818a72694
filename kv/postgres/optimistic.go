package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// An optimistic commit first reads without a lock. Then one round trip locks the head,
// checks that the data read is unchanged, writes the result and commits. So the head is
// locked only as long as the database needs, and not while a server and the network have
// their turn. With several servers writing to one keyspace, that is most of the time
// otherwise.

var _ kv.OptimisticTable = (*table)(nil)

// peekLimit bounds the first round trip. If it gets no answer, the full timeout of an
// Update still follows.
const peekLimit = 2 * time.Second

// optimisticTx is a tx that does not lock the head.
type optimisticTx struct {
	tx
	fence int32
	// needsHead: fn has made a request that only Update can answer.
	needsHead bool
}

var (
	_ kv.Tx = (*optimisticTx)(nil)
	// errNeedsHead never leaves TryUpdate.
	errNeedsHead = errors.New("the head must be locked")
)

// TryUpdate implements kv.OptimisticTable.
func (t *table) TryUpdate(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error) {
	if err := t.writable("update"); err != nil {
		return kv.Head{}, false, err
	}
	if err := t.usable(); err != nil || !t.db.dialect.optimistic {
		return kv.Head{}, false, err
	}
	wait, cancel := context.WithTimeout(ctx, peekLimit)
	c, err := t.db.pool.take(wait)
	cancel()
	if err != nil {
		return kv.Head{}, false, t.usable() // Update returns other errors
	}
	defer t.db.pool.give(c)
	x := &optimisticTx{tx: tx{t: t, c: c, ctx: ctx}}
	_, span := t.db.span(ctx, "look ahead")
	err = x.peek(prefetch)
	finish(span, err)
	if err == nil {
		err = fn(x)
	}
	switch {
	case err == nil && x.dirty() && !x.needsHead:
		return t.commitOptimistic(x)
	case err == nil || x.needsHead || x.err != nil || t.db.dialect.transient(err):
		return kv.Head{}, false, t.usable()
	}
	return kv.Head{}, false, err
}

// peek reads the keys and leases of prefetch and then the head, so no key is newer than the
// head.
func (x *optimisticTx) peek(prefetch []kv.Lookup) error {
	t, c := x.t, x.c
	floor := t.floor()
	keys, leases := x.expect(prefetch)
	return c.within(x.ctx, peekLimit, func() error {
		x.sendAhead(keys, leases)
		c.send(qPeek, int4(t.id))
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		if err := x.receiveAhead(keys, leases); err != nil {
			return err
		}
		found := false
		_, err := c.result(func(cols *columns) error {
			x.head, x.fence, found = readHead(cols), cols.int32(), true
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.ready(); err != nil {
			return err
		}
		if !found {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.replaced(true)
		}
		if err := c.sameTable(x.head); err != nil {
			return err
		}
		return t.observe(x.head, floor)
	})
}

// Load implements kv.Tx. A key read later than the head may be newer.
func (x *optimisticTx) Load(keys []kv.Lookup) ([]*kv.KeyValue, error) {
	before := make(map[string]int64, len(keys))
	for _, k := range keys {
		if r := x.rows[string(k.Key)]; r != nil {
			before[string(k.Key)] = r.id
		}
	}
	found, err := x.tx.Load(keys)
	if err != nil {
		return nil, err
	}
	for i, e := range found {
		key := string(keys[i].Key)
		if id, known := before[key]; known && id != x.rows[key].id || e != nil && e.ModRevision > x.head.Revision {
			return nil, x.refuse()
		}
	}
	return found, nil
}

// Lease implements kv.Tx. Only the lease's existence is checked at the commit.
func (x *optimisticTx) Lease(id kv.LeaseID) (*kv.LeaseRecord, error) {
	l, err := x.tx.Lease(id)
	if err == nil && l == nil {
		err = x.refuse()
	}
	return l, err
}

func (x *optimisticTx) Range(kv.RangeRequest, bool) (*kv.RangeResult, error) { return nil, x.refuse() }
func (x *optimisticTx) LeaseKeys(kv.LeaseID) ([][]byte, error)               { return nil, x.refuse() }
func (x *optimisticTx) PutLease(kv.LeaseRecord) error                        { return x.refuse() }
func (x *optimisticTx) DeleteLease(kv.LeaseID) error                         { return x.refuse() }

// Write implements kv.Tx.
func (x *optimisticTx) Write(revision kv.Revision, changes []kv.Change) error {
	known := len(x.rows)
	if err := x.tx.Write(revision, changes); err != nil {
		return err
	}
	if len(x.rows) != known {
		return x.refuse() // fn has not loaded a key that it changes
	}
	return nil
}

func (x *optimisticTx) refuse() error {
	x.needsHead = true
	return errNeedsHead
}

// commitOptimistic makes the database check, write and commit.
func (t *table) commitOptimistic(x *optimisticTx) (follows kv.Head, done bool, err error) {
	c := x.c
	revisions := x.revision - x.head.Revision
	// It reaches at least this revision.
	id := sought{commitID: commitID{rev: x.revision}, optimistic: true}
	rand.Read(id.token[:])
	floor := t.floor()
	var at head
	claimed := false
	c.warning = ""
	_, span := t.db.span(x.ctx, "commit")
	limit, stop := context.WithTimeout(context.WithoutCancel(x.ctx), t.db.opts.timeout)
	defer stop()
	failed := c.within(context.Background(), t.db.commitLimit(limit), func() error {
		begun := t.db.sendLock(c, t.id)
		statements := x.sendOptimistic(id.token[:], revisions)
		c.send(qCommit)
		c.sync()
		c.send(qNotifyHead, []byte(t.db.opts.schema), int4(t.id))
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		if err := c.results(begun); err != nil {
			return err
		}
		var err error
		if at, err = t.resultHead(c); err != nil {
			return err
		}
		tag, err := c.result(nil)
		if err != nil {
			return err
		}
		claimed = tag == "UPDATE 1"
		if err := c.results(statements - 1); err != nil {
			return err
		}
		return t.committed(c)
	})
	finish(span, failed)
	if !c.broken {
		c.owed++ // the answer to the notification, which no caller reads
	}
	switch {
	case failed != nil && !c.broken:
		_ = t.giveUp(limit, c, failed) // an update follows, and finds the same
		return kv.Head{}, false, nil
	case failed == nil && !claimed:
		return kv.Head{}, false, t.observe(at, floor)
	case failed == nil && c.warning == "":
		if err := t.observe(at, floor); err != nil {
			return kv.Head{}, false, err
		}
		id.rev = at.Revision + revisions
		t.learn(id.commitID)
		return at.Head, true, nil
	case failed == nil:
		failed = warned(c.warning)
	}
	reached, err := t.resolve(x.ctx, t.db.left(limit), id, failed)
	if err != nil || reached == 0 {
		return kv.Head{}, false, err
	}
	return kv.Head{Revision: reached - revisions, Compacted: x.head.Compacted}, true, nil
}

// sendOptimistic sends the transaction's changes and its preconditions, and returns the
// number of statements. The first statement reports whether the preconditions hold.
func (x *optimisticTx) sendOptimistic(token []byte, revisions kv.Revision) (statements int) {
	c, ks, changes := x.c, int4(x.t.id), x.changes
	n := len(changes)
	names := make([]string, 0, len(x.rows))
	for name := range x.rows {
		names = append(names, name)
	}
	leases := make([]kv.LeaseID, 0, len(x.leases))
	for id := range x.leases {
		leases = append(leases, id)
	}
	c.send(qClaim, ks, token, int4(int32(n)), int8(revisions), int8(x.head.Revision), int4(x.head.layout), int4(x.fence), x.t.expectedOrigin(),
		blobs(len(names), func(i int) []byte { return []byte(names[i]) }),
		int8s(len(names), func(i int) int64 { return x.rows[names[i]].id }),
		int8s(len(leases), func(i int) int64 { return leases[i] }))

	w := x.written()
	// Negative numbers count from the actual head.
	moved := func(rev kv.Revision) int64 {
		if rev > x.head.Revision {
			return x.head.Revision - rev
		}
		return rev
	}
	id := func(i int) int64 { return -1 - int64(i) }
	rev := func(i int) int64 { return moved(changes[i].KV.ModRevision) }
	created := func(i int) int64 { return moved(w.created(i)) }
	send := func(q query, columns ...[]byte) {
		c.send(q, append([][]byte{ks, token, int4(int32(n)), int8(revisions)}, columns...)...)
		statements++
	}
	send(qAppendOptimistic, int8s(n, id), int8s(n, rev), int8s(n, created), int8s(n, w.version), int8s(n, w.lease),
		int8s(n, func(i int) int64 {
			if before := w.before[i]; before >= 0 {
				return id(before)
			}
			return x.rows[string(w.key(i))].id
		}),
		int8s(n, func(i int) int64 { return moved(changes[i].PrevRevision) }), blobs(n, w.key), blobs(n, w.value))
	w.eachCurrent(qNewCurrentOptimistic, qSetCurrentOptimistic, func(q query, last []int) {
		of := func(f func(int) int64) []byte { return int8s(len(last), func(i int) int64 { return f(last[i]) }) }
		send(q, of(id), of(rev), of(created), of(w.version), of(w.lease),
			blobs(len(last), func(i int) []byte { return w.key(last[i]) }))
	})
	return statements + 1
}

// expectedOrigin returns the required origin of the keyspace.
func (t *table) expectedOrigin() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.origin
}
