package mvcc

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/atoll-dev/atoll/kv"
)

// Spans show where the time of a call is spent. If the context of a call has a recorded
// span, the call adds children to it, from the same provider. All others pay for one lookup
// in their context. The engine's background work creates spans with Options.TracerProvider.
// Spans contain keys, and never values.

const tracerName = "github.com/atoll-dev/atoll/kv/mvcc"

// maxKeyAttribute bounds the part of a key in a span.
const maxKeyAttribute = 128

// traced reports whether a call is to leave spans.
func traced(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// child starts a span within the one of ctx, which must be recorded.
func child(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName).Start(ctx, name, opts...)
}

// background starts a span for work that no call requested.
func (k *Keyspace) background(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	if k.opts.TracerProvider == nil {
		return ctx, noop.Span{}
	}
	return k.opts.TracerProvider.Tracer(tracerName).Start(ctx, name, opts...)
}

// finish ends a span with its outcome.
func finish(span trace.Span, err error, attributes ...attribute.KeyValue) {
	span.SetAttributes(attributes...)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

func keyAttribute(key []byte) attribute.KeyValue {
	return attribute.String("kv.key", strings.ToValidUTF8(string(key[:min(len(key), maxKeyAttribute)]), "?"))
}

func revisionAttribute(rev kv.Revision) attribute.KeyValue {
	return attribute.Int64("kv.revision", rev)
}

func countAttribute[N int | int32 | int64](name string, n N) attribute.KeyValue {
	return attribute.Int64("kv."+name, int64(n))
}

func (k *Keyspace) tracedTxn(ctx context.Context, req *kv.TxnRequest) (*kv.TxnResult, error) {
	ctx, span := child(ctx, "kv.Txn")
	if key := firstKey(req); key != nil {
		span.SetAttributes(keyAttribute(key))
	}
	res, err := k.txn(ctx, req)
	if err == nil {
		span.SetAttributes(revisionAttribute(res.Revision), attribute.Bool("kv.succeeded", res.Succeeded))
	}
	finish(span, err, countAttribute("compares", len(req.If)), countAttribute("operations", len(req.Then)))
	return res, err
}

// firstKey returns the key that names a transaction in its span.
func firstKey(req *kv.TxnRequest) []byte {
	if len(req.If) > 0 {
		return req.If[0].Start
	}
	if len(req.Then) == 0 {
		return nil
	}
	switch op := &req.Then[0]; {
	case op.Put != nil:
		return op.Put.Key
	case op.Delete != nil:
		return op.Delete.Start
	case op.Range != nil:
		return op.Range.Start
	}
	return nil
}

func (k *Keyspace) tracedRange(ctx context.Context, req *kv.RangeRequest) (*kv.RangeResult, error) {
	ctx, span := child(ctx, "kv.Range")
	span.SetAttributes(keyAttribute(req.Start), attribute.Bool("kv.single", req.Span.Single()))
	if req.Limit > 0 {
		span.SetAttributes(countAttribute("limit", req.Limit))
	}
	if req.Revision > 0 {
		span.SetAttributes(countAttribute("at_revision", req.Revision))
	}
	res, err := k.read(ctx, req)
	if err == nil {
		span.SetAttributes(revisionAttribute(res.Revision), countAttribute("count", res.Count), countAttribute("returned", len(res.KVs)))
	}
	finish(span, err)
	return res, err
}

func (k *Keyspace) tracedCompact(ctx context.Context, rev kv.Revision, physical bool) (kv.Revision, error) {
	ctx, span := child(ctx, "kv.Compact")
	now, err := k.compact(ctx, rev, physical)
	finish(span, err, revisionAttribute(rev), attribute.Bool("kv.physical", physical))
	return now, err
}

// writeTrace is the parent span of a write, and the time since it has been waiting.
type writeTrace struct {
	ctx   context.Context
	since time.Time
}

// traceWrite returns the parent of a write's spans; nil if the call is not traced.
func traceWrite(ctx context.Context) *writeTrace {
	if !traced(ctx) {
		return nil
	}
	return &writeTrace{ctx, time.Now()}
}

// commitTrace contains the spans of one commit: each traced call has its own, so that its
// trace is complete. The first is the parent of the table's spans; the others are linked to
// it.
type commitTrace struct{ spans []trace.Span }

// traceCommit begins the spans of a commit, and ends the spans of waiting for it. The
// caller continues with the returned context.
func traceCommit(ctx context.Context, writes []*write) (context.Context, *commitTrace) {
	var t *commitTrace
	for _, w := range writes {
		if w.trace == nil {
			continue
		}
		_, waited := child(w.trace.ctx, "kv.wait", trace.WithTimestamp(w.trace.since))
		waited.End()
		if t == nil {
			var first trace.Span
			_, first = child(w.trace.ctx, "kv.commit")
			ctx = trace.ContextWithSpan(ctx, first)
			t = &commitTrace{[]trace.Span{first}}
			continue
		}
		_, shared := child(w.trace.ctx, "kv.commit",
			trace.WithLinks(trace.Link{SpanContext: t.spans[0].SpanContext()}))
		t.spans = append(t.spans, shared)
	}
	return ctx, t
}

func (t *commitTrace) end(writes, attempts int, b *batch, err error) {
	if t == nil {
		return
	}
	attributes := []attribute.KeyValue{countAttribute("writes", writes), countAttribute("attempts", attempts)}
	if b != nil {
		attributes = append(attributes, countAttribute("changes", len(b.changes)), revisionAttribute(b.rev))
	}
	for _, span := range t.spans {
		finish(span, err, attributes...)
	}
}

// lagTrace is the span of a watch that reads history, from the begin until it is live
// again.
type lagTrace struct {
	span           trace.Span // nil if there is none
	reads, changes int
}

func (l *lagTrace) begin(w *watcher, from, upTo kv.Revision) context.Context {
	if w.k.opts.TracerProvider == nil {
		return w.ctx
	}
	if l.span == nil {
		// The call that opened the watch may have ended long ago: its trace is linked.
		_, l.span = w.k.background(context.Background(), "kv.watch.catchup",
			trace.WithLinks(trace.LinkFromContext(w.ctx)), trace.WithAttributes(keyAttribute(w.req.Start),
				countAttribute("from", from), countAttribute("behind", upTo-from+1)))
	}
	return trace.ContextWithSpan(w.ctx, l.span)
}

func (l *lagTrace) read(changes int) { l.reads, l.changes = l.reads+1, l.changes+changes }

func (l *lagTrace) end() {
	if l.span != nil {
		finish(l.span, nil, countAttribute("reads", l.reads), countAttribute("changes", l.changes))
		*l = lagTrace{}
	}
}
