package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/atoll-dev/atoll/kv"
)

// A progress request applies to all watches of a stream. etcd answers with one response for
// the stream (watch ID -1, which clients pass to every watch) if all of them are
// synchronized, and otherwise not at all. Here the keyspace answers for each watch, and the
// answers are combined:
//
//   - If all watches of the stream have answered, and no watch has already been sent a
//     revision above the lowest of theirs, one response with that revision is sent for the
//     stream.
//   - Otherwise each watch that answered gets its own revision under its own ID. So a busy
//     stream, or one with a watch that is far behind, still gets answers. This is always
//     the case if the watches are in several partitions, because no revision is valid for
//     all of them.
//
// A request is answered with a revision at least as high as the keyspace's when the request
// came. An answer that was in transit at that moment is passed on, and the next one is
// awaited.
//
// In both cases no event at or below a reported revision follows on the same watch.
// watchStream.mu guards all of this.

func (s *watchStream) requestProgress() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		// The client repeats the request while some watches have not answered: the others
		// do not wait for them, now or the next time.
		for _, w := range s.watches {
			w.late = w.open != 0
		}
		s.waiting = 0
		if err := s.answer(); err != nil {
			return err
		}
	}
	for _, w := range s.watches {
		if w.open == 0 {
			s.waiting++
		}
		w.calls++
		w.open = w.calls
		w.watch.RequestProgress()
	}
	return nil
}

// progressed records that a watch has delivered everything up to rev. The report may belong
// to a request before the open one, or to none.
func (s *watchStream) progressed(w *streamWatch, rev kv.Revision, answers int64) error {
	rev = max(rev, w.reported)
	done := w.open != 0 && answers >= w.open
	if done && !w.late {
		w.reached = rev
		return s.answered(w)
	}
	tell := w.late || w.notify
	if done {
		w.open, w.late = 0, false
	}
	if tell {
		return s.sendProgress(w, rev)
	}
	return nil
}

// answered counts a watch that has answered, or will not answer any more.
func (s *watchStream) answered(w *streamWatch) error {
	if w.open == 0 {
		return nil
	}
	wasLate := w.late
	w.open, w.late = 0, false
	if wasLate {
		return nil
	}
	if s.waiting--; s.waiting > 0 {
		return nil
	}
	return s.answer()
}

// answer sends the watches' answers to the client.
func (s *watchStream) answer() error {
	var lowest, highest kv.Revision
	all, some := true, false
	part := -1
	for _, w := range s.watches {
		if part >= 0 && w.part != part {
			all = false
		}
		part = w.part
		highest = max(highest, w.reported)
		if w.reached == 0 {
			all = false
			continue
		}
		// Events may have been sent since the watch answered.
		w.reached = max(w.reached, w.reported)
		if !some || w.reached < lowest {
			lowest = w.reached
		}
		some = true
	}
	if !some {
		return nil
	}
	if all && lowest >= highest {
		for _, w := range s.watches {
			w.reached, w.reported = 0, lowest
		}
		return s.end.Send(&pb.WatchResponse{Header: s.f.header(lowest), WatchId: noWatch})
	}
	for _, w := range s.watches {
		if w.reached > 0 {
			if err := s.sendProgress(w, w.reached); err != nil {
				return err
			}
			w.reached = 0
		}
	}
	return nil
}

func (s *watchStream) sendProgress(w *streamWatch, rev kv.Revision) error {
	w.reported = rev
	return s.end.Send(&pb.WatchResponse{Header: s.f.header(rev), WatchId: w.id})
}
