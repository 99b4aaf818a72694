package mvcc_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// recorder records spans.
type recorder struct {
	*tracetest.InMemoryExporter
	*sdktrace.TracerProvider
}

func newRecorder() *recorder {
	spans := tracetest.NewInMemoryExporter()
	return &recorder{spans, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))}
}

// call runs fn inside a span, and returns the spans of its trace, by name.
func (r *recorder) call(t *testing.T, fn func(ctx context.Context)) map[string]tracetest.SpanStub {
	t.Helper()
	ctx, span := r.Tracer("test").Start(t.Context(), "call")
	fn(ctx)
	span.End()
	found := map[string]tracetest.SpanStub{}
	for _, s := range r.GetSpans() {
		if s.SpanContext.TraceID() == span.SpanContext().TraceID() {
			found[s.Name] = s
		}
	}
	return found
}

func attributeOf(s tracetest.SpanStub, name string) (v attribute.Value) {
	for _, a := range s.Attributes {
		if string(a.Key) == name {
			v = a.Value
		}
	}
	return v
}

// TestSpans checks that the spans of a call account for its time, in its own trace.
func TestSpans(t *testing.T) {
	r := newRecorder()
	s := openStore(t, mvcc.Options{})
	put := kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(strings.Repeat("key", 100)), Value: []byte("geheim")}}}}
	spans := r.call(t, func(ctx context.Context) {
		if _, err := s.Txn(ctx, put); err != nil {
			t.Fatal(err)
		}
	})
	txn, commit, wait := spans["kv.Txn"], spans["kv.commit"], spans["kv.wait"]
	if len(spans) != 4 || txn.Parent.SpanID() != spans["call"].SpanContext.SpanID() ||
		commit.Parent.SpanID() != txn.SpanContext.SpanID() || wait.Parent.SpanID() != txn.SpanContext.SpanID() {
		t.Errorf("a put leaves %v", spans)
	}
	if attributeOf(txn, "kv.revision").AsInt64() != 2 || len(attributeOf(txn, "kv.key").AsString()) != 128 {
		t.Errorf("txn: %v", txn.Attributes)
	}
	if attributeOf(commit, "kv.revision").AsInt64() != 2 || attributeOf(commit, "kv.writes").AsInt64() != 1 ||
		attributeOf(commit, "kv.attempts").AsInt64() != 1 || attributeOf(commit, "kv.changes").AsInt64() != 1 {
		t.Errorf("commit: %v", commit.Attributes)
	}
	spans = r.call(t, func(ctx context.Context) {
		if _, err := s.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte("k")), Limit: 5}); err != nil {
			t.Fatal(err)
		}
	})
	if list := spans["kv.Range"]; attributeOf(list, "kv.count").AsInt64() != 1 || attributeOf(list, "kv.limit").AsInt64() != 5 {
		t.Errorf("range: %v", list.Attributes)
	}
	spans = r.call(t, func(ctx context.Context) {
		if _, err := s.Compact(ctx, 1000, false); err == nil {
			t.Fatal("compacted a future revision")
		}
	})
	if c := spans["kv.Compact"]; !strings.Contains(c.Status.Description, "future") {
		t.Errorf("compact: %+v", c.Status)
	}
	for _, s := range r.GetSpans() {
		for _, a := range s.Attributes {
			if strings.Contains(a.Value.Emit(), "geheim") {
				t.Errorf("span %s contains a value in %s", s.Name, a.Key)
			}
		}
	}
	r.Reset()
	if _, err := s.Txn(t.Context(), put); err != nil || len(r.GetSpans()) != 0 {
		t.Errorf("a call without a trace leaves %v, %v", r.GetSpans(), err)
	}
}

// TestSpansOfSharedCommit checks that each caller that shares a commit has it in its own
// trace, linked to the others.
func TestSpansOfSharedCommit(t *testing.T) {
	r := newRecorder()
	s := openStore(t, mvcc.Options{})
	for range 100 {
		r.Reset()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				ctx, span := r.Tracer("test").Start(t.Context(), "call")
				defer span.End()
				put := kv.Op{Put: &kv.PutOp{Key: []byte{byte('a' + i)}}}
				if _, err := s.Txn(ctx, kv.TxnRequest{Then: []kv.Op{put}}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		commits, linked := map[trace.TraceID]bool{}, 0
		for _, s := range r.GetSpans() {
			if s.Name != "kv.commit" {
				continue
			}
			commits[s.SpanContext.TraceID()] = true
			linked += len(s.Links)
		}
		if len(commits) != 16 {
			t.Fatalf("%d of 16 traces have a commit span", len(commits))
		}
		if linked > 0 {
			return
		}
	}
	t.Error("no commit was ever shared")
}

// TestSpansOfBackgroundWork checks that the engine's background work has its own traces.
func TestSpansOfBackgroundWork(t *testing.T) {
	r := newRecorder()
	s := openStore(t, mvcc.Options{TracerProvider: r})
	for range 10 {
		s.put("a", strings.Repeat("v", 1<<20)) // more than is kept in memory
	}
	w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 2})
	if err != nil {
		t.Fatal(err)
	}
	for seen := 0; seen < 10; {
		seen += len((<-w.Responses()).Events)
	}
	if _, err := s.Compact(t.Context(), 5, true); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		var names []string
		for _, s := range r.GetSpans() {
			names = append(names, s.Name)
			if s.Name == "kv.watch.catchup" && attributeOf(s, "kv.changes").AsInt64() != 10 {
				t.Fatalf("catching up: %v", s.Attributes)
			}
		}
		if slices.Contains(names, "kv.sweep") && slices.Contains(names, "kv.watch.catchup") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("background spans are %q", names)
		}
	}
}
