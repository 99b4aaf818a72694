package mvcc

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// tailer reads the log, once for all watches, wherever the hub lacks revisions
// that the keyspace has reached: those that other servers made, and those of
// a commit whose outcome was unknown. It learns that they are there from
// Table.Follow, and from every head that any answer of the table tells, so it
// does not depend on hints alone.
type tailer struct {
	k     *Keyspace
	wakec chan struct{}
	// known is the highest revision that the keyspace is said to have reached.
	known atomic.Int64
	// sure is the highest that the table itself has told, or a commit of ours
	// has made. A hint may be of a commit that a failover has undone since.
	sure atomic.Int64

	mu sync.Mutex
	// own are the revisions that the commit under way is making, if it is.
	own ownCommit
}

// ownCommit is a commit of this engine after its changes were written and
// before its outcome is known. Nobody else can make its revisions, so whoever has
// heard of one of them need not read it from the log: it will be
// published in a moment.
type ownCommit struct {
	after, upTo kv.Revision
	begun       time.Time
}

// ownPatience is how long the tailer counts on a commit under way. Beyond that
// something is wrong with it, and watches must not wait for it.
const ownPatience = 250 * time.Millisecond

func newTailer(k *Keyspace) *tailer {
	return &tailer{k: k, wakec: make(chan struct{}, 1)}
}

// heard takes note of a revision that the keyspace has reached. It does not
// block.
func (t *tailer) heard(rev kv.Revision) {
	raise(&t.known, rev)
	if rev > t.k.hub.rev.Load() {
		wake(t.wakec)
	}
}

// reached takes note of a revision that is certain.
func (t *tailer) reached(rev kv.Revision) {
	raise(&t.sure, rev)
	t.heard(rev)
}

// committing tells of the revisions of a commit that is about to be tried.
func (t *tailer) committing(after, upTo kv.Revision) {
	t.mu.Lock()
	t.own = ownCommit{after, upTo, time.Now()}
	t.mu.Unlock()
}

// committed follows every commit, whatever became of it. What it made is with
// the hub by then.
func (t *tailer) committed() {
	t.mu.Lock()
	t.own = ownCommit{}
	t.mu.Unlock()
	if t.known.Load() > t.k.hub.rev.Load() {
		wake(t.wakec)
	}
}

func (t *tailer) loop() {
	var retry backoff
	limit := logLimit(changesPerRead)
	for {
		after, upTo, wait := t.next()
		if upTo > after {
			if t.read(after, upTo, &limit) {
				retry.reset()
			} else if !retry.wait(t.k.ctx) {
				return
			}
			continue
		}
		var late <-chan time.Time
		if wait > 0 {
			late = time.After(wait)
		}
		select {
		case <-t.wakec:
		case <-late:
		case <-t.k.ctx.Done():
			return
		}
	}
}

// next tells what to read from the log: after < revision <= upTo. If that is
// nothing, wait tells when to look again without being woken; 0 for never.
func (t *tailer) next() (after, upTo kv.Revision, wait time.Duration) {
	known := t.known.Load()
	after, upTo = t.k.hub.gap(known, t.sure.Load())
	if upTo <= after {
		return after, upTo, 0
	}
	t.mu.Lock()
	own := t.own
	t.mu.Unlock()
	if own.upTo <= after || known <= own.after {
		return after, upTo, 0
	}
	wait = ownPatience - time.Since(own.begun)
	if wait > 0 && (own.after > after || known <= own.upTo) {
		return after, min(upTo, own.after), wait
	}
	return after, upTo, 0
}

// read brings a part of the log to the hub. It reports false if that should be
// tried again after a while.
func (t *tailer) read(after, upTo kv.Revision, limit *logLimit) bool {
	h := t.k.hub
	withPrev := h.wantsPrev()
	rows := int(*limit)
	changes, head, err := t.k.table.Changes(t.k.ctx, after, upTo, rows, withPrev)
	if err != nil {
		return false
	}
	if after+1 < head.Compacted {
		h.skip(head.Revision)
		return true
	}
	upTo = min(upTo, head.Revision)
	if len(changes) >= rows {
		upTo = changes[len(changes)-1].KV.ModRevision
	}
	if upTo <= after {
		return false // the log has not got yet what was heard of
	}
	limit.adjust(changes)
	if t.k.shared {
		t.k.leases.named(changes)
	}
	h.publish(publication{first: after + 1, last: upTo, changes: changes, hasPrev: withPrev})
	return true
}

// allThereIs is a revision beyond all others.
const allThereIs = kv.Revision(math.MaxInt64)

// logLimit is how many changes to read from the log at a time. It goes down
// where values are large, so that memory has a bound, and up again afterwards.
type logLimit int

// maxReadBytes is about what one read of the log may bring, unless a single
// revision is larger.
const maxReadBytes = 8 << 20

func (l *logLimit) adjust(changes []kv.Change) {
	bytes := sizeOf(changes)
	switch {
	case bytes > maxReadBytes:
		*l = max(1, logLimit(len(changes)*maxReadBytes/bytes))
	case bytes < maxReadBytes/2:
		*l = min(*l*2, changesPerRead)
	}
}

// backoff waits between tries, longer each time.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait reports false if ctx has ended.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(b.next*2, firstRetry), lastRetry)
	timer := time.NewTimer(b.next)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
