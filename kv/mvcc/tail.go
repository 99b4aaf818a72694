package mvcc

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// tailer reads the log, once for all watches, wherever the hub lacks revisions that the
// keyspace has reached. These are the commits of other servers, and own commits whose
// outcome was unknown. It learns of them from Table.Follow and from the head in every
// answer of the table, so it does not depend on hints alone.
type tailer struct {
	k     *Keyspace
	wakec chan struct{}
	// hinted is the highest revision that the keyspace may have reached, according to a
	// hint.
	hinted atomic.Int64
	// confirmed is the highest revision that the table itself has returned, or that an own
	// commit has made. A hint may be of a commit that a failover has since undone.
	confirmed atomic.Int64

	mu sync.Mutex
	// own are the revisions of the current commit, if any.
	own ownCommit
}

// ownCommit is a commit of this engine after its changes were written and before its
// outcome is known. No other engine can make its revisions. So they need not be read from
// the log when a hint mentions them: they will be published in a moment.
type ownCommit struct {
	after, upTo kv.Revision
	begun       time.Time
}

// ownCommitTimeout is how long the tailer waits for the current commit. After that the
// commit is assumed to hang, and watches must not wait for it.
const ownCommitTimeout = 250 * time.Millisecond

func newTailer(k *Keyspace) *tailer {
	return &tailer{k: k, wakec: make(chan struct{}, 1)}
}

// hint records a revision that the keyspace may have reached. It does not block.
func (t *tailer) hint(rev kv.Revision) {
	raise(&t.hinted, rev)
	if rev > t.k.hub.rev.Load() {
		wake(t.wakec)
	}
}

// confirm records a revision that the keyspace has certainly reached.
func (t *tailer) confirm(rev kv.Revision) {
	raise(&t.confirmed, rev)
	t.hint(rev)
}

// committing announces the revisions of a commit that is about to be tried.
func (t *tailer) committing(after, upTo kv.Revision) {
	t.mu.Lock()
	t.own = ownCommit{after, upTo, time.Now()}
	t.mu.Unlock()
}

// commitDone is called after every commit, whatever its outcome. Its changes have been
// published to the hub by then.
func (t *tailer) commitDone() {
	t.mu.Lock()
	t.own = ownCommit{}
	t.mu.Unlock()
	if t.hinted.Load() > t.k.hub.rev.Load() {
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

// next returns the range of the log to read: after < revision <= upTo. If it is empty, wait
// is the time after which to check again; 0 for never.
func (t *tailer) next() (after, upTo kv.Revision, wait time.Duration) {
	known := t.hinted.Load()
	after, upTo = t.k.hub.missing(known, t.confirmed.Load())
	if upTo <= after {
		return after, upTo, 0
	}
	t.mu.Lock()
	own := t.own
	t.mu.Unlock()
	if own.upTo <= after || known <= own.after {
		return after, upTo, 0
	}
	wait = ownCommitTimeout - time.Since(own.begun)
	if wait > 0 && (own.after > after || known <= own.upTo) {
		return after, min(upTo, own.after), wait
	}
	return after, upTo, 0
}

// read publishes a part of the log to the hub. It returns false if the read should be
// retried after a while.
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
		return false // the hinted commit is not in the log yet
	}
	limit.adjust(changes)
	if t.k.shared {
		t.k.leases.pollUnknown(changes)
	}
	h.publish(publication{first: after + 1, last: upTo, changes: changes, hasPrev: withPrev})
	return true
}

// maxRevision is above all revisions.
const maxRevision = kv.Revision(math.MaxInt64)

// logLimit is the number of changes to read from the log at a time. It shrinks if values
// are large, to bound memory, and grows again afterwards.
type logLimit int

// maxReadBytes is the approximate maximum size of one read of the log, unless a single
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

// backoff waits between attempts, longer each time.
type backoff struct{ next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// wait returns false if ctx has ended.
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
