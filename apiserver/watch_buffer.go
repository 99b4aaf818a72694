package apiserver

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// watchBuffer is how many events wait for a client that reads slowly. The events are
// shared with the watch cache, so that a waiting event costs little.
const watchBuffer = 2000

// bufferedStore buffers the events of each watch of a watch cache. Upstream's cache
// holds ten to a hundred events for each, and ends a watch whose client does not keep
// up, without a reason. A burst of writes on a busy machine is enough for that.
type bufferedStore struct{ storage.Interface }

func (s bufferedStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return newBufferedWatch(ctx, w, watchBuffer), nil
}

// bufferedWatch passes on the events of a watch. If the source ends although the client
// has not, the last event is an error that says why, and how to continue.
type bufferedWatch struct {
	source watch.Interface
	out    chan watch.Event
	stop   chan struct{}
	once   sync.Once
}

func newBufferedWatch(ctx context.Context, source watch.Interface, limit int) *bufferedWatch {
	w := &bufferedWatch{source: source, out: make(chan watch.Event), stop: make(chan struct{})}
	go w.run(ctx, limit)
	return w
}

func (w *bufferedWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *bufferedWatch) Stop() {
	w.once.Do(func() { close(w.stop) })
}

// run reads ahead of the client. While the buffer is full it reads nothing, and the
// source decides how long it waits: it waits for the initial events, of which there may
// be any number, and ends a watch that has fallen behind.
func (w *bufferedWatch) run(ctx context.Context, limit int) {
	defer close(w.out)
	defer w.source.Stop()
	var queue []watch.Event
	full, ended, explained := false, false, false
	for !ended || len(queue) > 0 {
		in := w.source.ResultChan()
		if ended || len(queue) >= limit {
			in, full = nil, full || len(queue) >= limit
		}
		var out chan<- watch.Event
		var next watch.Event
		if len(queue) > 0 {
			out, next = w.out, queue[0]
		}
		select {
		case e, ok := <-in:
			if ok {
				queue = append(queue, e)
				explained = e.Type == watch.Error
				continue
			}
			ended = true
			// The end of the request, or of the server, needs no explanation. An error of the
			// source is one.
			if ctx.Err() == nil && !explained {
				queue = append(queue, endOfWatch(full, limit))
			}
		case out <- next:
			queue[0] = watch.Event{}
			if queue = queue[1:]; len(queue) == 0 {
				queue = nil
				full = full && ended
			}
		case <-w.stop:
			return
		}
	}
}

// endOfWatch is 429, after which client-go watches again from the last event that it
// received, instead of listing everything.
func endOfWatch(full bool, limit int) watch.Event {
	reason := "the server's watch cache ended this watch"
	if full {
		reason = fmt.Sprintf("the client read too slowly: %d events were waiting for it", limit)
	}
	status := apierrors.NewTooManyRequests(reason+"; watch again from the resourceVersion of the last event", 1).Status()
	return watch.Event{Type: watch.Error, Object: &status}
}
