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
	touched []*watcher            // scratch of publish
	watches map[*watcher]struct{} // live or not
	// kept are publications beyond a gap, which the tailer is to fill.
	kept      []publication
	keptBytes int

	// rev is the last revision whose changes are in the queues of all live
	// watches. Written under mu.
	rev atomic.Int64
	// prevs counts the watches that want what changes replaced.
	prevs atomic.Int64
}

func newHub(k *Keyspace, rev kv.Revision) *hub {
	h := &hub{k: k, index: newSpanIndex(), waiting: map[*watcher]struct{}{}, watches: map[*watcher]struct{}{}}
	h.rev.Store(rev)
	h.recent.reset(rev)
	return h
}

func (h *hub) wantsPrev() bool { return h.prevs.Load() > 0 }

// publication is what happened in the revisions first to last. hasPrev says
// that what changes replaced is filled, with values.
type publication struct {
	first, last kv.Revision
	changes     []kv.Change
	hasPrev     bool
}

// publish tells watches. What does not follow on the hub's last revision is
// kept until the tailer has brought what lies between.
func (h *hub) publish(p publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.first > h.rev.Load()+1 {
		h.keep(p)
		return
	}
	h.deliver(p)
	h.deliverKept()
}

func (h *hub) keep(p publication) {
	bytes := sizeOf(p.changes)
	if len(h.watches) == 0 || h.keptBytes+bytes > maxRecentBytes {
		return // the tailer reads it from the log
	}
	h.kept = append(h.kept, p)
	h.keptBytes += bytes
}

// deliverKept delivers what follows on the hub's last revision now, and drops
// what it has come past.
func (h *hub) deliverKept() {
	for len(h.kept) > 0 && h.kept[0].first <= h.rev.Load()+1 {
		p := h.kept[0]
		h.kept[0] = publication{}
		h.kept = h.kept[1:]
		h.keptBytes -= sizeOf(p.changes)
		h.deliver(p)
	}
}

// deliver puts the changes of revisions that follow on the hub's last one, or
// begin before it, into the queues of live watches.
func (h *hub) deliver(p publication) {
	rev := h.rev.Load()
	if p.last <= rev {
		return
	}
	changes := p.changes
	for len(changes) > 0 && changes[0].KV.ModRevision <= rev {
		changes = changes[1:] // the tailer and the committer both had it
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
	h.arrived(p.last)
}

// gap tells what the hub lacks of the revisions up to known: everything after
// < revision <= upTo, or what follows it, too. While nobody watches it lacks
// nothing, and moves on as far as is sure: what it has moved past, no watch that
// comes later will be told of as it happens.
func (h *hub) gap(known, sure kv.Revision) (after, upTo kv.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	switch {
	case known <= rev:
		return rev, rev
	case len(h.watches) == 0:
		rev = h.pass(min(known, sure))
		return rev, rev
	case len(h.kept) > 0:
		return rev, h.kept[0].first - 1
	default:
		return rev, allThereIs
	}
}

// pass moves the hub to a revision that nobody watches for, and tells where it
// is then. The caller holds mu.
func (h *hub) pass(to kv.Revision) kv.Revision {
	if to > h.rev.Load() {
		h.recent.reset(to)
		h.arrived(to)
		h.deliverKept()
	}
	return h.rev.Load()
}

// idle tells whether nobody watches.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watches) == 0
}

// skip moves the hub past revisions that the log may not have any more. Every
// watch finds out for itself.
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
	h.arrived(to)
	h.deliverKept()
}

func (h *hub) arrived(rev kv.Revision) {
	h.rev.Store(rev)
	for w := range h.waiting {
		delete(h.waiting, w)
		w.wake()
	}
}

// enter counts a watch in, before anything else is done with it.
func (h *hub) enter(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watches) == 0 {
		// The first one need not wait for what happened before it came.
		h.pass(h.k.tail.sure.Load())
	}
	h.watches[w] = struct{}{}
	if w.req.PrevKV {
		h.prevs.Add(1)
	}
}

// end ends all watches, after what they have in their queues.
func (h *hub) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		h.index.remove(w)
		w.end(err)
	}
}

// join makes a watch live if everything from its position on is at hand.
func (h *hub) join(w *watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	rev := h.rev.Load()
	if w.next <= rev {
		// The log will say so; and that what the change at that very revision
		// replaced is gone, though it may still be at hand here.
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
	delete(h.watches, w)
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

// sizeOf is about what changes take in memory.
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
