package mvcc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of the memory for one slow watch. A watch that exceeds them reads the log from
// there on.
const (
	maxQueueEvents = 4096
	maxQueueBytes  = 4 << 20
	// changesPerRead is the number of changes that a watch reads from the log at a time.
	changesPerRead = 1000
)

// watcher is one watch. Its goroutine delivers events; publishers only add events to its
// queue.
type watcher struct {
	k   *Keyspace
	ctx context.Context
	req kv.WatchRequest
	out chan kv.WatchResponse
	// wakec signals that there is something to do.
	wakec chan struct{}

	// staged holds the events of the current publication, so that a revision is queued as a
	// whole. Guarded by hub.mu.
	staged      []kv.Event
	stagedBytes int

	mu            sync.Mutex
	live          bool
	queue         []kv.Event
	queueBytes    int
	behind        kv.Revision // revision to read the log from, when not live and the queue is empty
	progress      kv.Revision // revision to report when it is reached; 0: none requested
	progressCalls int64       // calls of RequestProgress
	answers       int64       // how many of them progress answers
	ended         error       // why the watch ended, when the queue is empty

	// next is the first revision that is not delivered or queued. It belongs to the
	// goroutine while the watch is not live.
	next kv.Revision
	// unchecked: another server may have compacted beyond the start revision.
	unchecked bool
	// limit of the next read of the log.
	limit logLimit
	// delivered is the revision up to which all events were sent.
	delivered kv.Revision
	// reported is the highest revision of a response.
	reported kv.Revision
	lag      lagTrace
}

// Watch implements kv.Keyspace.
func (k *Keyspace) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	if len(req.Start) == 0 && req.Span.Single() {
		return nil, fmt.Errorf("watch: %w", kv.ErrEmptyKey)
	}
	w := &watcher{
		k: k, ctx: ctx, req: req,
		out:   make(chan kv.WatchResponse, 1),
		wakec: make(chan struct{}, 1),
		next:  req.StartRevision,
		limit: changesPerRead,
	}
	if k.shared && k.hub.idle() {
		// Without watches the hub follows other servers only up to confirmed revisions.
		if _, err := k.heads.get(ctx); err != nil {
			return nil, fmt.Errorf("watch: %w", err)
		}
	}
	k.hub.register(w)
	if err := w.begin(); err != nil {
		k.hub.unregister(w)
		return nil, err
	}
	if !k.run(w.loop) {
		k.hub.unregister(w)
		return nil, k.ended()
	}
	return w, nil
}

// begin determines the start revision, and makes the watch live if possible.
func (w *watcher) begin() error {
	k := w.k
	if w.req.StartRevision == 0 {
		now := k.revision()
		if k.shared {
			// Other servers may have committed more than this server knows.
			head, err := k.heads.get(w.ctx)
			if err != nil {
				return fmt.Errorf("watch from now on: %w", err)
			}
			now = head.Revision
		}
		w.next = now + 1
	} else {
		w.unchecked = k.shared
	}
	w.delivered = w.next - 1
	if w.next < 0 || w.unchecked || !k.hub.goLive(w) {
		w.behind = w.next
	}
	return nil
}

func (w *watcher) Responses() <-chan kv.WatchResponse { return w.out }

func (w *watcher) RequestProgress() {
	w.mu.Lock()
	w.progressCalls++
	call := w.progressCalls
	w.mu.Unlock()
	if w.k.shared {
		w.k.progress.request(w, call)
		return
	}
	w.wantProgress(w.k.revision(), call)
}

// wantProgress requests a progress response when everything up to target is delivered. It
// answers the first calls of RequestProgress.
func (w *watcher) wantProgress(target kv.Revision, calls int64) {
	w.mu.Lock()
	w.progress = max(w.progress, target)
	w.answers = max(w.answers, calls)
	w.mu.Unlock()
	w.wake()
}

func (w *watcher) wake() { wake(w.wakec) }

// stage adds a change to the publication, under hub.mu, and reports whether it is the
// first.
func (w *watcher) stage(c *kv.Change, hasPrev bool) (first bool) {
	if c.KV.ModRevision < w.next || c.Deleted && w.req.NoDelete || !c.Deleted && w.req.NoPut {
		return false
	}
	first = len(w.staged) == 0
	w.staged = append(w.staged, w.event(c))
	w.stagedBytes += len(c.KV.Key) + len(c.KV.Value)
	if w.req.PrevKV && !hasPrev {
		// The batch was made before this watch started. Reading the log provides the
		// missing previous values.
		w.stagedBytes = maxQueueBytes + 1
	}
	return first
}

// flush moves the staged events into the queue. It returns false if they exceed the bounds;
// then the watch continues from the log.
func (w *watcher) flush() bool {
	if len(w.staged) == 0 {
		return true
	}
	w.mu.Lock()
	ok := len(w.queue)+len(w.staged) <= maxQueueEvents && w.queueBytes+w.stagedBytes <= maxQueueBytes
	if ok {
		w.queue = append(w.queue, w.staged...)
		w.queueBytes += w.stagedBytes
	} else {
		w.live, w.behind = false, w.staged[0].KV.ModRevision
	}
	w.mu.Unlock()
	clear(w.staged)
	w.staged, w.stagedBytes = w.staged[:0], 0
	w.wake()
	return ok
}

// fallBehind ends the live state: queued events are still delivered, then the watch reads
// the log from a revision on.
func (w *watcher) fallBehind(from kv.Revision) {
	w.mu.Lock()
	w.live, w.behind = false, max(from, w.next)
	w.mu.Unlock()
	w.wake()
}

// end ends the watch, after its queued events.
func (w *watcher) end(err error) {
	w.mu.Lock()
	w.live, w.ended = false, err
	w.mu.Unlock()
	w.wake()
}

func (w *watcher) setLive() {
	w.mu.Lock()
	w.live = true
	w.mu.Unlock()
}

func (w *watcher) event(c *kv.Change) kv.Event {
	e := kv.Event{KV: c.KV}
	if c.Deleted {
		e.Type = kv.EventDelete
	}
	if w.req.PrevKV {
		e.Prev = c.Prev
	}
	return e
}

func (w *watcher) loop() {
	defer close(w.out)
	defer w.lag.end()
	defer w.k.hub.unregister(w)
	if w.k.shared {
		defer w.k.progress.unregister(w)
	}
	var tick <-chan time.Time
	if w.req.ProgressNotify {
		t := w.k.opts.Clock.NewTicker(w.k.opts.ProgressInterval)
		defer t.Stop()
		tick = t.C()
	}
	idle := true // nothing was sent since the last tick
	for {
		// Read it before the queue: all events up to here are in the queue.
		published := w.k.hub.rev.Load()
		w.mu.Lock()
		events, live, behind, ended := w.queue, w.live, w.behind, w.ended
		w.queue, w.queueBytes = nil, 0
		w.mu.Unlock()

		switch {
		case len(events) > 0:
			upTo := events[len(events)-1].KV.ModRevision
			if live {
				upTo = max(upTo, published)
			}
			if !w.send(kv.WatchResponse{Revision: upTo, Events: events}) {
				return
			}
			w.delivered = max(w.delivered, upTo)
			idle = false
			// Also here, because there may be an endless stream of events.
			if !w.answerProgress() {
				return
			}
			continue
		case ended != nil:
			w.fail(kv.WatchResponse{Revision: w.delivered, Err: ended})
			return
		case !live:
			sent, ok := w.catchUp(behind)
			if !ok {
				return
			}
			if sent {
				idle = false
			}
			continue
		}
		w.delivered = max(w.delivered, published)
		if !w.answerProgress() {
			return
		}

		select {
		case <-w.wakec:
		case <-tick:
			if idle && w.k.hub.rev.Load() >= w.req.StartRevision-1 {
				w.wantProgress(w.k.revision(), 0)
			}
			idle = true
		case <-w.ctx.Done():
			return
		case <-w.k.ctx.Done():
			w.send(kv.WatchResponse{Revision: w.delivered, Err: w.k.ended()})
			return
		}
	}
}

// answerProgress sends a progress response if it is requested and reached.
func (w *watcher) answerProgress() bool {
	w.mu.Lock()
	target, answers := w.progress, w.answers
	w.mu.Unlock()
	if target == 0 {
		return true
	}
	target = max(target, w.req.StartRevision-1)
	// A watch that has not begun has delivered nothing: only published revisions count.
	reached := min(w.delivered, w.k.hub.rev.Load())
	// The hub counts a revision only once its events are in all queues. This watch may
	// already have sent them, so its revision must not decrease.
	reached = max(reached, w.reported)
	if reached < target {
		if !w.k.hub.wakeAt(w, target) {
			w.wake()
		}
		return true
	}
	w.mu.Lock()
	if w.progress <= reached {
		w.progress, answers = 0, w.answers
	}
	w.mu.Unlock()
	return w.send(kv.WatchResponse{Revision: reached, Progress: true, Answers: answers})
}

// catchUp reads the log from a revision on, delivers the events and tries to go live. sent
// reports whether it sent something; ok is false if the watch is over.
func (w *watcher) catchUp(from kv.Revision) (sent, ok bool) {
	w.next = from
	if w.unchecked {
		head, err := w.k.heads.get(w.ctx)
		if err != nil {
			return false, w.failed(from, err)
		}
		if from < head.Compacted {
			return false, w.compacted(from, head)
		}
		w.unchecked = false
	}
	if from >= 0 && w.k.hub.goLive(w) {
		w.lag.end()
		return false, true
	}
	upTo := w.k.hub.rev.Load()
	if o := w.k.opts.Observer.WatchLag; o != nil {
		o(upTo - from + 1)
	}
	rows := int(w.limit)
	changes, head, err := w.k.table.Changes(w.lag.begin(w, from, upTo), from-1, upTo, rows, w.req.PrevKV)
	if err == nil && from < head.Compacted || from < 0 {
		return false, w.compacted(from, head)
	}
	if err != nil {
		return false, w.failed(from, err)
	}
	if len(changes) >= rows {
		upTo = changes[len(changes)-1].KV.ModRevision
	}
	w.limit.adjust(changes)
	w.lag.read(len(changes))
	var events []kv.Event
	for i := range changes {
		c := &changes[i]
		if !w.req.Span.Contains(c.KV.Key) || c.Deleted && w.req.NoDelete || !c.Deleted && w.req.NoPut {
			continue
		}
		events = append(events, w.event(c))
	}
	if len(events) > 0 && !w.send(kv.WatchResponse{Revision: upTo, Events: events}) {
		return false, false
	}
	w.delivered = max(w.delivered, upTo)
	w.mu.Lock()
	w.behind = upTo + 1
	w.mu.Unlock()
	return len(events) > 0, true
}

// compacted ends a watch whose history was compacted.
func (w *watcher) compacted(from kv.Revision, head kv.Head) bool {
	return w.fail(kv.WatchResponse{
		Revision: w.delivered, CompactRevision: head.Compacted,
		Err: fmt.Errorf("watch from revision %d: %w (at %d)", from, kv.ErrCompacted, head.Compacted),
	})
}

// failed ends a watch that could not read the log.
func (w *watcher) failed(from kv.Revision, err error) bool {
	return w.fail(kv.WatchResponse{Revision: w.delivered, Err: fmt.Errorf("watch from revision %d: %w", from, err)})
}

// fail sends the last response.
func (w *watcher) fail(r kv.WatchResponse) bool {
	if w.ctx.Err() == nil {
		w.send(r)
	}
	return false
}

// send waits for the reader, and returns false if the watch is over.
func (w *watcher) send(r kv.WatchResponse) bool {
	select {
	case w.out <- r:
		w.reported = max(w.reported, r.Revision)
		return true
	case <-w.ctx.Done():
		return false
	case <-w.k.ctx.Done():
		// The reader may still be there: send the reason if there is room.
		select {
		case w.out <- kv.WatchResponse{Revision: w.delivered, Err: w.k.ended()}:
		default:
		}
		return false
	}
}
