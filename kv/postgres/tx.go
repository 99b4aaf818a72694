package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/atoll-dev/atoll/kv"
)

// tx is a table inside Update: it implements kv.Tx. Its writes are buffered until the
// commit, so that one round trip sends all of them.
type tx struct {
	t    *table
	c    *conn
	ctx  context.Context
	head head
	// stored is the usage that an earlier commit has stored; used is the one to store.
	stored storedUsage
	used   *kv.Usage
	// rows and leases that were loaded.
	rows   map[string]*row
	leases map[kv.LeaseID]*kv.LeaseRecord
	// err is the first error of the database: the transaction is over.
	err error

	revision kv.Revision
	changes  []kv.Change
	leaseOps []leaseOp
	compact  kv.Revision
	alarm    query  // qRaiseAlarm or qDisarm; 0: unchanged
	origin   []byte // new origin of the keyspace, if it is to be replaced
}

var _ kv.Tx = (*tx)(nil)

// row is a key's row of current.
type row struct {
	kv       *kv.KeyValue // nil if the key does not exist
	id       int64        // of its newest change, 0 if there is none
	hasValue bool
}

type leaseOp struct {
	lease  kv.LeaseRecord
	delete bool
}

// maxKeyBytes is the key length that PostgreSQL's b-trees support, with room for the other
// columns.
const maxKeyBytes = 2600

// MaxKeyBytes implements kv.KeyLimiter.
func (t *table) MaxKeyBytes() int { return maxKeyBytes }

// expect prepares for the prefetched keys and leases.
func (x *tx) expect(prefetch []kv.Lookup) (keys []kv.Lookup, leases []kv.LeaseID) {
	for _, l := range prefetch {
		if l.Lease != 0 {
			leases = append(leases, l.Lease)
		} else {
			keys = append(keys, l)
		}
	}
	x.rows = make(map[string]*row, len(keys))
	x.leases = map[kv.LeaseID]*kv.LeaseRecord{}
	return keys, leases
}

func (x *tx) sendAhead(keys []kv.Lookup, leases []kv.LeaseID) {
	if len(keys) > 0 {
		x.sendLoad(keys)
	}
	if len(leases) > 0 {
		x.sendLeases(leases)
	}
}

func (x *tx) receiveAhead(keys []kv.Lookup, leases []kv.LeaseID) error {
	if len(keys) > 0 {
		if err := x.receiveLoad(keys); err != nil {
			return err
		}
	}
	if len(leases) > 0 {
		return x.receiveLeases(leases)
	}
	return nil
}

// begin starts the transaction: one round trip.
func (x *tx) begin(wait context.Context, prefetch []kv.Lookup) error {
	t, c := x.t, x.c
	floor := t.floor()
	keys, leases := x.expect(prefetch)
	return c.within(wait, t.db.opts.timeout, func() error {
		begun := t.db.sendLock(c, t.id)
		x.sendAhead(keys, leases)
		c.sync()
		if err := c.flush(); err != nil {
			return err
		}
		if err := c.results(begun); err != nil {
			return err
		}
		var err error
		if x.head, err = t.resultHead(c, func(cols *columns) { x.stored = readUsage(cols) }); err != nil {
			return err
		}
		if err := t.observe(x.head, floor); err != nil {
			c.broken = true // the other answers are still pending
			return err
		}
		if err := x.receiveAhead(keys, leases); err != nil {
			return err
		}
		return c.ready()
	})
}

func (x *tx) Head() kv.Head { return x.head.Head }

// ask makes a round trip in the middle of the transaction.
func (x *tx) ask(send func(), receive func() error) error {
	if x.err != nil {
		return x.err
	}
	_, span := x.t.db.span(x.ctx, "read in a transaction")
	ctx, stop := x.t.db.untilSilent(x.ctx, statementLimit)
	defer stop()
	x.err = x.c.within(ctx, statementLimit, func() error {
		send()
		x.c.sync()
		if err := x.c.flush(); err != nil {
			return err
		}
		if err := receive(); err != nil {
			return err
		}
		return x.c.ready()
	})
	finish(span, x.err)
	return x.err
}

// Load implements kv.Tx.
func (x *tx) Load(keys []kv.Lookup) ([]*kv.KeyValue, error) {
	var missing []kv.Lookup
	for _, k := range keys {
		if r := x.rows[string(k.Key)]; r == nil || k.WithValue && !r.hasValue {
			missing = append(missing, k)
		}
	}
	if len(missing) > 0 {
		if err := x.ask(func() { x.sendLoad(missing) }, func() error { return x.receiveLoad(missing) }); err != nil {
			return nil, err
		}
	}
	found := make([]*kv.KeyValue, len(keys))
	for i, k := range keys {
		found[i] = x.rows[string(k.Key)].kv
	}
	return found, nil
}

func (x *tx) sendLoad(keys []kv.Lookup) {
	x.c.send(qLoad, int4(x.t.id), blobs(len(keys), func(i int) []byte { return keys[i].Key }),
		bools(len(keys), func(i int) bool { return keys[i].WithValue }))
}

func (x *tx) receiveLoad(keys []kv.Lookup) error {
	for _, k := range keys {
		if old := x.rows[string(k.Key)]; old == nil {
			x.rows[string(k.Key)] = &row{hasValue: true}
		}
	}
	_, err := x.c.result(func(cols *columns) error {
		i := cols.int() - 1
		if i < 0 || i >= int64(len(keys)) {
			cols.fail("a row does not match any request")
			return nil
		}
		k := keys[i]
		r := &row{id: cols.int(), hasValue: k.WithValue}
		if version := cols.int(); version > 0 {
			r.kv = &kv.KeyValue{Key: k.Key, Version: version, ModRevision: cols.int(),
				CreateRevision: cols.int(), Lease: cols.int(), Value: cols.bytes()}
		} else {
			r.hasValue = true
		}
		x.rows[string(k.Key)] = r
		return nil
	})
	return err
}

// Range implements kv.Tx.
func (x *tx) Range(req kv.RangeRequest, wantCount bool) (res *kv.RangeResult, err error) {
	if err := checkRevision(req.Revision, x.head.Head); err != nil {
		return nil, err
	}
	if x.t.chunked(req) {
		res, _, err = x.t.rangeInChunks(req, wantCount, func(send func(*conn), receive func(*conn, kv.Head) error) error {
			return x.ask(func() { send(x.c) }, func() error { return receive(x.c, x.head.Head) })
		})
		return res, err
	}
	s := x.t.scan(req, wantCount)
	err = x.ask(func() { s.send(x.c) }, func() (err error) {
		res, err = s.receive(x.c, x.head.Head)
		return err
	})
	if err == nil {
		err = s.refusal()
	}
	return res, err
}

// Lease implements kv.Tx.
func (x *tx) Lease(id kv.LeaseID) (*kv.LeaseRecord, error) {
	l, known := x.leases[id]
	if !known {
		ids := []kv.LeaseID{id}
		if err := x.ask(func() { x.sendLeases(ids) }, func() error { return x.receiveLeases(ids) }); err != nil {
			return nil, err
		}
		l = x.leases[id]
	}
	return l, nil
}

func (x *tx) sendLeases(ids []kv.LeaseID) {
	x.c.send(qLeasesByID, int4(x.t.id), int8s(len(ids), func(i int) int64 { return ids[i] }))
}

func (x *tx) receiveLeases(ids []kv.LeaseID) error {
	for _, id := range ids {
		x.leases[id] = nil
	}
	_, err := x.c.result(func(cols *columns) error {
		l := &kv.LeaseRecord{ID: cols.int(), TTL: cols.int(), Beat: cols.int()}
		x.leases[l.ID] = l
		return nil
	})
	return err
}

// PutLease implements kv.Tx.
func (x *tx) PutLease(l kv.LeaseRecord) error {
	x.leases[l.ID] = &l
	x.leaseOps = append(x.leaseOps, leaseOp{lease: l})
	return nil
}

// DeleteLease implements kv.Tx.
func (x *tx) DeleteLease(id kv.LeaseID) error {
	x.leases[id] = nil
	x.leaseOps = append(x.leaseOps, leaseOp{lease: kv.LeaseRecord{ID: id}, delete: true})
	return nil
}

// LeaseKeys implements kv.Tx.
func (x *tx) LeaseKeys(id kv.LeaseID) (keys [][]byte, err error) {
	err = x.ask(func() { x.c.send(qLeaseKeys, int4(x.t.id), int8(id)) }, func() (err error) {
		keys, err = resultKeys(x.c)
		return err
	})
	return keys, err
}

var errWriteOrder = errors.New("write: revisions of changes must ascend, above the head and up to the new revision")

// Write implements kv.Tx.
func (x *tx) Write(revision kv.Revision, changes []kv.Change) error {
	if len(changes) == 0 {
		return nil
	}
	last := x.head.Revision
	var unknown []kv.Lookup
	for i := range changes {
		e := &changes[i].KV
		if e.ModRevision < last || e.ModRevision == x.head.Revision || e.ModRevision > revision {
			return errWriteOrder
		}
		last = e.ModRevision
		if len(e.Key) > maxKeyBytes {
			return fmt.Errorf("write a key of %d bytes: %w: PostgreSQL indexes at most %d", len(e.Key), kv.ErrRequestTooLarge, maxKeyBytes)
		}
		if x.rows[string(e.Key)] == nil {
			unknown = append(unknown, kv.Lookup{Key: e.Key})
		}
	}
	if len(unknown) > 0 {
		// The previous change of each key is required.
		if _, err := x.Load(unknown); err != nil {
			return err
		}
	}
	x.revision, x.changes = revision, changes
	return nil
}

func (x *tx) dirty() bool {
	return len(x.changes) > 0 || len(x.leaseOps) > 0 || x.compact != 0 || x.alarm != 0 || x.origin != nil
}

// send sends the transaction's changes as one commit, and returns the number of statements.
func (x *tx) send(id commitID) (statements int) {
	c, ks := x.c, int4(x.t.id)
	for _, op := range x.leaseOps {
		if op.delete {
			c.send(qDeleteLease, ks, int8(op.lease.ID))
		} else {
			c.send(qPutLease, ks, int8(op.lease.ID), int8(op.lease.TTL), int8(op.lease.Beat))
		}
		statements++
	}
	if x.compact != 0 {
		c.send(qCompact, ks, int8(x.compact))
		statements++
	}
	if x.alarm != 0 {
		c.send(x.alarm, ks)
		statements++
	}
	if x.origin != nil {
		c.send(qRenew, ks, x.origin)
		statements++
	}
	if len(x.changes) > 0 {
		statements += x.sendChanges(ks)
	}
	x.sendCommitRow(ks, id)
	statements++
	if id.sub >= 2*keepIdle && id.sub%keepIdle == 0 {
		c.send(qTrimCommits, ks, int8(id.rev), int4(id.sub-keepIdle))
		statements++
	}
	return statements
}

// written is the transaction's changes, as rows.
type written struct {
	changes []kv.Change
	// before is the index of the previous change of the same key, -1 if it is not one of
	// these.
	before []int
	// made and changed are the last changes of keys that get a new row of current, and of
	// those with an existing one.
	made, changed []int
}

func (x *tx) written() written {
	w := written{changes: x.changes, before: make([]int, len(x.changes))}
	newest := make(map[string]int, len(x.changes))
	for i := range w.changes {
		key := string(w.key(i))
		w.before[i] = -1
		if before, ok := newest[key]; ok {
			w.before[i] = before
		}
		newest[key] = i
	}
	for key, i := range newest {
		if x.rows[key].id == 0 {
			w.made = append(w.made, i)
		} else {
			w.changed = append(w.changed, i)
		}
	}
	// By key: neighbours share pages, and all transactions that lock several rows lock them
	// in the same order.
	byKey := func(a, b int) int { return bytes.Compare(w.key(a), w.key(b)) }
	slices.SortFunc(w.made, byKey)
	slices.SortFunc(w.changed, byKey)
	return w
}

// eachCurrent sends rows of current, if there are any.
func (w *written) eachCurrent(made, changed query, send func(q query, last []int)) {
	if len(w.made) > 0 {
		send(made, w.made)
	}
	if len(w.changed) > 0 {
		send(changed, w.changed)
	}
}

func (w *written) key(i int) []byte    { return w.changes[i].KV.Key }
func (w *written) created(i int) int64 { return w.put(i, w.changes[i].KV.CreateRevision) }
func (w *written) version(i int) int64 { return w.put(i, w.changes[i].KV.Version) }
func (w *written) lease(i int) int64   { return w.put(i, w.changes[i].KV.Lease) }

func (w *written) value(i int) []byte {
	if w.changes[i].Deleted {
		return nil
	}
	return w.changes[i].KV.Value
}

// put returns v, or 0 for a deletion: version 0 marks a deletion.
func (w *written) put(i int, v int64) int64 {
	if w.changes[i].Deleted {
		return 0
	}
	return v
}

func (x *tx) sendChanges(ks []byte) (statements int) {
	w := x.written()
	n := len(w.changes)
	id := func(i int) int64 { return x.head.nextID + int64(i) }
	rev := func(i int) int64 { return w.changes[i].KV.ModRevision }
	x.c.send(qAppend, ks, int8s(n, id), int8s(n, rev), int8s(n, w.created), int8s(n, w.version), int8s(n, w.lease),
		int8s(n, func(i int) int64 {
			if before := w.before[i]; before >= 0 {
				return id(before)
			}
			return x.rows[string(w.key(i))].id
		}),
		int8s(n, func(i int) int64 { return w.changes[i].PrevRevision }), blobs(n, w.key), blobs(n, w.value))
	statements = 1
	w.eachCurrent(qNewCurrent, qSetCurrent, func(q query, last []int) {
		of := func(f func(int) int64) []byte { return int8s(len(last), func(i int) int64 { return f(last[i]) }) }
		x.c.send(q, ks, of(id), of(rev), of(w.created), of(w.version), of(w.lease),
			blobs(len(last), func(i int) []byte { return w.key(last[i]) }))
		statements++
	})
	return statements
}
