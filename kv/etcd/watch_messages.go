package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/atoll-dev/atoll/kv"
)

// fragmentOverhead is the amount above the maximum request size at which etcd splits a
// response.
const fragmentOverhead = 512

// portion returns the number of events for one message: whole revisions, up to the maximum
// request size. A watch that catches up gets many events at once, and other clients than
// etcd's own limit the message size.
func (f *adapter) portion(events []kv.Event) int {
	size := 0
	for i := range events {
		e := &events[i]
		if size >= f.maxRequestBytes && e.KV.ModRevision != events[i-1].KV.ModRevision {
			return i
		}
		size += len(e.KV.Key) + len(e.KV.Value)
		if e.Prev != nil {
			size += len(e.Prev.Key) + len(e.Prev.Value)
		}
	}
	return len(events)
}

func (s *watchStream) sendEvents(w *streamWatch, rev kv.Revision, events []kv.Event) error {
	w.reported = max(w.reported, rev)
	resp := &pb.WatchResponse{Header: s.f.header(rev), WatchId: w.id, Events: eventsToPB(events)}
	if w.fragment {
		return s.sendFragments(resp)
	}
	return s.end.Send(resp)
}

// sendFragments splits a response that is larger than the maximum request size, between
// events; a single event is never split.
func (s *watchStream) sendFragments(resp *pb.WatchResponse) error {
	limit := s.f.maxRequestBytes + fragmentOverhead
	if len(resp.Events) < 2 || resp.Size() < limit {
		return s.end.Send(resp)
	}
	empty := &pb.WatchResponse{Header: resp.Header, WatchId: resp.WatchId, Fragment: true}
	overhead := empty.Size()
	// tagAndLength is above the encoding overhead of an event.
	const tagAndLength = 8
	for rest := resp.Events; len(rest) > 0; {
		n, size := 0, overhead
		for n < len(rest) {
			size += rest[n].Size() + tagAndLength
			if n > 0 && size >= limit {
				break
			}
			n++
		}
		part := &pb.WatchResponse{Header: resp.Header, WatchId: resp.WatchId, Events: rest[:n:n], Fragment: n < len(rest)}
		if err := s.end.Send(part); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}
