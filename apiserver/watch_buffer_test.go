package apiserver

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// TestBufferedWatch: a burst waits for a slow client, in order. If the source ends the
// watch, the client gets every event that was waiting, and then the reason.
func TestBufferedWatch(t *testing.T) {
	t.Parallel()
	const limit = 5
	event := func(name string) watch.Event {
		return watch.Event{Type: watch.Added, Object: &v1.ConfigMap{Data: map[string]string{"name": name}}}
	}
	read := func(t *testing.T, w watch.Interface) (names string, end error) {
		t.Helper()
		for e := range w.ResultChan() {
			if e.Type == watch.Error {
				return names, apierrors.FromObject(e.Object)
			}
			names += e.Object.(*v1.ConfigMap).Data["name"]
		}
		return names, nil
	}

	for _, tt := range []struct {
		name, burst, want string
	}{
		{"a burst that fits", "abcd", "the server's watch cache ended"},
		{"a burst that fills the buffer", "abcde", "5 events were waiting"},
	} {
		source := watch.NewFakeWithChanSize(0, false)
		w := newBufferedWatch(t.Context(), source, limit)
		for _, name := range tt.burst {
			source.Action(watch.Added, event(string(name)).Object) // blocks until it is read: nobody reads w yet
		}
		source.Stop()
		names, end := read(t, w)
		if names != tt.burst || end == nil || !strings.Contains(end.Error(), tt.want) || !apierrors.IsTooManyRequests(end) {
			t.Errorf("%s: read %q, then %v; want %q and %q", tt.name, names, end, tt.burst, tt.want)
		}
		if _, open := <-w.ResultChan(); open {
			t.Errorf("%s: the watch continues after its end", tt.name)
		}
	}

	// An error of the source is the only one.
	failing := watch.NewFakeWithChanSize(0, false)
	failed := newBufferedWatch(t.Context(), failing, limit)
	status := apierrors.NewResourceExpired("too old").Status()
	failing.Error(&status)
	failing.Stop()
	if names, end := read(t, failed); names != "" || !apierrors.IsResourceExpired(end) {
		t.Errorf("after an error of the source: read %q, then %v", names, end)
	}
	if e, open := <-failed.ResultChan(); open {
		t.Errorf("after an error of the source: another event %v", e)
	}

	// A client that stops, or whose request ends, needs no reason. The source is stopped.
	source := watch.NewFakeWithChanSize(0, false)
	w := newBufferedWatch(t.Context(), source, limit)
	w.Stop()
	w.Stop()
	if names, end := read(t, w); names != "" || end != nil {
		t.Errorf("after Stop: read %q, then %v", names, end)
	}
	if _, open := <-source.ResultChan(); open {
		t.Error("the source was not stopped")
	}
	ctx, cancel := context.WithCancel(t.Context())
	source = watch.NewFakeWithChanSize(0, false)
	w = newBufferedWatch(ctx, source, limit)
	cancel()
	source.Stop()
	if names, end := read(t, w); names != "" || end != nil {
		t.Errorf("after the end of the request: read %q, then %v", names, end)
	}
}

// TestBufferedWatchWaits: while the buffer is full, the source has to wait, as it must
// for the initial events of a large list.
func TestBufferedWatchWaits(t *testing.T) {
	t.Parallel()
	const limit, all = 3, 100
	source := watch.NewFakeWithChanSize(0, false)
	w := newBufferedWatch(t.Context(), source, limit)
	go func() {
		for range all {
			source.Add(&v1.ConfigMap{})
		}
	}()
	for range all {
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Fatalf("event %v", e)
		}
	}
	w.Stop()
}
