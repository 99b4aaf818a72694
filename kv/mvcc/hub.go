package mvcc

import (
	"sync"
	"sync/atomic"

	"github.com/atoll-dev/atoll/kv"
)

// hub brings what was committed to the watches. It advances strictly in the
// order of revisions. A watch is either live (every change of its span is put
// into its queue as it is published) or catching up (its own goroutine reads
// the log); under hub.mu it moves from one state to the other, so that nothing
// is lost or repeated in between.
type hub struct {
	k *Keyspace

	mu    sync.Mutex
	index spanIndex // of live watches
	// recent changes, so that a watch that starts a little in the past, or was
	// slow for a moment, need not read the log.
	recent ring
	// waiting for the hub to reach a revision, to answer a progress request.
	waiting map[*watcher]struct{}
	touched []*watcher // scratch of publish

	// rev is the last revision whose changes are in the queues of all live
	// watches. Written under mu.
	rev atomic.Int64
	// prevs counts the watches that want what changes replaced.
	prevs atomic.Int64
}

func newHub(k *Keyspace, rev kv.Revision) *hub {
	h := &hub{k: k, index: newSpanIndex(), waiting: map[*watcher]struct{}{}}
	h.rev.Store(rev)
	h.recent.reset(rev)
	return h
}

func (h *hub) wantsPrev() bool { return h.prevs.Load() > 0 }

// publish tells watches of the revisions first to last. hasPrev says that
// what changes replaced is filled, with values.
func (h *hub) publish(first, last kv.Revision, changes []kv.Change, hasPrev bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	if last <= rev {
		return // read from the log already
	}
	if first != rev+1 {
		h.skip(last)
		return
	}
	h.recent.add(changes, hasPrev)
	for i := range changes {
		h.index.visit(changes[i].KV.Key, func(w *watcher) {
			if w.stage(&changes[i], hasPrev) {
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
	h.arrived(last)
}

// skip moves the hub past revisions that it does not have: other servers made
// them. Every watch goes on from the log.
func (h *hub) skip(to kv.Revision) {
	from := h.rev.Load() + 1
	for _, w := range h.index.all() {
		h.index.remove(w)
		w.fallBehind(from)
	}
	h.recent.reset(to)
	h.arrived(to)
}

func (h *hub) arrived(rev kv.Revision) {
	h.rev.Store(rev)
	for w := range h.waiting {
		delete(h.waiting, w)
		w.wake()
	}
}

// join makes a watch live if everything from its position on is at hand.
func (h *hub) join(w *watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	if w.next <= rev {
		if w.next < h.k.compacted.Load() {
			return false // the log will say so
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
			return false // too much for the queue: read the log in pieces
		}
	}
	w.setLive()
	h.index.add(w)
	return true
}

// await has a watch woken when the hub reaches the next revision. It reports
// false if the hub is at or past rev already.
func (h *hub) await(w *watcher, rev kv.Revision) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rev.Load() >= rev {
		return false
	}
	h.waiting[w] = struct{}{}
	return true
}

func (h *hub) leave(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.index.remove(w)
	delete(h.waiting, w)
	if w.req.PrevKV {
		h.prevs.Add(-1)
	}
}

// ring holds the last changes that were published, oldest first, without gaps.
type ring struct {
	batches []ringBatch
	after   kv.Revision // changes above it are all here
	bytes   int
}

type ringBatch struct {
	changes []kv.Change
	hasPrev bool
	bytes   int
}

// maxRecentBytes bounds what the ring keeps in memory; the values are shared
// with watches and the cache, so mostly it costs nothing extra.
const maxRecentBytes = 4 << 20

func (r *ring) reset(after kv.Revision) {
	*r = ring{after: after}
}

func (r *ring) add(changes []kv.Change, hasPrev bool) {
	b := ringBatch{changes: changes, hasPrev: hasPrev}
	for i := range changes {
		c := &changes[i]
		b.bytes += 200 + len(c.KV.Key) + len(c.KV.Value)
		if c.Prev != nil {
			b.bytes += len(c.Prev.Value)
		}
	}
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

// since returns all changes from a revision on, if they are here.
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
