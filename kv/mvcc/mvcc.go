// Package mvcc is the engine of a keyspace: it gives any kv.Table the semantics of etcd
// v3's KV, Watch and Lease services.
//
// Writes go through one committer per keyspace. It runs everything that arrived during the
// last commit in one transaction of the table (commit.go, batch.go). Reads go to the
// table's snapshots (read.go). Watches get committed changes from memory, or from the log
// if they lag behind (hub.go, watcher.go). Any number of engines, in one process or many,
// may share a table (shared.go): a tailer reads the commits of the other engines from the
// log (tail.go). DESIGN.md explains why, and how it fails.
package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
)

// Options of a keyspace. The zero value has etcd's defaults.
type Options struct {
	// Clock for leases and progress notifications; the real one if nil.
	Clock clock.WithTicker
	// Observer is notified of events, for metrics. It must be quick.
	Observer Observer
	// TracerProvider for spans of the engine's background work, such as sweeping; none if
	// nil. Calls leave spans in the trace of their context.
	TracerProvider trace.TracerProvider
	// ProgressInterval is the time between notifications to watches that requested them and
	// had nothing else to deliver; 10 minutes if 0.
	ProgressInterval time.Duration
	// Retention bounds history; with the zero value only clients compact.
	Retention Retention
	// WatchSilence is how long a shared table may give no answer before watches end as
	// unavailable; 10 s if 0. With a longer time, watches survive longer outages without a
	// gap. But on a server that alone is cut off, they receive nothing for that time.
	WatchSilence time.Duration
	// MaxPending bounds the number of pending writes; more fail with kv.ErrOverloaded.
	// 10,000 if 0.
	MaxPending int
	// MaxPendingBytes bounds the size of their keys and values likewise; 128 MiB if 0.
	MaxPendingBytes int64

	maxKeyBytes int // longest key that the table can hold; 0 means no limit
	// MaxTxnOps bounds the operations of a transaction; 128 if 0.
	MaxTxnOps int
	// MaxRequestBytes bounds the keys and values of a write; 1.5 MiB if 0.
	MaxRequestBytes int
	// MaxLeases bounds the number of leases that this engine knows; more fail with
	// kv.ErrTooManyLeases. No bound if 0.
	MaxLeases int
	// CacheBytes bounds the memory for keys recently read and written, for tables that only
	// this process writes to; 32 MiB if 0, no cache if negative.
	CacheBytes int64
	// Limits bound what the keyspace has stored; SetLimits changes them.
	Limits kv.Limits
}

func (o *Options) fill() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.ProgressInterval == 0 {
		o.ProgressInterval = 10 * time.Minute
	}
	o.Retention.fill()
	if o.WatchSilence == 0 {
		o.WatchSilence = defaultWatchSilence
	}
	if o.MaxPending == 0 {
		o.MaxPending = 10_000
	}
	if o.MaxPendingBytes == 0 {
		o.MaxPendingBytes = 128 << 20
	}
	if o.MaxTxnOps == 0 {
		o.MaxTxnOps = 128
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = 3 << 19
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = 32 << 20
	}
}

// Observer is notified of a keyspace's work. Nil functions are not called.
type Observer struct {
	// Commit reports one transaction of the table: the number of client writes and of
	// changed keys, and its duration. Err is nil if it is durable.
	Commit func(writes, changes int, took time.Duration, err error)
	// Optimistic reports an optimistic commit. done is false if another server changed its
	// inputs meanwhile, so that it is repeated with the head locked.
	Optimistic func(done bool)
	// WatchLag reports that a watch fell behind and reads history from now on; behind is
	// the number of revisions it lacks.
	WatchLag func(behind int64)
	// Sweep reports one step of freeing the space of compacted history.
	Sweep func(took time.Duration, more bool, err error)
	// Behind reports that the table lacks state that it had returned before, so that nothing
	// is served; and with nil, that it is served again.
	Behind func(err error)
	// EarlyCompaction reports a compaction before its time because of Retention.MaxChanges.
	EarlyCompaction func()
}

// Keyspace implements kv.Keyspace on a kv.Table.
type Keyspace struct {
	table  kv.Table
	shared bool // other processes may write to the table
	size   func(context.Context) (total, inUse int64, err error)
	space  kv.Defragmenter // nil if the backend frees space by itself
	opts   Options

	commits  *committer
	hub      *hub
	tail     *tailer
	leases   *lessor
	sweeps   *sweeper
	pages    *pageCounts
	ahead    *readAhead
	cache    *cache // nil if the table has other writers
	heads    *coalesced[kv.Head]
	progress *progressResolver // only for a shared table
	watchdog *watchdog         // only for a shared table

	// seen is the highest revision in any answer. Readers see a commit a moment before its
	// watches receive it, and progress must not be behind a revision that a reader has
	// seen.
	seen atomic.Int64
	// compacted is the compaction revision known to this process.
	compacted atomic.Int64

	limits atomic.Pointer[kv.Limits]
	// reservations are those that the last batch with limits has read.
	reservations atomic.Pointer[reservations]

	// suspended is the reason why calls are refused at present, nil if they are not.
	suspended atomic.Pointer[error]

	stop context.CancelCauseFunc
	// stopOnDrop ends the calls of a table that notifies of a drop; nil without them.
	stopOnDrop func()
	ctx        context.Context // ends with Close, or with a permanent error
	// writing outlives ctx until the current commit has had time to end.
	writing     context.Context
	stopWriting context.CancelFunc
	mu          sync.Mutex // excludes Close while a goroutine is started
	wg          sync.WaitGroup
}

var _ kv.Keyspace = (*Keyspace)(nil)

// Open starts the engine of a keyspace. backend may be nil; it is used only for the size.
// The caller closes the table, after the Keyspace.
func Open(ctx context.Context, table kv.Table, backend kv.Backend, opts Options) (*Keyspace, error) {
	opts.fill()
	if l, ok := table.(kv.KeyLimiter); ok {
		opts.maxKeyBytes = l.MaxKeyBytes()
	}
	k := &Keyspace{table: table, opts: opts, pages: newPageCounts()}
	if backend != nil {
		k.size = backend.Size
		k.space, _ = backend.(kv.Defragmenter)
	}
	k.SetLimits(opts.Limits)
	head, err := table.Head(ctx)
	if err != nil {
		return nil, fmt.Errorf("open keyspace: %w", err)
	}
	records, err := table.Leases(ctx)
	if err != nil {
		return nil, fmt.Errorf("open keyspace: %w", err)
	}
	k.ctx, k.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	k.writing, k.stopWriting = context.WithCancel(context.WithoutCancel(ctx))
	k.seen.Store(head.Revision)
	k.compacted.Store(head.Compacted)
	k.hub = newHub(k, head.Revision)
	k.tail = newTailer(k)
	if t, ok := table.(kv.SharedTable); ok {
		k.shared = true
		k.table = sharedTable{t, k}
	} else if t, ok := table.(kv.ExclusiveTable); ok && t.Exclusive() && opts.CacheBytes > 0 {
		k.cache = newCache(head.Revision, opts.CacheBytes)
	}
	k.heads = newCoalesced(k, k.table.Head)
	k.ahead = newReadAhead(k)
	k.progress = newProgressResolver(k)
	k.watchdog = newWatchdog(k)
	k.leases = newLessor(k, records)
	k.sweeps = newSweeper(k)
	k.commits = newCommitter(k)

	k.run(k.commits.loop)
	k.run(k.tail.loop)
	k.run(k.leases.loop)
	k.run(k.sweeps.loop)
	if k.shared {
		k.run(k.progress.loop)
		k.run(k.watchdog.loop)
		k.run(k.leases.follow)
		k.run(k.follow)
	}
	if opts.Retention.interval() > 0 {
		k.run(k.retain)
	}
	if t, ok := table.(kv.DropNotifier); ok {
		k.stopOnDrop = t.OnDrop(k.fail)
	}
	// An earlier sweep may have been interrupted.
	k.sweeps.wake()
	return k, nil
}

// run starts a goroutine that Close waits for, unless closing has begun.
func (k *Keyspace) run(f func()) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return false
	}
	k.wg.Go(f)
	return true
}

// closeTimeout is how long Close waits for the current commit.
const closeTimeout = 10 * time.Second

// Close ends watches and waits for the current commit. Writes that are still pending fail
// with kv.ErrClosed.
func (k *Keyspace) Close() error {
	k.mu.Lock()
	k.stop(kv.ErrClosed)
	k.mu.Unlock()
	if k.stopOnDrop != nil {
		k.stopOnDrop()
	}
	late := time.AfterFunc(closeTimeout, k.stopWriting)
	k.wg.Wait()
	late.Stop()
	k.stopWriting()
	return nil
}

// fail stops the keyspace with a permanent error.
func (k *Keyspace) fail(err error) { k.stop(err) }

// Status implements kv.Keyspace.
func (k *Keyspace) Status(ctx context.Context) (*kv.Status, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	head, err := k.table.Head(ctx)
	if err != nil {
		return nil, err
	}
	k.observed(head.Revision)
	st := &kv.Status{Revision: head.Revision, Compacted: head.Compacted}
	if k.size != nil {
		st.Size, st.SizeInUse, err = k.size(ctx)
	}
	return st, err
}

// Defragment implements kv.Defragmenter.
func (k *Keyspace) Defragment(ctx context.Context) error {
	if err := k.open(); err != nil || k.space == nil {
		return err
	}
	return k.space.Defragment(ctx)
}

var errClosed = fmt.Errorf("keyspace: %w", kv.ErrClosed)

// open returns an error if the keyspace is no longer open, or not served at present.
func (k *Keyspace) open() error {
	if k.ctx.Err() != nil {
		return k.ended()
	}
	if reason := k.suspended.Load(); reason != nil {
		return *reason
	}
	return nil
}

// ended returns the reason why the keyspace is no longer open.
func (k *Keyspace) ended() error {
	if cause := context.Cause(k.ctx); !errors.Is(cause, kv.ErrClosed) {
		return cause
	}
	return errClosed
}

// observed records that an answer contains revision rev.
func (k *Keyspace) observed(rev kv.Revision) { raise(&k.seen, rev) }

// raise sets a to v unless it is already as high, and reports whether it did.
func raise(a *atomic.Int64, v int64) bool {
	for {
		old := a.Load()
		if v <= old {
			return false
		}
		if a.CompareAndSwap(old, v) {
			return true
		}
	}
}

func isCompacted(err error) bool { return errors.Is(err, kv.ErrCompacted) }
