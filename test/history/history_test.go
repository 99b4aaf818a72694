package history_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
	"github.com/atoll-dev/atoll/test/history"
)

func open(t *testing.T) kv.Keyspace {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "history")
	if err != nil {
		t.Fatal(err)
	}
	ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ks.Close() })
	return ks
}

// record runs clients and watchers on three servers of a keyspace, and checks their history.
func record(t *testing.T, servers [3]kv.Keyspace, timeout time.Duration) *history.Report {
	t.Helper()
	r := &history.Recorder{}
	ctx, stopWatching := context.WithCancel(t.Context())
	var watching, calling sync.WaitGroup
	var watchers []*history.Watcher
	for i, ks := range servers {
		for _, w := range []*history.Watcher{
			r.NewWatcher("all", history.AllKeys(), true),
			r.NewWatcher("one", kv.Span{Start: []byte(history.Key(i))}, i > 0),
		} {
			watchers = append(watchers, w)
			watching.Go(func() { w.Run(ctx, func(context.Context) (kv.Keyspace, error) { return ks, nil }) })
		}
	}
	for id := range 6 {
		calling.Go(func() {
			c := r.NewClient(id, 1)
			for n := range 150 {
				server := (id + n/20) % len(servers)
				c.Step(ctx, string(rune('a'+server)), servers[server])
				if id == 0 && n%40 == 39 {
					_ = r.Compact(ctx, servers[0], r.Delivered())
				}
			}
		})
	}
	calling.Wait()
	last := r.NewClient(6, 1)
	var head kv.Revision
	for range 5 {
		for i, ks := range servers {
			head = max(head, last.List(ctx, string(rune('a'+i)), ks).Revision)
		}
	}
	// The timeout matters for bugs that lose the end of a watch.
	deadline := time.Now().Add(timeout)
	for _, w := range watchers {
		for w.Reached() < head && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
	}
	stopWatching()
	watching.Wait()
	return r.Check(10 * time.Second)
}

func TestCorrectServersHaveNoViolations(t *testing.T) {
	ks := open(t)
	report := record(t, [3]kv.Keyspace{ks, ks, ks}, time.Minute)
	t.Log(report.Totals)
	for _, v := range report.Violations {
		t.Error(v)
	}
	if !report.Linearizable {
		t.Error("no order explains the calls")
	}
	if report.Changes < 100 || report.Reads < 100 || report.Events < 300 || report.Progress == 0 {
		t.Error("too few calls or events to be conclusive")
	}
}

// TestBugsAreDetected gives one of the three servers a bug that shows only now and then. The checks must
// find each of them.
func TestBugsAreDetected(t *testing.T) {
	for name, bug := range map[string]*buggy{
		"a read is stale":                     {read: staleRead},
		"a read is dirty":                     {read: dirtyRead},
		"a write is lost":                     {txn: lostWrite},
		"a write is done twice":               {txn: doubledWrite},
		"a compare is ignored":                {txn: blindWrite},
		"a refused write happens":             {txn: refusedWrite},
		"an answer has the previous revision": {txn: lateAnswer},
		"half a transaction is done":          {txn: halfWrite},
		"an event is dropped":                 {watch: func(r kv.WatchResponse) []kv.WatchResponse { return nil }},
		"an event is repeated":                {watch: func(r kv.WatchResponse) []kv.WatchResponse { return []kv.WatchResponse{r, r} }},
		"a previous value is wrong":           {watch: wrongPrev},
		"a watch jumps ahead":                 {watch: jumpAhead},
		"progress comes before events":        {watch: earlyProgress},
		"half a revision is delivered":        {watch: halfRevision},
		"a watch goes back":                   {watch: goBack},
		"a compaction that no one requested":  {watch: compactedForNothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ks := open(t)
			bug.Keyspace = ks
			report := record(t, [3]kv.Keyspace{ks, bug, ks}, 2*time.Second)
			if bug.happened.Load() == 0 {
				t.Fatal("the bug did not happen")
			}
			if len(report.Violations) == 0 {
				t.Fatalf("the bug happened %d times without a violation; %v", bug.happened.Load(), report.Totals)
			}
			t.Log(report.Violations[0])
			// Both checks must find wrong answers.
			if bug.watch == nil && report.Linearizable {
				t.Error("an order explains the wrong answers")
			}
		})
	}
}

// buggy is a keyspace with a bug that shows at one in ten calls or responses. Where one cannot show it, the
// next one that can does: otherwise the bugs of rare calls would not happen in some histories.
type buggy struct {
	kv.Keyspace
	read  func(context.Context, kv.Keyspace, kv.RangeRequest) (*kv.RangeResult, error)
	txn   func(context.Context, kv.Keyspace, kv.TxnRequest) (*kv.TxnResult, error, bool)
	watch func(kv.WatchResponse) []kv.WatchResponse

	opportunities, happened atomic.Int64
}

// due reports whether the bug must show now, unless it cannot.
func (b *buggy) due() bool { return b.opportunities.Add(1)/10 > b.happened.Load() }

func (b *buggy) Range(ctx context.Context, req kv.RangeRequest) (*kv.RangeResult, error) {
	if b.read == nil || req.Revision != 0 || !b.due() {
		return b.Keyspace.Range(ctx, req)
	}
	b.happened.Add(1)
	return b.read(ctx, b.Keyspace, req)
}

func (b *buggy) Txn(ctx context.Context, req kv.TxnRequest) (*kv.TxnResult, error) {
	if b.txn == nil || !b.due() {
		return b.Keyspace.Txn(ctx, req)
	}
	res, err, happened := b.txn(ctx, b.Keyspace, req)
	if happened {
		b.happened.Add(1)
	}
	return res, err
}

func (b *buggy) Watch(ctx context.Context, req kv.WatchRequest) (kv.Watch, error) {
	w, err := b.Keyspace.Watch(ctx, req)
	if err != nil || b.watch == nil {
		return w, err
	}
	out := make(chan kv.WatchResponse)
	go func() {
		defer close(out)
		for r := range w.Responses() {
			rs := []kv.WatchResponse{r}
			if len(r.Events) > 0 && b.due() {
				changed := b.watch(r)
				if len(changed) != 1 || changed[0].Revision != -1 {
					b.happened.Add(1)
					rs = changed
				}
			}
			for _, r := range rs {
				select {
				case out <- r:
				case <-ctx.Done():
				}
			}
		}
	}()
	return &buggyWatch{w, out}, nil
}

type buggyWatch struct {
	kv.Watch
	out chan kv.WatchResponse
}

func (w *buggyWatch) Responses() <-chan kv.WatchResponse { return w.out }

// staleRead answers from two revisions ago.
func staleRead(ctx context.Context, ks kv.Keyspace, req kv.RangeRequest) (*kv.RangeResult, error) {
	res, err := ks.Range(ctx, req)
	if err != nil || res.Revision < 4 {
		return res, err
	}
	req.Revision = res.Revision - 2
	if old, err := ks.Range(ctx, req); err == nil {
		old.Revision = req.Revision
		return old, nil
	}
	return res, nil // compacted
}

// dirtyRead returns a value that was never committed.
func dirtyRead(ctx context.Context, ks kv.Keyspace, req kv.RangeRequest) (*kv.RangeResult, error) {
	res, err := ks.Range(ctx, req)
	if err == nil && len(res.KVs) > 0 {
		kvs := append([]kv.KeyValue(nil), res.KVs...)
		kvs[0].Value = []byte("not committed")
		res.KVs = kvs
	}
	return res, err
}

// lostWrite acknowledges a write without executing it.
func lostWrite(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	res, err := ks.Range(ctx, kv.RangeRequest{Span: history.AllKeys()})
	if err != nil {
		return nil, err, false
	}
	out := &kv.TxnResult{Revision: res.Revision + 1, Succeeded: true}
	for range req.Then {
		out.Results = append(out.Results, kv.OpResult{Put: &kv.PutResult{}})
	}
	return out, nil, true
}

func doubledWrite(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	res, err := ks.Txn(ctx, req)
	if err != nil || len(req.If) > 0 || req.Then[0].Put == nil {
		return res, err, false
	}
	res, err = ks.Txn(ctx, req)
	return res, err, true
}

func blindWrite(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	blind := len(req.If) > 0
	req.If = nil
	res, err := ks.Txn(ctx, req)
	return res, err, blind
}

func refusedWrite(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	if _, err := ks.Txn(ctx, req); err != nil {
		return nil, err, false
	}
	return nil, kv.ErrUnavailable, true
}

// lateAnswer returns the revision of the previous write.
func lateAnswer(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	res, err := ks.Txn(ctx, req)
	if err == nil {
		late := *res
		late.Revision--
		res = &late
	}
	return res, err, err == nil
}

func halfWrite(ctx context.Context, ks kv.Keyspace, req kv.TxnRequest) (*kv.TxnResult, error, bool) {
	if len(req.Then) < 2 {
		res, err := ks.Txn(ctx, req)
		return res, err, false
	}
	req.Then = req.Then[:1]
	res, err := ks.Txn(ctx, req)
	return res, err, err == nil
}

// notNow is the result of a watch bug that cannot show in this response.
func notNow() []kv.WatchResponse { return []kv.WatchResponse{{Revision: -1}} }

func wrongPrev(r kv.WatchResponse) []kv.WatchResponse {
	events := append([]kv.Event(nil), r.Events...)
	for i := range events {
		if p := events[i].Prev; p != nil {
			wrong := *p
			wrong.ModRevision--
			events[i].Prev = &wrong
			r.Events = events
			return []kv.WatchResponse{r}
		}
	}
	return notNow()
}

func jumpAhead(r kv.WatchResponse) []kv.WatchResponse {
	r.Revision++
	return []kv.WatchResponse{r, {Revision: r.Revision, Progress: true}}
}

func earlyProgress(r kv.WatchResponse) []kv.WatchResponse {
	return []kv.WatchResponse{{Revision: r.Revision, Progress: true}, r}
}

func halfRevision(r kv.WatchResponse) []kv.WatchResponse {
	for i := 1; i < len(r.Events); i++ {
		if r.Events[i].KV.ModRevision == r.Events[i-1].KV.ModRevision {
			r.Events = append(r.Events[:i:i], r.Events[i+1:]...)
			return []kv.WatchResponse{r}
		}
	}
	return notNow()
}

func goBack(r kv.WatchResponse) []kv.WatchResponse {
	return []kv.WatchResponse{r, {Revision: r.Revision - 1, Progress: true}}
}

func compactedForNothing(r kv.WatchResponse) []kv.WatchResponse {
	return []kv.WatchResponse{{Err: kv.ErrCompacted, CompactRevision: r.Revision + 1}}
}
