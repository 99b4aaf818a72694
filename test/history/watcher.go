package history

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// Watcher follows a span of keys like a correct client. When its watch ends, it resumes from the last
// revision, and if that was compacted, it lists the span again.
type Watcher struct {
	recorder *Recorder
	name     string
	span     kv.Span
	prevs    bool

	reached atomic.Int64

	mu   sync.Mutex
	seen []seen
}

// seen is one response that a watcher got.
type seen struct {
	response kv.WatchResponse
	// relisted is set for a list of the span instead of a watch response.
	relisted *kv.RangeResult
	// compacting is the highest requested compaction so far. Events up to it may lack their previous
	// value.
	compacting kv.Revision
	// resumed marks the first response of a new watch.
	resumed bool
}

// NewWatcher returns a watcher, for Run, that begins with the first change.
func (r *Recorder) NewWatcher(name string, span kv.Span, prevs bool) *Watcher {
	w := &Watcher{recorder: r, name: name, span: span, prevs: prevs}
	w.reached.Store(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, w)
	return w
}

// Reached returns the revision up to which all events were delivered.
func (w *Watcher) Reached() kv.Revision { return w.reached.Load() }

func (w *Watcher) whole() bool {
	return w.span.Contains([]byte(Key(0))) && !w.span.Single() && w.span.Contains([]byte(Key(Keys-1)))
}

// How often a watcher requests progress, and how long it waits before a retry.
const (
	progressEvery = 40 * time.Millisecond
	retryAfter    = 20 * time.Millisecond
)

// Run watches until ctx ends. open returns a server to watch on.
func (w *Watcher) Run(ctx context.Context, open func(context.Context) (kv.Keyspace, error)) {
	for ctx.Err() == nil {
		ks, err := open(ctx)
		if err == nil {
			err = w.follow(ctx, ks)
		}
		if errors.Is(err, kv.ErrCompacted) {
			err = w.relist(ctx, ks)
		}
		if err != nil && !explained(err) {
			w.recorder.mu.Lock()
			w.recorder.unexpected = append(w.recorder.unexpected, fmt.Sprintf("an error that no fault explains: watcher %s, at %d: %v", w.name, w.Reached(), err))
			w.recorder.mu.Unlock()
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// follow reads one watch until it ends.
func (w *Watcher) follow(ctx context.Context, ks kv.Keyspace) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := ks.Watch(ctx, kv.WatchRequest{Span: w.span, StartRevision: w.Reached() + 1, PrevKV: w.prevs})
	if err != nil {
		w.note(seen{response: kv.WatchResponse{Err: err}})
		return err
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for first := true; ; {
		select {
		case r, open := <-watch.Responses():
			if !open {
				return nil
			}
			w.note(seen{response: r, resumed: first})
			first = false
			if r.Err != nil {
				return r.Err
			}
			w.reached.Store(max(w.Reached(), r.Revision))
		case <-tick.C:
			watch.RequestProgress()
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *Watcher) relist(ctx context.Context, ks kv.Keyspace) error {
	res, err := ks.Range(ctx, kv.RangeRequest{Span: w.span})
	if err != nil {
		return err
	}
	w.note(seen{relisted: res})
	w.reached.Store(max(w.Reached(), res.Revision))
	return nil
}

func (w *Watcher) note(s seen) {
	s.compacting = w.recorder.compacting.Load()
	if w.whole() {
		w.recorder.delivered(s.response.Events)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, s)
}
