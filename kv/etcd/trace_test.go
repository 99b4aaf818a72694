package etcd_test

import (
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	"github.com/atoll-dev/atoll/kv/etcd"
)

// TestSpans checks that a client's trace continues from its call to the commit.
func TestSpans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	_, c := serve(t, openAtoll(t), etcd.Options{TracerProvider: provider})
	if _, err := c.Put(t.Context(), "a", "not traced"); err != nil {
		t.Fatal(err)
	}
	const trace, call = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-"+call+"-01")
	if _, err := c.Put(ctx, "a", "traced"); err != nil {
		t.Fatal(err)
	}
	want := []string{"kv.commit", "kv.Txn", "etcdserverpb.KV/Put"}
	// The span of a call ends a moment after its answer.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		byID := map[string]tracetest.SpanStub{}
		at := ""
		for _, s := range spans.GetSpans() {
			if s.SpanContext.TraceID().String() != trace {
				t.Fatalf("span %s belongs to another trace", s.Name)
			}
			id := s.SpanContext.SpanID().String()
			byID[id] = s
			if s.Name == want[0] {
				at = id
			}
		}
		for _, name := range want {
			if byID[at].Name != name {
				break
			}
			at = byID[at].Parent.SpanID().String()
		}
		if at == call {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the trace has %v", byID)
		}
	}
}
