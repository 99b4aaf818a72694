package mvcc

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-dev/atoll/kv"
)

// Bounds of what is read ahead, over all lists of a keyspace.
const (
	// maxAheadReads are under way at once; more would only stand in line at the
	// table, before reads that somebody waits for.
	maxAheadReads = 4
	// maxAheadPages and maxAheadBytes are kept until they are asked for.
	maxAheadPages = 16
	maxAheadBytes = 16 << 20
	// maxAheadPage is the size of the largest page worth it.
	maxAheadPage = 4 << 20
	// aheadPatience is how long a page is kept for a reader who does not come.
	aheadPatience = 2 * time.Second
)

// readAhead reads the next page of a list from the table while the client is
// busy with the page before. Only pages of a fixed revision are read ahead,
// whose keys do not change. What may have changed when such a page is asked for,
// the head, is read then.
type readAhead struct {
	k *Keyspace

	mu      sync.Mutex
	pages   map[listPage]*aheadPage // that nobody has asked for yet
	bytes   int64                   // of these
	reading int                     // some of these, and some that are asked for already
}

// listPage is which page it is: requests for it have the same answer, but for the head.
type listPage struct {
	pageKey
	limit                  int64
	keysOnly, serializable bool
}

// aheadPage is a page that is being read, or was.
type aheadPage struct {
	page listPage
	req  kv.RangeRequest
	// size of the page; as long as it is being read, of the one before it.
	size int64
	gone chan struct{} // closed when the page is given to somebody, or dropped
	done chan struct{} // closed when it is read
	res  *kv.RangeResult
	err  error
}

func newReadAhead(k *Keyspace) *readAhead {
	return &readAhead{k: k, pages: map[listPage]*aheadPage{}}
}

// pageOf tells which page a request is for, if it is for one of a fixed revision.
func pageOf(req *kv.RangeRequest) (listPage, bool) {
	if !limited(req) || req.Revision <= 0 || needsAll(req) {
		return listPage{}, false
	}
	return listPage{pageKey{req.Revision, string(req.Start), string(req.End)}, req.Limit, req.KeysOnly, req.Serializable}, true
}

// start begins to read what follows on a page, unless the bounds are reached or
// it has begun before. It waits for nothing.
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
	// What there is has precedence: if pages had to make room for each other, many
	// lists at once would read everything twice.
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
	timer := r.k.opts.Clock.NewTimer(aheadPatience)
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
		return // somebody waits for it already
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

// remove takes a page out, if it is still there; r.mu is held.
func (r *readAhead) remove(p *aheadPage) {
	if r.pages[p.page] != p {
		return
	}
	delete(r.pages, p.page)
	r.bytes -= p.size
	close(p.gone)
}

// take finds the page that a request asks for, and nobody finds it again; nil
// if it is not there.
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

// answer gives the page that was read ahead for a request, as if it had been
// read now, and begins with the next one. It returns nil if there is none, or
// none that may be given: then it is to be read from the table.
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
	r.k.saw(res.Revision)
	if res.More {
		r.start(req, &res)
	}
	if traced(ctx) {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Bool("kv.read_ahead", true))
	}
	return &res, nil
}

// head is what an answer tells of the keyspace as it is now: what was
// acknowledged before the call began, by any server. A serializable read may be behind
// that, and only not behind what this server has told.
func (r *readAhead) head(ctx context.Context, req *kv.RangeRequest) (kv.Head, error) {
	if req.Serializable {
		return kv.Head{Revision: r.k.seen.Load(), Compacted: r.k.compacted.Load()}, nil
	}
	return r.k.heads.ask(ctx)
}

// keyOverhead is about what a key takes besides its bytes.
const keyOverhead = 100

func pageBytes(res *kv.RangeResult) (n int64) {
	for i := range res.KVs {
		n += int64(len(res.KVs[i].Key)+len(res.KVs[i].Value)) + keyOverhead
	}
	return n
}
