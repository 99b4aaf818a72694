// Package mvcc is the engine of a keyspace: it gives any kv.Table the semantics
// of etcd v3's KV, Watch and Lease services.
//
// Writes go through one committer per keyspace, which carries out everything
// that arrived while the last commit was on its way in one transaction of the
// table (commit.go, batch.go). Reads go to the table's snapshots (read.go).
// What was committed goes to watchers from memory, and from the log to those
// that lag behind (hub.go, watcher.go). Any number of engines, in one process or
// many, may share a table (shared.go): what the others commit a tailer brings
// from the log (tail.go). DESIGN.md tells why, and how it fails.
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

// Options of a keyspace. The zero value is what etcd does by default.
type Options struct {
	// Clock that leases and progress notifications go by; the real one if nil.
	Clock clock.WithTicker
	// Observer hears of what happens, for metrics. It must be quick.
	Observer Observer
	// TracerProvider of the spans of what the engine does by itself, such as giving space
	// back; none if nil. Calls leave spans in the trace that their context
	// brings along.
	TracerProvider trace.TracerProvider
	// ProgressInterval between notifications to watches that asked for them
	// and had nothing else to deliver; 10 minutes if 0.
	ProgressInterval time.Duration
	// Retention bounds history; the zero value leaves that to clients.
	Retention Retention
	// WatchSilence is how long a table that is shared may leave watches without an
	// answer before they end as unavailable; 10 s if 0. The longer it is, the more
	// outages watches get over without a gap, and the longer the watches of a server
	// that alone is cut off hear nothing.
	WatchSilence time.Duration
	// MaxPending bounds the writes that wait; more fail with
	// kv.ErrOverloaded. 10,000 if 0.
	MaxPending int
	// MaxPendingBytes bounds their keys and values in the same way; 128 MiB if 0.
	MaxPendingBytes int64

	maxKeyBytes int // that the table can hold; 0 means any
	// MaxTxnOps bounds the operations of a transaction; 128 if 0.
	MaxTxnOps int
	// MaxRequestBytes bounds the keys and values of a write; 1.5 MiB if 0.
	MaxRequestBytes int
	// CacheBytes bounds what is kept in memory of keys recently read and
	// written, for tables that only this process writes to; 32 MiB if 0, none
	// if negative.
	CacheBytes int64
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
		o.WatchSilence = contactLost
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

// Observer hears of a keyspace's work. Nil functions are not called.
type Observer struct {
	// Commit: one transaction of the table, carrying this many client writes
	// and changes of keys, took this long. Err is nil if it was made durable.
	Commit func(writes, changes int, took time.Duration, err error)
	// Optimistic: a commit was worked out without holding the keyspace, and done; or
	// not, because of what others have changed meanwhile, and begun again.
	Optimistic func(done bool)
	// WatchLag: a watch fell behind and reads history from now on; behind is
	// the number of revisions it lacks.
	WatchLag func(behind int64)
	// Sweep: one step of giving back the space of forgotten history.
	Sweep func(took time.Duration, more bool, err error)
	// Cut: history was compacted early because of Retention.MaxChanges.
	Cut func()
}

// Keyspace implements kv.Keyspace on a kv.Table.
type Keyspace struct {
	table  kv.Table
	shared bool // others may write to the table
	size   func(context.Context) (total, inUse int64, err error)
	opts   Options

	commits  *committer
	hub      *hub
	tail     *tailer
	leases   *lessor
	sweeps   *sweeper
	pages    *pageMemo
	ahead    *readAhead
	cache    *cache // nil if the table has other writers
	heads    *joined[kv.Head]
	progress *progressAsker // of a shared table
	contact  *contact       // with a shared table

	// seen is the highest revision that any answer told: a commit is visible
	// to readers a moment before its watchers hear of it, and progress must not
	// be behind what a reader knows.
	seen atomic.Int64
	// compacted is the compaction revision as far as this process knows.
	compacted atomic.Int64

	stop context.CancelCauseFunc
	ctx  context.Context // ends with Close, or with the reason not to go on
	// writing outlives ctx until the commit under way has had time to end.
	writing     context.Context
	stopWriting context.CancelFunc
	mu          sync.Mutex // makes starting a goroutine exclude Close
	wg          sync.WaitGroup
}

var _ kv.Keyspace = (*Keyspace)(nil)

// Open starts the engine of a keyspace. backend may be nil; it is asked for
// the size only. The table stays the caller's to close, after the Keyspace.
func Open(ctx context.Context, table kv.Table, backend kv.Backend, opts Options) (*Keyspace, error) {
	opts.fill()
	if l, ok := table.(kv.KeyLimiter); ok {
		opts.maxKeyBytes = l.MaxKeyBytes()
	}
	k := &Keyspace{table: table, opts: opts, pages: newPageMemo()}
	if backend != nil {
		k.size = backend.Size
	}
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
	k.heads = newJoined(k, k.table.Head)
	k.ahead = newReadAhead(k)
	k.progress = newProgressAsker(k)
	k.contact = newContact(k)
	k.leases = newLessor(k, records)
	k.sweeps = newSweeper(k)
	k.commits = newCommitter(k)

	k.run(k.commits.loop)
	k.run(k.tail.loop)
	k.run(k.leases.loop)
	k.run(k.sweeps.loop)
	if k.shared {
		k.run(k.progress.loop)
		k.run(k.contact.loop)
		k.run(k.leases.follow)
		k.run(k.follow)
	}
	if opts.Retention.every() > 0 {
		k.run(k.retain)
	}
	// A sweep may have been cut short.
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

// closePatience is how long Close lets the commit under way go on.
const closePatience = 10 * time.Second

// Close ends watches and waits for the commit under way; writes that still
// wait fail with kv.ErrClosed.
func (k *Keyspace) Close() error {
	k.mu.Lock()
	k.stop(kv.ErrClosed)
	k.mu.Unlock()
	late := time.AfterFunc(closePatience, k.stopWriting)
	k.wg.Wait()
	late.Stop()
	k.stopWriting()
	return nil
}

// fail ends everything for good with an error that trying again cannot mend.
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
	k.saw(head.Revision)
	st := &kv.Status{Revision: head.Revision, Compacted: head.Compacted}
	if k.size != nil {
		st.Size, st.SizeInUse, err = k.size(ctx)
	}
	return st, err
}

var errClosed = fmt.Errorf("keyspace: %w", kv.ErrClosed)

// open returns an error if the keyspace is not open any more.
func (k *Keyspace) open() error {
	if k.ctx.Err() != nil {
		return k.ended()
	}
	return nil
}

// ended is why the keyspace is not open any more.
func (k *Keyspace) ended() error {
	if cause := context.Cause(k.ctx); !errors.Is(cause, kv.ErrClosed) {
		return cause
	}
	return errClosed
}

// saw notes that an answer tells revision rev.
func (k *Keyspace) saw(rev kv.Revision) { raise(&k.seen, rev) }

// raise sets a to v unless it is as high already, and reports whether it did.
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
