package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
)

// stream is one watch stream at the message level.
type stream struct {
	t testing.TB
	pb.Watch_WatchClient
	got chan *pb.WatchResponse
}

func openStream(t testing.TB, c *clientv3.Client) *stream {
	t.Helper()
	w, err := pb.NewWatchClient(c.ActiveConnection()).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &stream{t, w, make(chan *pb.WatchResponse, 1000)}
	go func() {
		defer close(s.got)
		for {
			r, err := w.Recv()
			if err != nil {
				return
			}
			s.got <- r
		}
	}()
	return s
}

func (s *stream) create(r *pb.WatchCreateRequest) {
	s.t.Helper()
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

func (s *stream) cancel(id int64) {
	s.t.Helper()
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: id}}})
}

func (s *stream) progress() {
	s.t.Helper()
	s.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

func (s *stream) send(r *pb.WatchRequest) {
	s.t.Helper()
	if err := s.Send(r); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stream) next() *pb.WatchResponse {
	s.t.Helper()
	select {
	case r, ok := <-s.got:
		if !ok {
			s.t.Fatal("the stream ended")
		}
		return r
	case <-time.After(20 * time.Second):
		s.t.Fatal("no message within 20 s")
	}
	return nil
}

// say formats a response, without the IDs of the cluster.
func say(r *pb.WatchResponse) string {
	out := fmt.Sprintf("watch %d rev %d", r.WatchId, r.Header.Revision)
	if r.Created {
		out += " created"
	}
	if r.Canceled {
		out += fmt.Sprintf(" canceled %q compacted %d", r.CancelReason, r.CompactRevision)
	}
	for _, e := range r.Events {
		out += fmt.Sprintf(" %s %s=%s", e.Type, e.Kv.Key, e.Kv.Value)
		if e.PrevKv != nil {
			out += fmt.Sprintf(" (was %s)", e.PrevKv.Value)
		}
	}
	return out
}

// TestWatchStream runs one script with etcd and with Atoll and compares every message.
func TestWatchStream(t *testing.T) {
	_, atoll := serve(t, openAtoll(t), etcd.Options{})
	want := playWatchScript(t, startReferee(t))
	got := playWatchScript(t, atoll)
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("message %d: Atoll sends %s, etcd sends %s", i, g, w)
		}
	}
}

func playWatchScript(t *testing.T, c *clientv3.Client) []string {
	t.Helper()
	ctx := t.Context()
	put := func(key, value string) {
		if _, err := c.Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		put("a", fmt.Sprint(i))
	}
	if _, err := c.Compact(ctx, 4); err != nil {
		t.Fatal(err)
	}
	s := openStream(t, c)
	var log []string
	expect := func(n int) {
		t.Helper()
		for range n {
			log = append(log, say(s.next()))
		}
	}
	a := []byte("a")
	s.create(&pb.WatchCreateRequest{Key: a})
	expect(1)
	s.create(&pb.WatchCreateRequest{Key: a, WatchId: 5, PrevKv: true})
	expect(1)
	s.create(&pb.WatchCreateRequest{Key: a, WatchId: 5})
	expect(1)
	s.create(&pb.WatchCreateRequest{Key: []byte("x"), RangeEnd: []byte("a")})
	expect(1)
	s.create(&pb.WatchCreateRequest{Key: a, StartRevision: -1})
	expect(1)
	s.create(&pb.WatchCreateRequest{Key: []byte("b"), RangeEnd: []byte("c"), Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT}})
	expect(1)
	s.progress()
	expect(1) // for the stream
	put("b", "1")
	if _, err := c.Delete(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	expect(1)
	s.cancel(0)
	expect(1)
	put("a", "6")
	expect(1)
	s.cancel(99) // no answer
	s.progress()
	expect(1)
	// History, down to the compaction revision.
	s.create(&pb.WatchCreateRequest{Key: a, StartRevision: 5, WatchId: 20})
	expect(2)
	s.create(&pb.WatchCreateRequest{Key: a, StartRevision: 3, WatchId: 21})
	expect(1)
	end := s.next()
	end.Header.Revision = 0
	log = append(log, say(end))
	return log
}

// TestProgressOfAll checks that a response for the whole stream is valid for each of its
// watches.
func TestProgressOfAll(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{})
	s := openStream(t, c)
	const watches = 20
	for i := range watches {
		s.create(&pb.WatchCreateRequest{Key: fmt.Appendf(nil, "k%d", i), WatchId: int64(i + 1)})
	}
	for range watches {
		if r := s.next(); !r.Created {
			t.Fatalf("got %s", say(r))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	written := make(chan int64, 1)
	go func() {
		var last int64
		for i := 0; ctx.Err() == nil; i++ {
			if r, err := c.Put(t.Context(), fmt.Sprintf("k%d", i%watches), "x"); err == nil {
				last = r.Header.Revision
			}
		}
		written <- last
	}()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for ctx.Err() == nil {
			s.progress()
			time.Sleep(time.Millisecond)
		}
	}()
	reported := map[int64]int64{}
	var forAll, forOne, events int
	check := func(r *pb.WatchResponse) {
		for _, e := range r.Events {
			events++
			if e.Kv.ModRevision <= reported[r.WatchId] {
				t.Fatalf("watch %d: event of revision %d after progress to %d", r.WatchId, e.Kv.ModRevision, reported[r.WatchId])
			}
		}
		switch {
		case r.WatchId == -1:
			forAll++
			for id := range int64(watches) {
				if reported[id+1] > r.Header.Revision {
					t.Fatalf("watch %d: progress for all to %d after %d", id+1, r.Header.Revision, reported[id+1])
				}
				reported[id+1] = r.Header.Revision
			}
		default:
			if len(r.Events) == 0 {
				forOne++
			}
			reported[r.WatchId] = r.Header.Revision
		}
	}
	var last int64
	for last == 0 {
		select {
		case r := <-s.got:
			check(r)
		case last = <-written:
		}
	}
	<-asked // a stream has one sender at a time
	s.progress()
	for caughtUp := false; !caughtUp; {
		check(s.next())
		caughtUp = true
		for id := range int64(watches) {
			caughtUp = caughtUp && reported[id+1] >= last
		}
	}
	if int64(events) != last-1 {
		t.Errorf("%d events of %d changes", events, last-1)
	}
	t.Logf("%d events, %d progress responses for all watches, %d for one", events, forAll, forOne)
}

// heldKeyspace has watches whose responses the test sends.
type heldKeyspace struct {
	kv.Keyspace
	watches chan *heldWatch
}

type heldWatch struct {
	out   chan kv.WatchResponse
	calls chan struct{}
}

func (k *heldKeyspace) Watch(context.Context, kv.WatchRequest) (kv.Watch, error) {
	w := &heldWatch{make(chan kv.WatchResponse), make(chan struct{}, 10)}
	k.watches <- w
	return w, nil
}

func (w *heldWatch) Responses() <-chan kv.WatchResponse { return w.out }

func (w *heldWatch) RequestProgress() { w.calls <- struct{}{} }

// TestProgressAnswersItsRequest checks that a client that repeats a request while an answer
// is in transit gets an answer to that request, too. The first answer may have an older
// revision than the client knows.
func TestProgressAnswersItsRequest(t *testing.T) {
	k := &heldKeyspace{openAtoll(t), make(chan *heldWatch, 1)}
	_, c := serve(t, k, etcd.Options{})
	s := openStream(t, c)
	s.create(&pb.WatchCreateRequest{Key: []byte("k"), WatchId: 7})
	s.next()
	w := <-k.watches
	defer close(w.out)
	for range 2 {
		s.progress()
		<-w.calls
	}
	for i, want := range []string{"watch 7 rev 5", "watch 7 rev 9"} {
		w.out <- kv.WatchResponse{Revision: kv.Revision(5 + 4*i), Progress: true, Answers: int64(i + 1)}
		if got := say(s.next()); got != want {
			t.Errorf("answer %d: got %s, want %s", i+1, got, want)
		}
	}
	s.progress()
	<-w.calls
	w.out <- kv.WatchResponse{Revision: 9, Progress: true, Answers: 3}
	if got, want := say(s.next()), "watch -1 rev 9"; got != want {
		t.Errorf("request with none open: got %s, want %s", got, want)
	}
}

func TestFragments(t *testing.T) {
	_, c := serve(t, openAtoll(t), etcd.Options{MaxRequestBytes: 100_000})
	value := string(bytes.Repeat([]byte("x"), 30_000))
	var revs []int64
	for i := range 3 {
		r, err := c.Txn(t.Context()).Then(
			clientv3.OpPut("a", value), clientv3.OpPut("b", value), clientv3.OpPut("c", fmt.Sprint(i))).Commit()
		if err != nil {
			t.Fatal(err)
		}
		revs = append(revs, r.Header.Revision)
	}
	s := openStream(t, c)
	s.create(&pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("z"), StartRevision: revs[0], Fragment: true})
	if r := s.next(); !r.Created {
		t.Fatalf("got %s", say(r))
	}
	var events, parts int
	for events < 9 {
		r := s.next()
		if r.Size() > 100_000+512 {
			t.Errorf("a fragment has %d bytes", r.Size())
		}
		if r.Fragment {
			parts++
		}
		events += len(r.Events)
	}
	if parts == 0 {
		t.Error("180 kB were sent in one piece")
	}
}

// TestClientThatDoesNotRead checks that a client that does not read its stream delays no
// other client, and loses nothing when it continues.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	_, c := serve(t, openAtoll(t), etcd.Options{})
	lazy, err := pb.NewWatchClient(c.ActiveConnection()).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("k")}}}
	if err := lazy.Send(create); err != nil {
		t.Fatal(err)
	}
	if r, err := lazy.Recv(); err != nil || !r.Created {
		t.Fatalf("create: %v, %v", r, err)
	}
	busy := c.Watch(t.Context(), "k")
	const n = 300
	padding := bytes.Repeat([]byte("x"), 50_000) // more than all buffers on the way can hold
	go func() {
		for i := range n {
			if _, err := c.Put(t.Context(), "k", fmt.Sprintf("%d %s", i, padding)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	check := func(i int, value []byte) {
		t.Helper()
		if !bytes.HasPrefix(value, fmt.Appendf(nil, "%d ", i)) {
			t.Fatalf("event %d has value %.10s", i, value)
		}
	}
	for i := 0; i < n; {
		select {
		case r := <-busy:
			for _, e := range r.Events {
				check(i, e.Kv.Value)
				i++
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the other client waits for event %d", i)
		}
	}
	for i := 0; i < n; {
		r, err := lazy.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			check(i, e.Kv.Value)
			i++
		}
	}
}
