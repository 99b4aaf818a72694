package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// sharedTable is a table with other writers. Whatever it is asked, its answers
// also tell where the others have brought the keyspace, and the engine takes
// note of that here, in one place; and of the end, if the table has lost what
// it had told before.
type sharedTable struct {
	table kv.SharedTable
	k     *Keyspace
}

func (t sharedTable) note(head kv.Head, err error) {
	switch {
	case err == nil:
		t.k.contact.made()
		raise(&t.k.compacted, head.Compacted)
		t.k.tail.reached(head.Revision)
	case errors.Is(err, kv.ErrBehind):
		t.k.fail(err)
	}
}

// noteDone is for answers that tell no head.
func (t sharedTable) noteDone(err error) { t.note(kv.Head{}, err) }

func (t sharedTable) Update(ctx context.Context, ahead []kv.Lookup, fn func(kv.Tx) error) error {
	err := t.table.Update(ctx, ahead, func(tx kv.Tx) error {
		// While this commit is on its way the tailer can bring what came before it.
		t.note(tx.Head(), nil)
		return fn(tx)
	})
	t.noteDone(err)
	return err
}

// optimistic is the table's offer to commit what is worked out beforehand, nil if it
// has none.
func (t sharedTable) optimistic() optimisticTable {
	inner, ok := t.table.(kv.OptimisticTable)
	if !ok {
		return nil
	}
	return optimisticShared{t, inner}
}

// optimisticShared takes note of what TryUpdate tells.
type optimisticShared struct {
	shared sharedTable
	table  kv.OptimisticTable
}

func (t optimisticShared) TryUpdate(ctx context.Context, ahead []kv.Lookup, fn func(kv.Tx) error) (follows kv.Head, done bool, err error) {
	follows, done, err = t.table.TryUpdate(ctx, ahead, func(tx kv.Tx) error {
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

func (t sharedTable) LeaseKeys(ctx context.Context, id kv.LeaseID) ([][]byte, kv.Head, error) {
	keys, head, err := t.table.LeaseKeys(ctx, id)
	t.note(head, err)
	return keys, head, err
}

// History implements kv.Historian, if the table does.
func (t sharedTable) History(ctx context.Context) (kv.History, error) {
	inner, ok := t.table.(kv.Historian)
	if !ok {
		return kv.History{}, fmt.Errorf("read the size of history: %w", errors.ErrUnsupported)
	}
	h, err := inner.History(ctx)
	t.noteDone(err)
	return h, err
}

// follow hears of what other servers commit.
func (k *Keyspace) follow() {
	t := k.table.(sharedTable)
	if err := t.table.Follow(k.ctx, k.tail.heard); errors.Is(err, kv.ErrBehind) {
		k.fail(err)
	}
}

// joined is one way of reading the table, shared by all who ask for it at the
// same time: who asks gets what a read found that began after asking, so the
// answer holds everything that was acknowledged before, by any server.
type joined[T any] struct {
	k    *Keyspace
	read func(context.Context) (T, error)

	mu   sync.Mutex
	next *reading[T] // not begun; nil if nobody waits for it
	busy bool        // a goroutine is reading
}

type reading[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func newJoined[T any](k *Keyspace, read func(context.Context) (T, error)) *joined[T] {
	return &joined[T]{k: k, read: read}
}

func (j *joined[T]) ask(ctx context.Context) (none T, err error) {
	j.mu.Lock()
	r := j.next
	if r == nil {
		r = &reading[T]{done: make(chan struct{})}
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

// loop reads for as long as somebody waits.
func (j *joined[T]) loop() {
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
