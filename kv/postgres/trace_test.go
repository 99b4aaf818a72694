package postgres

import (
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestSpans checks that a call's trace includes its round trips.
func TestSpans(t *testing.T) {
	k := openStore(t, openTest(t), mvcc.Options{})
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	ctx, span := provider.Tracer("test").Start(t.Context(), "call")
	if _, err := k.Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a"), Value: []byte("1")}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Range(ctx, kv.RangeRequest{Span: kv.Span{Start: []byte("a")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte("a"))}); err != nil {
		t.Fatal(err)
	}
	span.End()
	var names []string
	byID := map[string]string{}
	for _, s := range spans.GetSpans() {
		byID[s.SpanContext.SpanID().String()] = s.Name
	}
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() != span.SpanContext().TraceID() {
			t.Errorf("span %s belongs to another trace", s.Name)
		}
		names = append(names, byID[s.Parent.SpanID().String()]+"/"+s.Name)
	}
	slices.Sort(names)
	want := []string{"/call", "call/kv.Range", "call/kv.Range", "call/kv.Txn", "kv.Range/sql get", "kv.Range/sql range",
		"kv.Txn/kv.commit", "kv.Txn/kv.wait", "kv.commit/sql begin", "kv.commit/sql commit"}
	if !slices.Equal(names, want) {
		t.Errorf("spans %q,\nwant %q", names, want)
	}
}
