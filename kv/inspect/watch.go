package inspect

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

const (
	// pollInterval is the time between reads of the log while there are no changes.
	pollInterval = 20 * time.Millisecond
	// rowsPerPoll bounds the rows in memory.
	rowsPerPoll = 1000
)

// Watch implements the method of kv.Keyspace by polling the log: a reader is not notified
// of changes by other processes.
func (r *Reader) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	if len(req.Start) == 0 {
		return nil, fmt.Errorf("watch: %w", kv.ErrEmptyKey)
	}
	after := req.StartRevision - 1
	if req.StartRevision <= 0 {
		head, err := r.table.Head(ctx)
		if err != nil {
			return nil, err
		}
		after = head.Revision
	}
	w := &watch{r: r, ctx: ctx, req: req, after: after, out: make(chan kv.WatchResponse), asked: make(chan struct{}, 1)}
	go w.loop()
	return w, nil
}

type watch struct {
	r     *Reader
	ctx   context.Context
	req   kv.WatchRequest
	after kv.Revision // all changes up to it are delivered
	out   chan kv.WatchResponse

	asked   chan struct{}
	waiting atomic.Bool // progress was requested
}

func (w *watch) Responses() <-chan kv.WatchResponse { return w.out }

func (w *watch) RequestProgress() {
	w.waiting.Store(true)
	select {
	case w.asked <- struct{}{}:
	default:
	}
}

func (w *watch) send(res kv.WatchResponse) bool {
	select {
	case w.out <- res:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *watch) loop() {
	defer close(w.out)
	for {
		// Read it before the head, so that the head covers the time of the request.
		progress := w.waiting.Swap(false)
		head, err := w.r.table.Head(w.ctx)
		if err == nil {
			err = w.deliver(head)
		}
		if w.ctx.Err() != nil {
			return
		}
		if err != nil {
			w.send(kv.WatchResponse{Err: err, CompactRevision: head.Compacted})
			return
		}
		if progress && !w.send(kv.WatchResponse{Revision: w.after, Progress: true}) {
			return
		}
		select {
		case <-w.ctx.Done():
			return
		case <-w.asked:
		case <-w.r.clock.After(pollInterval):
		}
	}
}

// deliver sends the changes up to the head.
func (w *watch) deliver(head kv.Head) error {
	if w.after+1 < head.Compacted {
		return fmt.Errorf("watch from revision %d: %w (at %d)", w.after+1, kv.ErrCompacted, head.Compacted)
	}
	for w.after < head.Revision {
		changes, now, err := w.r.table.Changes(w.ctx, w.after, head.Revision, rowsPerPoll, w.req.PrevKV)
		if err != nil {
			return err
		}
		if w.after+1 < now.Compacted {
			return fmt.Errorf("watch from revision %d: %w (at %d)", w.after+1, kv.ErrCompacted, now.Compacted)
		}
		reached := head.Revision
		if len(changes) > 0 {
			reached = changes[len(changes)-1].KV.ModRevision
		}
		if events := w.events(changes); len(events) > 0 && !w.send(kv.WatchResponse{Revision: reached, Events: events}) {
			return w.ctx.Err()
		}
		w.after = reached
	}
	return nil
}

func (w *watch) events(changes []kv.Change) (events []kv.Event) {
	for i := range changes {
		ch := &changes[i]
		switch {
		case !w.req.Contains(ch.KV.Key), ch.Deleted && w.req.NoDelete, !ch.Deleted && w.req.NoPut:
		case ch.Deleted:
			events = append(events, kv.Event{Type: kv.EventDelete, KV: ch.KV, Prev: ch.Prev})
		default:
			events = append(events, kv.Event{KV: ch.KV, Prev: ch.Prev})
		}
	}
	return events
}
