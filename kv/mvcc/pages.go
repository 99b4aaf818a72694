package mvcc

import (
	"sync"

	"github.com/atoll-dev/atoll/kv"
)

// pageCounts remembers how many keys of a list remain after a page. So reading a long list
// page by page, all at one revision, counts it once and not for each page. A fixed revision
// never changes, so entries never go out of date.
type pageCounts struct {
	mu      sync.Mutex
	entries map[pageKey]remaining
	order   []pageKey // ring of keys, oldest at next
	next    int
}

// pageKey is the start of the next page.
type pageKey struct {
	rev        kv.Revision
	start, end string
}

// remaining is the rest of a list after a page.
type remaining struct {
	keys int64
	// limit of that page. Readers that look for few keys among many increase the limit each
	// time, so their next page cannot be predicted.
	limit int64
}

// pageCountsSize bounds the number of lists under way at the same time.
const pageCountsSize = 1024

func newPageCounts() *pageCounts {
	return &pageCounts{entries: map[pageKey]remaining{}}
}

// limited reports whether a request is for a page of a list.
func limited(req *kv.RangeRequest) bool {
	return req.Limit > 0 && !req.CountOnly && !req.Span.Single()
}

// afterPage returns the start of the page after res.
func afterPage(res *kv.RangeResult) []byte {
	last := res.KVs[len(res.KVs)-1].Key
	return append(append(make([]byte, 0, len(last)+1), last...), 0)
}

// remaining returns the count of a request's span, if it is known from the previous page.
func (m *pageCounts) remaining(req *kv.RangeRequest) (remaining, bool) {
	if req.Revision <= 0 {
		return remaining{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.entries[pageKey{req.Revision, string(req.Start), string(req.End)}]
	return n, ok
}

// remember records the number of keys after a page.
func (m *pageCounts) remember(req *kv.RangeRequest, res *kv.RangeResult) {
	rev := req.Revision
	if rev <= 0 {
		rev = res.Revision
	}
	key := pageKey{rev, string(afterPage(res)), string(req.End)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.entries[key]; !ok {
		if len(m.order) < pageCountsSize {
			m.order = append(m.order, key)
		} else {
			delete(m.entries, m.order[m.next])
			m.order[m.next] = key
			m.next = (m.next + 1) % pageCountsSize
		}
	}
	m.entries[key] = remaining{res.Count - int64(len(res.KVs)), req.Limit}
}
