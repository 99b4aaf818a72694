package mvcc

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of read-ahead, over all lists of a keyspace.
const (
	// maxAheadReads bounds concurrent reads. More would only queue at the table, before
	// reads that clients wait for.
	maxAheadReads = 4
	// maxAheadPages and maxAheadBytes bound the pages that wait for their request.
	maxAheadPages = 16
	maxAheadBytes = 16 << 20
	// maxAheadPage is the maximum size of a page to read ahead.
	maxAheadPage = 4 << 20
	// aheadTimeout is how long a page is kept for its request.
	aheadTimeout = 2 * time.Second
)

// readAhead reads the next page of a list from the table while the client processes the
// page before. It reads only pages at a fixed revision, whose keys do not change. The head
// may change; it is read when the page is requested.
type readAhead struct {
	k *Keyspace

	mu      sync.Mutex
	pages   map[listPage]*aheadPage // not requested yet
	bytes   int64                   // of these
	reading int                     // reads under way, including pages already requested
}

// listPage identifies a page: all requests for it have the same answer, but for the head.
type listPage struct {
	pageKey
	limit                  int64
	keysOnly, serializable bool
}

// aheadPage is a page that is being read, or was read.
type aheadPage struct {
	page listPage
	req  kv.RangeRequest
	// size of the page; during the read, the size of the previous page.
	size int64
	gone chan struct{} // closed when the page is handed out or dropped
	done chan struct{} // closed when it is read
	res  *kv.RangeResult
	err  error
}

func newReadAhead(k *Keyspace) *readAhead {
	return &readAhead{k: k, pages: map[listPage]*aheadPage{}}
}

// pageOf returns the page that a request is for, if it has a fixed revision.
func pageOf(req *kv.RangeRequest) (listPage, bool) {
	if !limited(req) || req.Revision <= 0 || needsAll(req) {
		return listPage{}, false
	}
	return listPage{pageKey{req.Revision, string(req.Start), string(req.End)}, req.Limit, req.KeysOnly, req.Serializable}, true
}

// start begins to read the page after res, unless the bounds are reached or that has begun
// before. It does not block.
func (r *readAhead) start(req *kv.RangeRequest, res *kv.RangeResult) {
	p := &aheadPage{req: *req, size: pageBytes(res), gone: make(chan struct{}), done: make(chan struct{})}
	p.req.Start = afterPage(res)
	page, ok := pageOf(&p.req)
	if !ok {
		return
	}
	p.page = page
	r.mu.Lock()
	defer r.mu.Unlock()
	// Existing pages have precedence: if pages evicted each other, many concurrent lists
	// would read everything twice.
	if r.pages[page] != nil || r.reading >= maxAheadReads || len(r.pages) >= maxAheadPages ||
		p.size > maxAheadPage || r.bytes+p.size > maxAheadBytes {
		return
	}
	if !r.k.run(func() { r.keep(p) }) {
		return
	}
	r.pages[page] = p
	r.bytes += p.size
	r.reading++
}

// keep reads a page, and keeps it for a while.
func (r *readAhead) keep(p *aheadPage) {
	r.read(p)
	timer := r.k.opts.Clock.NewTimer(aheadTimeout)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-timer.C():
	case <-r.k.ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(p)
}

func (r *readAhead) read(p *aheadPage) {
	defer close(p.done)
	ctx, span := r.k.background(r.k.ctx, "kv.readahead", trace.WithAttributes(keyAttribute(p.req.Start)))
	p.res, p.err = tableView{ctx: ctx, k: r.k, head: new(kv.Head)}.scan(&p.req)
	finish(span, p.err)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.reading--
	if r.pages[p.page] != p {
		return // a caller already waits for it
	}
	if p.err != nil {
		r.remove(p)
		return
	}
	size := pageBytes(p.res)
	r.bytes += size - p.size
	p.size = size
	if size > maxAheadPage || r.bytes > maxAheadBytes {
		r.remove(p)
	}
}

// remove removes a page, if it still exists; the caller holds r.mu.
func (r *readAhead) remove(p *aheadPage) {
	if r.pages[p.page] != p {
		return
	}
	delete(r.pages, p.page)
	r.bytes -= p.size
	close(p.gone)
}

// take removes and returns the page that a request is for, nil if there is none.
func (r *readAhead) take(req *kv.RangeRequest) *aheadPage {
	page, ok := pageOf(req)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pages[page]
	if p != nil {
		r.remove(p)
	}
	return p
}

// answer returns the page that was read ahead for a request, as if it had been read now,
// and starts reading the next one. It returns nil if there is no valid page; then the
// caller reads from the table.
func (r *readAhead) answer(ctx context.Context, req *kv.RangeRequest) (*kv.RangeResult, error) {
	p := r.take(req)
	if p == nil {
		return nil, nil
	}
	head, err := r.head(ctx, req) // meanwhile the page may arrive
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := r.k.open(); err != nil {
		return nil, err
	}
	if p.err != nil || req.Revision < max(head.Compacted, r.k.compacted.Load()) {
		return nil, nil
	}
	res := *p.res
	res.Revision = max(res.Revision, head.Revision)
	r.k.observed(res.Revision)
	if res.More {
		r.start(req, &res)
	}
	if traced(ctx) {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Bool("kv.read_ahead", true))
	}
	return &res, nil
}

// head returns the current head for an answer: it includes everything that any server
// acknowledged before the call began. A serializable read may be behind that, but not
// behind what this server has returned.
func (r *readAhead) head(ctx context.Context, req *kv.RangeRequest) (kv.Head, error) {
	if req.Serializable {
		return kv.Head{Revision: r.k.seen.Load(), Compacted: r.k.compacted.Load()}, nil
	}
	return r.k.heads.get(ctx)
}

// keyOverhead is the approximate memory of a key in addition to its bytes.
const keyOverhead = 100

func pageBytes(res *kv.RangeResult) (n int64) {
	for i := range res.KVs {
		n += int64(len(res.KVs[i].Key)+len(res.KVs[i].Value)) + keyOverhead
	}
	return n
}
