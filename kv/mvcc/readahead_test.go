package mvcc_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// pagedTable counts the pages read from it, and can delay or fail them.
type pagedTable struct {
	*conn
	pages atomic.Int64
	// before is called before a page is read.
	before atomic.Pointer[func(ctx context.Context, req kv.RangeRequest) error]
}

func (p *pagedTable) Range(ctx context.Context, req kv.RangeRequest, wantCount bool) (*kv.RangeResult, kv.Head, error) {
	if req.Limit > 0 {
		p.pages.Add(1)
		if f := p.before.Load(); f != nil {
			if err := (*f)(ctx, req); err != nil {
				return nil, kv.Head{}, err
			}
		}
	}
	return p.conn.Range(ctx, req, wantCount)
}

func (p *pagedTable) do(f func(ctx context.Context, req kv.RangeRequest) error) { p.before.Store(&f) }

// hold blocks reads of pages until release is called, or their context ends.
func (p *pagedTable) hold() (release func()) {
	c := make(chan struct{})
	p.do(func(ctx context.Context, _ kv.RangeRequest) error {
		select {
		case <-c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return func() { p.before.Store(nil); close(c) }
}

// paged is a server with read-ahead, and another server on the same table.
type paged struct {
	*store
	table *pagedTable
	other *store
}

// openPaged opens a store that counts page reads. Unless a clock is given, time stands
// still: however slow the machine is, no page is dropped before it is requested.
func openPaged(t testing.TB, opts mvcc.Options) *paged {
	t.Helper()
	if opts.Clock == nil {
		opts.Clock = clocktesting.NewFakeClock(time.Now())
	}
	shared, db := newSharedDB(t, network{poll: 10 * time.Millisecond})
	table := &pagedTable{conn: &conn{sharedDB: shared}}
	open := func(table kv.Table, opts mvcc.Options) *store {
		k, err := mvcc.Open(context.Background(), table, db, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		return &store{k, t, db}
	}
	return &paged{open(table, opts), table, open(&conn{sharedDB: shared, id: 1}, mvcc.Options{})}
}

// fill puts k00 to k(n-1), one revision each.
func (p *paged) fill(n int, value string) {
	for i := range n {
		p.put(fmt.Sprintf("k%02d", i), value)
	}
}

func (p *paged) settled() {
	p.t.Helper()
	p.until(func(_ int, reading int) bool { return reading == 0 })
}

// until waits for a condition on the number of pages and reads under way.
func (p *paged) until(ok func(pages, reading int) bool) {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		pages, bytes, reading := p.Ahead()
		if ok(pages, reading) {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d pages of %d bytes, %d reads under way", pages, bytes, reading)
		}
	}
}

func (p *paged) wantPages(when string, n int64) {
	p.t.Helper()
	p.settled()
	if got := p.table.pages.Load(); got != n {
		p.t.Errorf("%s: %d pages were read, want %d", when, got, n)
	}
}

// reader reads a list page by page.
type reader struct {
	p   *paged
	req kv.RangeRequest
}

func (p *paged) reader(limit int64) *reader {
	return &reader{p, kv.RangeRequest{Span: kv.Prefix([]byte("k")), Limit: limit}}
}

func (r *reader) ask() (*kv.RangeResult, error) {
	res, err := r.p.Range(context.Background(), r.req)
	if err == nil {
		if r.req.Revision == 0 {
			r.req.Revision = res.Revision
		}
		if res.More {
			r.req.Start = append(bytes.Clone(res.KVs[len(res.KVs)-1].Key), 0)
		}
	}
	return res, err
}

func (r *reader) next() *kv.RangeResult {
	r.p.t.Helper()
	res, err := r.ask()
	if err != nil {
		r.p.t.Fatal(err)
	}
	return res
}

// TestReadAhead checks that each page is the same as without read-ahead, including the
// head, and is read from the table once.
func TestReadAhead(t *testing.T) {
	for _, serializable := range []bool{false, true} {
		for _, keysOnly := range []bool{false, true} {
			p := openPaged(t, mvcc.Options{})
			p.fill(25, "v")
			r := p.reader(4)
			r.req.Serializable, r.req.KeysOnly = serializable, keysOnly
			at := kv.Revision(26)
			for page := range 7 {
				p.settled()
				before := p.table.pages.Load()
				res := r.next()
				if page >= 2 && before != int64(page+1) {
					t.Errorf("%d pages were read before page %d was requested", before, page+1)
				}
				want := p.other.list("k", "l", 26)
				full, err := p.other.Range(t.Context(), kv.RangeRequest{Span: span(string(res.KVs[0].Key), "l"), Revision: 26, Limit: 4, KeysOnly: keysOnly})
				if err != nil {
					t.Fatal(err, want)
				}
				expect(t, "page", show(res), show(full))
				if left := int64(25 - 4*page); res.Count != left {
					t.Errorf("page %d has count %d, want %d", page+1, res.Count, left)
				}
				if res.Revision != at && !serializable || res.Revision > at {
					t.Errorf("page %d has revision %d, the keyspace is at %d", page+1, res.Revision, at)
				}
				// For each page another server changes a key after it, and one before it.
				p.settled()
				p.other.put(fmt.Sprintf("k%02d", page*4+3), "changed")
				p.other.del(fmt.Sprintf("k%02d", page*4+6), "")
				if at = p.other.put("k99", "new"); serializable {
					p.put("x", "seen by this server")
					at++
				}
			}
			p.wantPages("in all", 7)
			if pages, bytes, _ := p.Ahead(); pages != 0 || bytes != 0 {
				t.Errorf("%d pages of %d bytes are left", pages, bytes)
			}
		}
	}
}

// TestReadAheadOnlyForListers checks that nothing is read ahead before a client has
// requested a second page, nor if the next page cannot be predicted.
func TestReadAheadOnlyForListers(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(40, "v")
	p.reader(10).next()
	p.wantPages("one page", 1)
	r := p.reader(20)
	r.next()
	r.next()
	p.wantPages("two pages of two", 3)
	r = p.reader(2)
	for r.next().More {
		r.req.Limit *= 2
	}
	p.wantPages("larger each time", 8)
	r = p.reader(5)
	r.req.SortOrder = kv.SortAscend
	for r.next().More {
	}
	p.wantPages("sorted", 8)
}

// TestReadAheadOnce checks that a page is handed out once; a second request reads it from
// the table.
func TestReadAheadOnce(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(50, "v")
	r := p.reader(5)
	r.next()
	r.next()
	p.wantPages("after the second", 3)
	again := *r
	expect(t, "again", show(again.next()), show(r.next()))
	p.wantPages("asked twice", 5) // page 3, page 4 once
	r.req.Limit = 6
	r.next()
	p.wantPages("another limit", 6)
}

// TestReadAheadCompacted checks that a page is refused if any server has compacted its
// revision meanwhile.
func TestReadAheadCompacted(t *testing.T) {
	for _, serializable := range []bool{false, true} {
		p := openPaged(t, mvcc.Options{})
		p.fill(50, "v")
		r := p.reader(5)
		r.req.Serializable = serializable
		r.next()
		r.next()
		p.settled()
		rev := p.other.put("x", "")
		server := p.other
		if serializable {
			server = p.store // it need not learn of the other's commits
		}
		if _, err := server.Compact(t.Context(), rev, false); err != nil {
			t.Fatal(err)
		}
		_, err := r.ask()
		expectErr(t, err, kv.ErrCompacted)
	}
}

// TestReadAheadDropped checks that a page that is not requested is dropped, and that a list
// leaves at most one.
func TestReadAheadDropped(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	p := openPaged(t, mvcc.Options{Clock: clock})
	p.fill(50, "v")
	r := p.reader(5)
	for range 4 {
		r.next()
	}
	p.wantPages("four requested", 5)
	p.until(func(pages, _ int) bool { return pages == 1 })
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		clock.Step(500 * time.Millisecond) // it may not wait for the clock yet
		if pages, bytes, _ := p.Ahead(); pages == 0 {
			if bytes != 0 {
				t.Errorf("%d bytes without a page", bytes)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the page was not dropped")
		}
	}
	r.next()
	p.wantPages("read again, and the next ahead", 7)
}

// TestReadAheadUnderWay checks that a request for a page that is being read waits for it,
// until its context ends.
func TestReadAheadUnderWay(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(50, "v")
	r := p.reader(5)
	r.next()
	r.next()
	p.settled()
	release := p.table.hold()
	expect(t, "third", show(r.next())[:3], "k10")
	few, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err := p.Range(few, r.req)
	expectErr(t, err, context.DeadlineExceeded)
	release()
	expect(t, "fourth", show(r.next())[:3], "k15")
	p.settled()

	release = p.table.hold()
	expect(t, "fifth", show(r.next())[:3], "k20") // and the sixth is begun
	p.until(func(pages, reading int) bool { return pages == 1 && reading == 1 })
	done := make(chan string)
	go func() { done <- show(r.next()) }()
	p.until(func(pages, reading int) bool { return pages == 0 && reading == 1 })
	release()
	expect(t, "sixth", (<-done)[:3], "k25")
}

// TestReadAheadFails checks that after a failed read the page is read when it is requested.
func TestReadAheadFails(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(50, "v")
	r := p.reader(5)
	r.next()
	n := p.table.pages.Load()
	p.table.do(func(context.Context, kv.RangeRequest) error {
		if p.table.pages.Load() == n+2 {
			return kv.ErrUnavailable
		}
		return nil
	})
	r.next()
	p.settled()
	if pages, bytes, _ := p.Ahead(); pages != 0 || bytes != 0 {
		t.Errorf("%d pages of %d bytes are kept after a failed read", pages, bytes)
	}
	expect(t, "third", show(r.next())[:3], "k10")
	p.wantPages("third again, and fourth", 5)

	// The same while a caller waits for it.
	entered, leave := make(chan struct{}), make(chan struct{})
	p.table.do(func(context.Context, kv.RangeRequest) error {
		p.table.before.Store(nil)
		close(entered)
		<-leave
		return kv.ErrUnavailable
	})
	r.next() // the fourth, and the fifth is begun
	<-entered
	done := make(chan string)
	go func() { done <- show(r.next()) }()
	p.until(func(pages, reading int) bool { return pages == 0 && reading == 1 })
	close(leave)
	expect(t, "fifth", (<-done)[:3], "k20")
}

// TestReadAheadClose checks that Close ends reads under way and drops pages.
func TestReadAheadClose(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(50, "v")
	kept, held := p.reader(5), p.reader(4)
	kept.next()
	kept.next()
	p.wantPages("kept", 3)
	held.next()
	p.table.do(func(context.Context, kv.RangeRequest) error { p.table.hold(); return nil })
	held.next()
	p.until(func(pages, reading int) bool { return pages == 2 && reading == 1 })
	failed := make(chan error)
	go func() { _, err := held.ask(); failed <- err }()
	p.until(func(pages, _ int) bool { return pages == 1 })
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("Close does not return")
	}
	expectErr(t, <-failed, kv.ErrClosed)
	_, err := kept.ask()
	expectErr(t, err, kv.ErrClosed)
	if pages, bytes, reading := p.Ahead(); pages != 0 || bytes != 0 || reading != 0 {
		t.Errorf("%d pages of %d bytes are left, %d reads under way", pages, bytes, reading)
	}
}

// TestReadAheadBounds checks the bounds of concurrent reads, pages and bytes; lists beyond
// them are read without read-ahead.
func TestReadAheadBounds(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	p.fill(60, string(make([]byte, 100<<10)))
	begin := func(limit int64) { r := p.reader(limit); r.next(); r.next() }
	for limit := int64(20); limit > 0; limit-- { // keys of 100 KiB
		begin(limit)
		p.settled()
	}
	if pages, bytes, _ := p.Ahead(); pages > 16 || bytes > 16<<20 || bytes < 15<<20 {
		t.Errorf("%d pages of %d bytes are kept", pages, bytes)
	}

	p = openPaged(t, mvcc.Options{})
	p.fill(60, "v")
	for limit := int64(1); limit <= 20; limit++ {
		begin(limit)
		p.settled()
	}
	if pages, _, _ := p.Ahead(); pages != 16 {
		t.Errorf("%d pages are kept", pages)
	}

	p = openPaged(t, mvcc.Options{})
	p.fill(60, "v")
	var first []*reader
	for limit := range int64(6) {
		r := p.reader(limit + 7)
		r.next()
		first = append(first, r)
	}
	var seen sync.Map // second pages pass, third ones wait
	leave := make(chan struct{})
	p.table.do(func(_ context.Context, req kv.RangeRequest) error {
		if _, second := seen.LoadOrStore(req.Limit, true); second {
			<-leave
		}
		return nil
	})
	for _, r := range first {
		r.next()
	}
	p.until(func(pages, reading int) bool { return pages == 4 && reading == 4 })
	close(leave)
	p.settled()

	p = openPaged(t, mvcc.Options{})
	p.fill(9, string(make([]byte, 1<<20)))
	begin(4) // of a little more than 4 MiB
	p.wantPages("large pages", 2)
}

// TestReadAheadConcurrent runs many readers, writers and compactions on two servers. A list
// is always the state at its revision, and no page has an older head than the last
// acknowledged one.
func TestReadAheadConcurrent(t *testing.T) {
	p := openPaged(t, mvcc.Options{})
	const keys = 60
	p.fill(keys, "0")
	var acknowledged, lists atomic.Int64
	stop := make(chan struct{})
	var writers, readers sync.WaitGroup
	for w, s := range []*store{p.store, p.other} {
		writers.Go(func() {
			for i := w; ; i += 2 {
				select {
				case <-stop:
					return
				default:
				}
				// All keys of one transaction have one value.
				value := fmt.Sprint(i)
				rev := s.txn(kv.TxnRequest{Then: []kv.Op{put(fmt.Sprintf("k%02d", i%30), value), put(fmt.Sprintf("k%02d", 30+i%30), value)}}).Revision
				for old := acknowledged.Load(); rev > old && !acknowledged.CompareAndSwap(old, rev); old = acknowledged.Load() {
				}
				if i%200 == 199 {
					_, _ = s.Compact(context.Background(), rev-20, false)
				}
			}
		})
	}
	for n := range int64(8) {
		readers.Go(func() {
			for range 15 {
				r := p.reader(3 + n/2)
				values := map[string]string{}
				for {
					known := acknowledged.Load()
					res, err := r.ask()
					if err != nil {
						expectErr(t, err, kv.ErrCompacted)
						break
					}
					if res.Revision < known {
						t.Errorf("a page has revision %d after revision %d was acknowledged", res.Revision, known)
					}
					for _, e := range res.KVs {
						values[string(e.Key)] = string(e.Value)
					}
					if res.More {
						continue
					}
					for i := range 30 {
						if a, b := values[fmt.Sprintf("k%02d", i)], values[fmt.Sprintf("k%02d", 30+i)]; a != b || a == "" {
							t.Errorf("keys %d of one transaction: %q and %q", i, a, b)
						}
					}
					lists.Add(1)
					break
				}
			}
		})
	}
	readers.Wait()
	close(stop)
	writers.Wait()
	if lists.Load() == 0 {
		t.Error("no list was read completely")
	}
	t.Logf("%d lists, %d pages read, revision %d", lists.Load(), p.table.pages.Load(), acknowledged.Load())
}
