package etcd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// noWatch is the ID in responses that apply to no watch, or to all of a stream.
const noWatch = -1

const watchMethod = "/etcdserverpb.Watch/Watch"

// etcd's reasons for refusing a watch; it does not export them.
const (
	reasonEmptyRange  = "mvcc: watcher range is empty"
	reasonDuplicateID = "mvcc: duplicate watch ID provided on the WatchStream"
)

// watchEnd is the server's end of a watch stream, over gRPC or in process.
type watchEnd interface {
	Context() context.Context
	Send(*pb.WatchResponse) error
	Recv() (*pb.WatchRequest, error)
}

// watchStream multiplexes any number of watches. Each has a goroutine that receives
// responses from the keyspace. mu, which is held while sending, orders their messages and
// the answers to the client's requests. So a client that does not read blocks only the
// watches of its own stream.
type watchStream struct {
	f      *adapter
	end    watchEnd
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	watches map[int64]*streamWatch
	nextID  int64
	// seen is the highest revision on this stream, for headers, by partition, because
	// revisions of different partitions are not comparable.
	seen map[int]kv.Revision
	// waiting counts the watches that the open progress request waits for.
	waiting int
}

type streamWatch struct {
	id       int64
	part     int // its partition
	watch    kv.Watch
	cancel   context.CancelFunc
	done     func() // of the limit
	closed   bool
	fragment bool
	// notify: the client requested periodic progress.
	notify bool

	// reported is the highest revision in a response to the client. No event at or below it
	// may follow.
	reported kv.Revision
	// State of progress requests, see progress.go.
	calls   int64 // of RequestProgress
	open    int64 // the call without an answer yet, 0: none
	late    bool
	reached kv.Revision
}

// serveWatch runs a stream until the client ends it or an error occurs.
func (f *adapter) serveWatch(end watchEnd) error {
	ctx, cancel := context.WithCancelCause(end.Context())
	s := &watchStream{f: f, end: end, ctx: ctx, cancel: cancel, watches: map[int64]*streamWatch{}, seen: map[int]kv.Revision{}}
	defer func() {
		s.mu.Lock()
		cancel(nil)
		s.mu.Unlock()
		s.wg.Wait()
	}()

	// Recv returns only when the client or the transport ends the stream, so it cannot be
	// interrupted if the keyspace fails: hence the separate goroutine.
	received := make(chan error, 1)
	go func() { received <- s.receive() }()
	select {
	case err := <-received:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return canceledWatch(err)
	case <-ctx.Done():
		return canceledWatch(context.Cause(ctx))
	}
}

// canceledWatch returns etcd's error for the end of a stream.
func canceledWatch(err error) error {
	if errors.Is(err, context.Canceled) {
		return rpctypes.ErrGRPCWatchCanceled
	}
	return err
}

func (s *watchStream) receive() error {
	for {
		req, err := s.end.Recv()
		if err != nil {
			return err
		}
		switch r := req.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			if r.CreateRequest != nil {
				err = s.create(r.CreateRequest)
			}
		case *pb.WatchRequest_CancelRequest:
			if r.CancelRequest != nil {
				err = s.cancelWatch(r.CancelRequest.WatchId)
			}
		case *pb.WatchRequest_ProgressRequest:
			if r.ProgressRequest != nil {
				err = s.requestProgress()
			}
		}
		if err != nil {
			return err
		}
	}
}

func (s *watchStream) create(r *pb.WatchCreateRequest) error {
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	span := kv.Span{Start: r.Key, End: r.RangeEnd}
	denied := s.f.access.check(s.ctx, watchMethod, operation{reads: []kv.Span{span}})
	// The revision in the answer is the start of a watch "from now on": clients resume from
	// it if the stream breaks before the first event.
	first := r.Key
	if denied != nil {
		first = []byte{0} // not a revision of a partition that is not the client's
	}
	rev, err := s.f.headRevisionOf(s.ctx, first)
	if err != nil {
		return toStatus(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	refuse := func(reason string) error {
		return s.end.Send(&pb.WatchResponse{
			Header: s.f.header(rev), WatchId: noWatch, Created: true, Canceled: true, CancelReason: reason,
		})
	}
	switch {
	case denied != nil:
		return refuse(denied.Error())
	case r.StartRevision < 0:
		return refuse(rpctypes.ErrCompacted.Error())
	case !span.Single() && !span.ToEnd() && bytes.Compare(span.Start, span.End) >= 0:
		return refuse(reasonEmptyRange)
	}
	id := r.WatchId
	if id == 0 {
		for s.watches[s.nextID] != nil {
			s.nextID++
		}
		id = s.nextID
		s.nextID++
	} else if s.watches[id] != nil {
		return refuse(reasonDuplicateID)
	}

	req := kv.WatchRequest{Span: span, StartRevision: r.StartRevision, PrevKV: r.PrevKv, ProgressNotify: r.ProgressNotify}
	if req.StartRevision == 0 {
		req.StartRevision = rev + 1
	}
	for _, filter := range r.Filters {
		switch filter {
		case pb.WatchCreateRequest_NOPUT:
			req.NoPut = true
		case pb.WatchCreateRequest_NODELETE:
			req.NoDelete = true
		}
	}
	done, reason := s.f.watchLimit.add(s.ctx)
	if reason != "" {
		return refuse(reason)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	watch, err := s.f.ks.Watch(ctx, req)
	if err != nil {
		cancel()
		done()
		if errors.Is(err, kv.ErrInvalidRequest) {
			return refuse(err.Error()) // the other watches of the stream continue
		}
		return toStatus(err)
	}
	// Only now: a watch begun before a split of the keyspace does not last.
	part := s.f.partition(span)
	s.seen[part] = max(s.seen[part], rev)
	w := &streamWatch{id: id, part: part, watch: watch, cancel: cancel, done: done, fragment: r.Fragment, notify: r.ProgressNotify}
	s.watches[id] = w
	if err := s.end.Send(&pb.WatchResponse{Header: s.f.header(rev), WatchId: id, Created: true}); err != nil {
		cancel()
		done()
		return err
	}
	s.wg.Add(1)
	go s.forward(w)
	return nil
}

// cancelWatch ends a watch. As in etcd, there is no answer for an unknown ID.
func (s *watchStream) cancelWatch(id int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watches[id]
	if w == nil {
		return nil
	}
	if err := s.remove(w); err != nil {
		return err
	}
	return s.end.Send(&pb.WatchResponse{Header: s.f.header(s.seen[w.part]), WatchId: id, Canceled: true})
}

// remove removes a watch. The caller holds mu.
func (s *watchStream) remove(w *streamWatch) error {
	w.closed = true
	w.cancel()
	delete(s.watches, w.id)
	return s.answered(w)
}

// forward sends the keyspace's responses for one watch to the client.
func (s *watchStream) forward(w *streamWatch) {
	defer s.wg.Done()
	defer w.done()
	defer w.cancel()
	for r := range w.watch.Responses() {
		if err := s.deliver(w, &r); err != nil {
			s.cancel(err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.closed && s.ctx.Err() == nil {
		// The keyspace ended the watch without a reason. The client must not be left with a
		// silent watch: if the stream breaks, it resumes elsewhere.
		s.cancel(rpctypes.ErrGRPCStopped)
	}
}

func (s *watchStream) deliver(w *streamWatch, r *kv.WatchResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.closed {
		return nil
	}
	s.seen[w.part] = max(s.seen[w.part], r.Revision)
	switch {
	case errors.Is(r.Err, kv.ErrCompacted):
		if err := s.remove(w); err != nil {
			return err
		}
		return s.end.Send(&pb.WatchResponse{
			Header: s.f.header(r.Revision), WatchId: w.id, Canceled: true, CompactRevision: r.CompactRevision,
		})
	case r.Err != nil:
		// Not the fault of the request. Clients resume all watches of a stream that breaks
		// as unavailable, but not canceled ones.
		return brokenStream(r.Err)
	case r.Progress:
		return s.progressed(w, r.Revision, r.Answers)
	case len(r.Events) == 0:
		return nil
	}
	for len(r.Events) > 0 {
		n := s.f.portion(r.Events)
		rev := r.Revision
		if n < len(r.Events) {
			rev = r.Events[n-1].KV.ModRevision
		}
		if err := s.sendEvents(w, rev, r.Events[:n]); err != nil {
			return err
		}
		r.Events = r.Events[n:]
	}
	return nil
}

func brokenStream(err error) error {
	st := toStatus(err)
	if code := status.Code(st); code == codes.Unavailable || code == codes.Canceled {
		return st
	}
	return status.Error(codes.Unavailable, "etcdserver: watch stream broke: "+err.Error())
}
