package mvcc

import (
	"sync"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// hub delivers committed changes to watches. It advances strictly in the order of
// revisions. A watch is either live (every change of its span is queued when it is
// published) or catching up (its own goroutine reads the log). It changes between the two
// states under hub.mu, so that no event is lost or repeated.
type hub struct {
	k *Keyspace

	mu    sync.Mutex
	index spanIndex // live watches
	// recent holds the latest changes, so that a watch that starts slightly in the past, or
	// was slow for a moment, need not read the log.
	recent ring
	// waiting are watches that wait for the hub to reach a revision, to answer a progress
	// request.
	waiting map[*watcher]struct{}
	touched []*watcher            // scratch space of publish
	watches map[*watcher]struct{} // all watches, live or not
	// pending are publications beyond a gap, which the tailer is to fill.
	pending      []publication
	pendingBytes int

	// rev is the last revision whose changes are in the queues of all live
	// watches. Written under mu.
	rev atomic.Int64
	// prevWatches counts the watches that want previous values.
	prevWatches atomic.Int64
}

func newHub(k *Keyspace, rev kv.Revision) *hub {
	h := &hub{k: k, index: newSpanIndex(), waiting: map[*watcher]struct{}{}, watches: map[*watcher]struct{}{}}
	h.rev.Store(rev)
	h.recent.reset(rev)
	return h
}

func (h *hub) wantsPrev() bool { return h.prevWatches.Load() > 0 }

// publication contains all changes of the revisions first to last. hasPrev reports whether
// their previous values are set.
type publication struct {
	first, last kv.Revision
	changes     []kv.Change
	hasPrev     bool
}

// publish delivers a publication to watches. One that does not directly follow the hub's
// last revision is held until the tailer has delivered the revisions between.
func (h *hub) publish(p publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.first > h.rev.Load()+1 {
		h.keep(p)
		return
	}
	h.deliver(p)
	h.deliverPending()
}

func (h *hub) keep(p publication) {
	bytes := sizeOf(p.changes)
	if len(h.watches) == 0 || h.pendingBytes+bytes > maxRecentBytes {
		return // the tailer reads it from the log
	}
	h.pending = append(h.pending, p)
	h.pendingBytes += bytes
}

// deliverPending delivers the pending publications that now follow the hub's last revision,
// and drops those that it has passed.
func (h *hub) deliverPending() {
	for len(h.pending) > 0 && h.pending[0].first <= h.rev.Load()+1 {
		p := h.pending[0]
		h.pending[0] = publication{}
		h.pending = h.pending[1:]
		h.pendingBytes -= sizeOf(p.changes)
		h.deliver(p)
	}
}

// deliver queues changes for live watches. Their revisions directly follow the hub's last
// one, or begin before it.
func (h *hub) deliver(p publication) {
	rev := h.rev.Load()
	if p.last <= rev {
		return
	}
	changes := p.changes
	for len(changes) > 0 && changes[0].KV.ModRevision <= rev {
		changes = changes[1:] // delivered by both tailer and committer
	}
	h.recent.add(changes, p.hasPrev)
	for i := range changes {
		h.index.visit(changes[i].KV.Key, func(w *watcher) {
			if w.stage(&changes[i], p.hasPrev) {
				h.touched = append(h.touched, w)
			}
		})
	}
	for _, w := range h.touched {
		if !w.flush() {
			h.index.remove(w)
		}
	}
	clear(h.touched)
	h.touched = h.touched[:0]
	h.setRevision(p.last)
}

// missing returns the range of revisions that the hub lacks: after < revision <= upTo,
// where upTo may be beyond hinted. Without watches it lacks nothing, and advances up to
// confirmed: a watch that starts later does not receive revisions that the hub has passed.
func (h *hub) missing(hinted, confirmed kv.Revision) (after, upTo kv.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	switch {
	case hinted <= rev:
		return rev, rev
	case len(h.watches) == 0:
		rev = h.advance(min(hinted, confirmed))
		return rev, rev
	case len(h.pending) > 0:
		return rev, h.pending[0].first - 1
	default:
		return rev, maxRevision
	}
}

// advance moves the hub to a revision without delivering, because no watch waits for it,
// and returns its position. The caller holds mu.
func (h *hub) advance(to kv.Revision) kv.Revision {
	if to > h.rev.Load() {
		h.recent.reset(to)
		h.setRevision(to)
		h.deliverPending()
	}
	return h.rev.Load()
}

// idle reports whether there are no watches.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) == 0
}

// skip moves the hub past revisions that the log may no longer have. Each watch then
// detects the compaction when it reads the log.
func (h *hub) skip(to kv.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from := h.rev.Load() + 1
	if to < from {
		return
	}
	for _, w := range h.index.all() {
		h.index.remove(w)
		w.fallBehind(from)
	}
	h.recent.reset(to)
	h.setRevision(to)
	h.deliverPending()
}

func (h *hub) setRevision(rev kv.Revision) {
	h.rev.Store(rev)
	for w := range h.waiting {
		delete(h.waiting, w)
		w.wake()
	}
}

// register counts a watch, before anything else is done with it.
func (h *hub) register(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watches) == 0 {
		// The first watch need not wait for earlier changes.
		h.advance(h.k.tail.confirmed.Load())
	}
	h.watches[w] = struct{}{}
	if w.req.PrevKV {
		h.prevWatches.Add(1)
	}
}

// endAll ends all watches, after their queued events.
func (h *hub) endAll(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		h.index.remove(w)
		w.end(err)
	}
}

// goLive makes a watch live if all changes from its position on are in memory.
func (h *hub) goLive(w *watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	if w.next <= rev {
		// Reading the log will return the compaction error. At the compaction revision
		// itself, only the previous value is gone, though it may still be in memory here.
		if compacted := h.k.compacted.Load(); w.next < compacted || w.req.PrevKV && w.next == compacted {
			return false
		}
		changes, ok := h.recent.since(w.next, w.req.PrevKV)
		if !ok {
			return false
		}
		for i := range changes {
			if w.req.Span.Contains(changes[i].KV.Key) {
				w.stage(&changes[i], true)
			}
		}
		if !w.flush() {
			return false // too many events for the queue: read the log in pieces
		}
	}
	w.setLive()
	h.index.add(w)
	return true
}

// wakeAt has a watch woken when the hub next advances. It returns false if the hub is
// already at or past rev.
func (h *hub) wakeAt(w *watcher, rev kv.Revision) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rev.Load() >= rev {
		return false
	}
	h.waiting[w] = struct{}{}
	return true
}

func (h *hub) unregister(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.index.remove(w)
	delete(h.waiting, w)
	delete(h.watches, w)
	if w.req.PrevKV {
		h.prevWatches.Add(-1)
	}
}

// ring holds the latest published changes, oldest first, without gaps.
type ring struct {
	batches []ringBatch
	after   kv.Revision // all changes above this revision are here
	bytes   int
}

type ringBatch struct {
	changes []kv.Change
	hasPrev bool
	bytes   int
}

// maxRecentBytes bounds the memory of the ring. Values are shared with watches and the
// cache, so usually it takes no extra memory.
const maxRecentBytes = 4 << 20

func (r *ring) reset(after kv.Revision) {
	*r = ring{after: after}
}

func (r *ring) add(changes []kv.Change, hasPrev bool) {
	if len(changes) == 0 {
		return
	}
	b := ringBatch{changes: changes, hasPrev: hasPrev, bytes: sizeOf(changes)}
	r.batches = append(r.batches, b)
	r.bytes += b.bytes
	drop := 0
	for r.bytes > maxRecentBytes && drop < len(r.batches) {
		old := r.batches[drop]
		r.after = old.changes[len(old.changes)-1].KV.ModRevision
		r.bytes -= old.bytes
		r.batches[drop] = ringBatch{}
		drop++
	}
	r.batches = r.batches[drop:]
}

// sizeOf returns the approximate memory of changes.
func sizeOf(changes []kv.Change) (bytes int) {
	for i := range changes {
		c := &changes[i]
		bytes += 200 + len(c.KV.Key) + len(c.KV.Value)
		if c.Prev != nil {
			bytes += len(c.Prev.Value)
		}
	}
	return bytes
}

// since returns all changes from a revision on, if the ring has them.
func (r *ring) since(from kv.Revision, needPrev bool) ([]kv.Change, bool) {
	if from <= r.after {
		return nil, false
	}
	var all []kv.Change
	for i := range r.batches {
		b := &r.batches[i]
		if b.changes[len(b.changes)-1].KV.ModRevision < from {
			continue
		}
		if needPrev && !b.hasPrev {
			return nil, false
		}
		for j := range b.changes {
			if b.changes[j].KV.ModRevision >= from {
				all = append(all, b.changes[j:]...)
				break
			}
		}
	}
	return all, true
}
