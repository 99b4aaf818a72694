package mvcc

import (
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// pageMemo remembers how many keys a list has left after a page, so that
// reading a long list page by page, all at one revision, counts it once and not
// once a page. What was true at a revision stays true, so nothing here can
// go out of date.
type pageMemo struct {
	mu      sync.Mutex
	entries map[pageKey]rest
	order   []pageKey // ring of keys, oldest at next
	next    int
}

// pageKey is where the next page starts.
type pageKey struct {
	rev        kv.Revision
	start, end string
}

// rest is what a list has left after a page.
type rest struct {
	keys int64
	// limit of that page. Readers who are after few keys of many ask for more
	// each time, and their next page cannot be foretold.
	limit int64
}

// pageMemoSize bounds the lists that are under way at the same time.
const pageMemoSize = 1024

func newPageMemo() *pageMemo {
	return &pageMemo{entries: map[pageKey]rest{}}
}

// limited tells whether a request is for a page of a list.
func limited(req *kv.RangeRequest) bool {
	return req.Limit > 0 && !req.CountOnly && !req.Span.Single()
}

// afterPage is where the page after res starts.
func afterPage(res *kv.RangeResult) []byte {
	last := res.KVs[len(res.KVs)-1].Key
	return append(append(make([]byte, 0, len(last)+1), last...), 0)
}

// rest tells what the span of a request has, if a page before it told.
func (m *pageMemo) rest(req *kv.RangeRequest) (rest, bool) {
	if req.Revision <= 0 {
		return rest{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.entries[pageKey{req.Revision, string(req.Start), string(req.End)}]
	return n, ok
}

// remember notes what is left after a page.
func (m *pageMemo) remember(req *kv.RangeRequest, res *kv.RangeResult) {
	rev := req.Revision
	if rev <= 0 {
		rev = res.Revision
	}
	key := pageKey{rev, string(afterPage(res)), string(req.End)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.entries[key]; !ok {
		if len(m.order) < pageMemoSize {
			m.order = append(m.order, key)
		} else {
			delete(m.entries, m.order[m.next])
			m.order[m.next] = key
			m.next = (m.next + 1) % pageMemoSize
		}
	}
	m.entries[key] = rest{res.Count - int64(len(res.KVs)), req.Limit}
}
