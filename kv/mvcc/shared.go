package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// sharedTable is a table with other writers. Every answer of the table also contains the
// head, and thus shows the commits of the other writers. All answers pass through here, so
// the head is recorded in one place. So is ErrBehind, if the table has lost state that it
// had returned before; and an error after which the table is never used again ends the
// engine.
type sharedTable struct {
	table kv.SharedTable
	k     *Keyspace
}

func (t sharedTable) note(head kv.Head, err error) {
	switch {
	case err == nil:
		t.k.watchdog.answered()
		raise(&t.k.compacted, head.Compacted)
		t.k.tail.confirm(head.Revision)
	case errors.Is(err, kv.ErrRepartitioned), errors.Is(err, kv.ErrDropped):
		t.k.fail(err)
	case errors.Is(err, kv.ErrBehind):
		t.k.suspend(err)
	}
}

// suspend ends all watches and refuses calls until resume: the table lacks state that
// clients have seen.
func (k *Keyspace) suspend(err error) {
	if k.suspended.Swap(&err) != nil {
		return
	}
	if o := k.opts.Observer.Behind; o != nil {
		o(err)
	}
	k.hub.endAll(err)
}

// resume is called when the table is found to have everything that clients have seen.
func (k *Keyspace) resume() {
	if k.suspended.Swap(nil) == nil {
		return
	}
	if o := k.opts.Observer.Behind; o != nil {
		o(nil)
	}
}

// noteDone is for answers without a head.
func (t sharedTable) noteDone(err error) { t.note(kv.Head{}, err) }

func (t sharedTable) Update(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) error {
	err := t.table.Update(ctx, prefetch, func(tx kv.Tx) error {
		// The tailer can deliver earlier commits while this one is under way.
		t.note(tx.Head(), nil)
		return fn(tx)
	})
	t.noteDone(err)
	return err
}

// optimistic returns the table's optimistic commit, nil if it has none.
func (t sharedTable) optimistic() optimisticTable {
	inner, ok := t.table.(kv.OptimisticTable)
	if !ok {
		return nil
	}
	return optimisticShared{t, inner}
}

// optimisticShared records the answers of TryUpdate.
type optimisticShared struct {
	shared sharedTable
	table  kv.OptimisticTable
}

func (t optimisticShared) TryUpdate(ctx context.Context, prefetch []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error) {
	follows, done, err = t.table.TryUpdate(ctx, prefetch, func(tx kv.Tx) error {
		t.shared.note(tx.Head(), nil)
		return fn(tx)
	})
	if err != nil || done {
		t.shared.note(follows, err)
	}
	return follows, done, err
}

func (t sharedTable) Head(ctx context.Context) (kv.Head, error) {
	head, err := t.table.Head(ctx)
	t.note(head, err)
	return head, err
}

func (t sharedTable) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (*kv.RangeResult, kv.Head, error) {
	res, head, err := t.table.Range(ctx, req, wantCount)
	t.note(head, err)
	return res, head, err
}

func (t sharedTable) Changes(ctx context.Context, after, upTo kv.Revision, limit int, withPrev bool) ([]kv.Change, kv.Head, error) {
	changes, head, err := t.table.Changes(ctx, after, upTo, limit, withPrev)
	t.note(head, err)
	return changes, head, err
}

func (t sharedTable) SetCompacted(ctx context.Context, rev kv.Revision) error {
	err := t.table.SetCompacted(ctx, rev)
	t.noteDone(err)
	return err
}

func (t sharedTable) Sweep(ctx context.Context, limit int) (bool, error) {
	more, err := t.table.Sweep(ctx, limit)
	t.noteDone(err)
	return more, err
}

func (t sharedTable) Leases(ctx context.Context) ([]kv.LeaseRecord, error) {
	records, err := t.table.Leases(ctx)
	t.noteDone(err)
	return records, err
}

func (t sharedTable) Usage(ctx context.Context) (kv.Usage, kv.Head, error) {
	used, head, err := t.table.Usage(ctx)
	t.note(head, err)
	return used, head, err
}

func (t sharedTable) LeaseKeys(ctx context.Context, id kv.LeaseID) ([][]byte, kv.Head, error) {
	keys, head, err := t.table.LeaseKeys(ctx, id)
	t.note(head, err)
	return keys, head, err
}

// History implements kv.Historian, if the table does.
func (t sharedTable) History(ctx context.Context) (kv.History, error) {
	inner, ok := t.table.(kv.HistoryReporter)
	if !ok {
		return kv.History{}, fmt.Errorf("read the size of history: %w", errors.ErrUnsupported)
	}
	h, err := inner.History(ctx)
	t.noteDone(err)
	return h, err
}

// follow receives the revisions of other servers' commits.
func (k *Keyspace) follow() {
	t := k.table.(sharedTable)
	err := t.table.Follow(k.ctx, func(rev kv.Revision) {
		k.resume()
		k.watchdog.answered() // so a table without requests is not probed, and there may be thousands of them
		k.tail.hint(rev)
	})
	if errors.Is(err, kv.ErrBehind) || errors.Is(err, kv.ErrDropped) {
		k.fail(err)
	}
}

// coalesced is a read of the table that concurrent callers share. Each caller gets the
// result of a read that began after its call, so the answer includes everything that any
// server acknowledged before.
type coalesced[T any] struct {
	k    *Keyspace
	read func(context.Context) (T, error)

	mu   sync.Mutex
	next *coalescedRead[T] // not begun; nil if no caller waits for it
	busy bool              // a goroutine is reading
}

type coalescedRead[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newCoalesced[T any](k *Keyspace, read func(context.Context) (T, error)) *coalesced[T] {
	return &coalesced[T]{k: k, read: read}
}

func (j *coalesced[T]) get(ctx context.Context) (none T, err error) {
	j.mu.Lock()
	r := j.next
	if r == nil {
		r = &coalescedRead[T]{done: make(chan struct{})}
		j.next = r
	}
	if !j.busy {
		j.busy = j.k.run(j.loop)
	}
	j.mu.Unlock()
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-j.k.ctx.Done():
		return none, j.k.ended()
	}
}

// loop reads for as long as a caller waits.
func (j *coalesced[T]) loop() {
	for {
		j.mu.Lock()
		r := j.next
		j.next = nil
		j.busy = r != nil
		j.mu.Unlock()
		if r == nil {
			return
		}
		r.value, r.err = j.read(j.k.ctx)
		close(r.done)
	}
}
