package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

const (
	// Maximum size of one transaction: below etcd's limits of 128 operations and 1.5 MiB.
	batchOps   = 100
	batchBytes = 1 << 20
	// writers is the number of concurrent transactions, which share commits.
	writers = 8
	// A write that fails is retried this often, with growing pauses.
	attempts             = 12
	firstPause, maxPause = 50 * time.Millisecond, 10 * time.Second
)

// writer puts and deletes keys in a target, in transactions of many keys. Several
// transactions run concurrently, so each key may occur only once before a flush.
type writer struct {
	ctx    context.Context
	dst    kv.Keyspace
	clock  clock.Clock
	leases *leases

	batch []kv.Op
	bytes int
	group *errgroup.Group

	mu  sync.Mutex
	rev kv.Revision // highest revision in the target's answers
}

func newWriter(ctx context.Context, dst kv.Keyspace, l *leases, clock clock.Clock) *writer {
	w := &writer{dst: dst, clock: clock, leases: l}
	w.group, w.ctx = errgroup.WithContext(ctx)
	w.group.SetLimit(writers)
	return w
}

func (w *writer) put(e *kv.KeyValue) error {
	if e.Lease != 0 {
		if err := w.leases.ensure(w.ctx, e.Lease); err != nil {
			return err
		}
	}
	return w.add(kv.Op{Put: &kv.PutOp{Key: e.Key, Value: e.Value, Lease: e.Lease}}, int(size(e)))
}

func (w *writer) delete(key []byte) error {
	return w.add(kv.Op{Delete: &kv.DeleteOp{Span: kv.Span{Start: key}}}, len(key))
}

func (w *writer) add(op kv.Op, size int) error {
	if len(w.batch) == batchOps || len(w.batch) > 0 && w.bytes+size > batchBytes {
		w.send()
	}
	w.batch = append(w.batch, op)
	w.bytes += size
	return context.Cause(w.ctx)
}

// send starts the accumulated transaction, as soon as one of the writers is free.
func (w *writer) send() {
	if len(w.batch) == 0 {
		return
	}
	ops := w.batch
	w.batch, w.bytes = nil, 0
	w.group.Go(func() error {
		rev, err := w.commit(w.ctx, ops)
		w.mu.Lock()
		w.rev = max(w.rev, rev)
		w.mu.Unlock()
		return err
	})
}

// flush returns when everything is written, with the target's revision.
func (w *writer) flush() (kv.Revision, error) {
	w.send()
	err := w.group.Wait()
	return w.rev, err
}

// commit runs a transaction, and retries it after transient errors.
func (w *writer) commit(ctx context.Context, ops []kv.Op) (kv.Revision, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		res, err := w.dst.Txn(ctx, kv.TxnRequest{Then: ops})
		switch {
		case err == nil:
			return res.Revision, nil
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case attempt == attempts:
			return 0, fmt.Errorf("write to the target: %w (tried %d times)", err, attempt)
		case errors.Is(err, kv.ErrLeaseNotFound):
			// The lease expired in the target before its keys were written.
			for _, op := range ops {
				if op.Put != nil && op.Put.Lease != 0 {
					if err := w.leases.renew(ctx, op.Put.Lease); err != nil {
						return 0, err
					}
				}
			}
		case errors.Is(err, kv.ErrRequestTooLarge):
			return 0, fmt.Errorf("write key %q to the target: %w: increase the target's request limit (etcd: --max-request-bytes)", keyOf(ops[0]), err)
		case !isTransient(err):
			return 0, fmt.Errorf("write to the target: %w", err)
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-w.clock.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

func keyOf(op kv.Op) []byte {
	if op.Put != nil {
		return op.Put.Key
	}
	return op.Delete.Start
}
