package kvtest

import (
	"context"
	"fmt"

	"github.com/atoll-dev/atoll/kv"
)

func watchTests() []test {
	return []test{
		{"from now on", testWatchNow},
		{"from the past", testWatchPast},
		{"from the future", testWatchFuture},
		{"events contain the whole change", testWatchEvents},
		{"filters and spans", testWatchFilters},
		{"whole revisions", testWatchWhole},
		{"from the past into the present", testWatchCatchesUp},
		{"a slow reader", testWatchSlow},
		{"progress", testWatchProgress},
		{"many watches", testWatchMany},
		{"ends with its context", testWatchEnds},
	}
}

func describeEvents(e *env, events []kv.Event) []string {
	var out []string
	for _, ev := range events {
		kind := "put"
		if ev.Type == kv.EventDelete {
			kind = "delete"
		}
		out = append(out, fmt.Sprintf("%s %s=%s", kind, ev.KV.Key[len(e.prefix):], ev.KV.Value))
	}
	return out
}

func testWatchNow(e *env) {
	e.put("a", "before")
	w := e.watch(kv.WatchRequest{Span: e.all()})
	e.put("a", "1")
	e.put("b", "1")
	e.delete("a")
	e.equal("events", describeEvents(e, e.eventsOf(w)), []string{"put a=1", "put b=1", "delete a="})
}

func testWatchPast(e *env) {
	e.put("a", "0")
	from := e.put("a", "1")
	e.put("b", "1")
	e.delete("a")
	w := e.watch(kv.WatchRequest{Span: e.all(), StartRevision: from})
	e.put("a", "2")
	e.equal("events", describeEvents(e, e.eventsOf(w)), []string{"put a=1", "put b=1", "delete a=", "put a=2"})
}

// testWatchFuture checks that, unlike a read, a watch from a future revision waits for it.
func testWatchFuture(e *env) {
	w := e.watch(kv.WatchRequest{Span: e.all(), StartRevision: e.head() + 3})
	for i := range 4 {
		e.put("a", fmt.Sprint(i+1))
	}
	e.equal("events", describeEvents(e, e.eventsOf(w)), []string{"put a=3", "put a=4"})
}

func testWatchEvents(e *env) {
	from := e.head() + 1
	e.put("a", "1")
	one := e.get("a")
	e.put("a", "2")
	two := e.get("a")
	gone := e.delete("a")
	e.put("a", "3")
	three := e.get("a")
	for _, prev := range []bool{true, false} {
		want := []kv.Event{
			{KV: *one},
			{KV: *two, Prev: one},
			{Type: kv.EventDelete, KV: kv.KeyValue{Key: e.key("a"), ModRevision: gone}, Prev: two},
			{KV: *three},
		}
		if !prev {
			for i := range want {
				want[i].Prev = nil
			}
		}
		w := e.watch(kv.WatchRequest{Span: e.all(), StartRevision: from, PrevKV: prev})
		e.equal(fmt.Sprintf("events, previous values requested: %v", prev), e.eventsOf(w), want)
	}
}

func testWatchFilters(e *env) {
	requests := []struct {
		what string
		req  kv.WatchRequest
		want []string
	}{
		{"all", kv.WatchRequest{Span: e.all()}, []string{"put a=1", "put b=1", "put c=1", "delete b=", "delete a="}},
		{"no puts", kv.WatchRequest{Span: e.all(), NoPut: true}, []string{"delete b=", "delete a="}},
		{"no deletions", kv.WatchRequest{Span: e.all(), NoDelete: true}, []string{"put a=1", "put b=1", "put c=1"}},
		{"neither", kv.WatchRequest{Span: e.all(), NoPut: true, NoDelete: true}, nil},
		{"one key", kv.WatchRequest{Span: e.span("b", "")}, []string{"put b=1", "delete b="}},
		{"a span", kv.WatchRequest{Span: e.span("b", "d")}, []string{"put b=1", "put c=1", "delete b="}},
		{"another key", kv.WatchRequest{Span: e.span("x", "")}, nil},
	}
	from := e.head() + 1
	live := make([]*recorder, len(requests))
	for i, tc := range requests {
		live[i] = e.watch(tc.req)
	}
	e.put("a", "1")
	e.do(e.putOp("b", "1"), e.putOp("c", "1"))
	e.delete("b")
	e.delete("a")
	for i, tc := range requests {
		e.equal(tc.what+", live", describeEvents(e, e.eventsOf(live[i])), tc.want)
		tc.req.StartRevision = from
		e.equal(tc.what+", from the past", describeEvents(e, e.eventsOf(e.watch(tc.req))), tc.want)
	}
}

// wholeRevisions fails if a revision's events are distributed over responses.
func (e *env) wholeRevisions(w *recorder) {
	e.Helper()
	all, _ := w.snapshot()
	var last kv.Revision
	for _, r := range all {
		for _, ev := range r.Events {
			if ev.KV.ModRevision <= last {
				e.Fatalf("an event of revision %d came in a later response than another one of revision %d", ev.KV.ModRevision, last)
			}
		}
		if n := len(r.Events); n > 0 {
			last = r.Events[n-1].KV.ModRevision
		}
	}
}

func testWatchWhole(e *env) {
	from := e.head() + 1
	live := e.watch(kv.WatchRequest{Span: e.all()})
	const txns, keys = 50, 20
	for i := range txns {
		var ops []kv.Op
		for k := range keys {
			ops = append(ops, e.putOp(fmt.Sprint(k), fmt.Sprint(i)))
		}
		e.do(ops...)
	}
	past := e.watch(kv.WatchRequest{Span: e.all(), StartRevision: from})
	for _, w := range []*recorder{live, past} {
		e.equal("number of events", len(e.eventsOf(w)), txns*keys)
		e.wholeRevisions(w)
	}
}

// consecutive fails unless the events are puts of 0, 1, 2, … to n-1.
func (e *env) consecutive(events []kv.Event, n int) {
	e.Helper()
	e.equal("number of events", len(events), n)
	for i, ev := range events {
		if string(ev.KV.Value) != fmt.Sprint(i) {
			e.Fatalf("event %d is %s with value %s", i, describe(ev), ev.KV.Value)
		}
	}
}

// testWatchCatchesUp begins watches while changes continue, so that they pass from history
// to live events without a gap or a repeat.
func testWatchCatchesUp(e *env) {
	from := e.head() + 1
	const n = 600
	var watches []*recorder
	for i := range n {
		e.put("a", fmt.Sprint(i))
		if i%50 == 10 {
			watches = append(watches, e.watch(kv.WatchRequest{Span: e.all(), StartRevision: from}))
		}
	}
	for _, w := range watches {
		e.consecutive(e.eventsOf(w), n)
	}
}

func testWatchSlow(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	w, err := e.ks.Watch(ctx, kv.WatchRequest{Span: e.all()})
	e.ok("watch", err)
	quick := e.watch(kv.WatchRequest{Span: e.all()})
	const n = 2000
	for i := 0; i < n; {
		// Several in one transaction would be faster, but the values must be in order.
		var ops []kv.Op
		for range 20 {
			ops = append(ops, e.putOp(fmt.Sprint(i%20), fmt.Sprint(i)))
			i++
		}
		e.do(ops...)
	}
	e.consecutive(e.eventsOf(quick), n)
	var late []kv.Event
	for r := range w.Responses() {
		e.ok("slow watch", r.Err)
		if late = append(late, r.Events...); len(late) >= n {
			break
		}
	}
	e.consecutive(late, n)
}

func testWatchProgress(e *env) {
	idle := e.watch(kv.WatchRequest{Span: e.span("idle", "")})
	busy := e.watch(kv.WatchRequest{Span: e.all()})
	for i := range 20 {
		now := e.put("a", fmt.Sprint(i))
		for _, w := range []*recorder{idle, busy} {
			e.ok("catch up", w.catchUp(e.ctx, now))
		}
		all, _ := busy.snapshot()
		var events int
		for _, r := range all {
			events += len(r.Events)
		}
		if events != i+1 {
			e.Fatalf("after progress to revision %d the watch had delivered %d events, want %d", now, events, i+1)
		}
	}
	all, _ := idle.snapshot()
	var last kv.Revision
	for _, r := range all {
		if !r.Progress || len(r.Events) > 0 || r.Revision < last {
			e.Errorf("an idle watch sent %s after revision %d", describe(r), last)
		}
		last = r.Revision
	}
}

func testWatchMany(e *env) {
	const n = 40
	watches := make([]*recorder, n)
	for i := range watches {
		watches[i] = e.watch(kv.WatchRequest{Span: e.span(fmt.Sprint(i%4), "")})
	}
	for i := range 40 {
		e.put(fmt.Sprint(i%4), fmt.Sprint(i/4))
	}
	for _, w := range watches {
		e.consecutive(e.eventsOf(w), 10)
	}
}

func testWatchEnds(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	w, err := record(ctx, e.ks, kv.WatchRequest{Span: e.all()})
	e.ok("watch", err)
	e.put("a", "1")
	e.equal("events before the end", len(e.eventsOf(w)), 1)
	cancel()
	e.closes(w)
	w.watch.RequestProgress() // must not block or panic
}
