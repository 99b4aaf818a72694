package etcd

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/atoll-dev/atoll/kv"
)

// A progress request concerns all watches of a stream. etcd answers with one
// response for the stream (watch id -1, which clients hand to every watch) if
// all of them are in step, and not at all otherwise. Here the keyspace answers
// for each watch, and the answers are put together:
//
//   - when all watches of the stream have answered, and the lowest of their
//     revisions is one that no watch has been told to be past, one response
//     for the stream goes out with that revision;
//   - otherwise each that answered is told its own revision under its own id,
//     so that a stream with much going on, or with one watch that is far
//     behind, still gets what it asked for. So it is always when the watches are
//     of several partitions: no one revision is true of all.
//
// A request is answered with a revision that the keyspace was at when the request
// came, or later: an answer that was on its way then is passed on, and the next
// is waited for.
//
// Either way nothing at or below a revision follows it on the same watch. All
// of this happens under watchStream.mu.

func (s *watchStream) requestProgress() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > 0 {
		// The client asks again while some have not answered: those who have
		// shall not wait for them, now or the next time.
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

// progressed takes the keyspace's word that a watch has delivered everything
// up to rev. It may be meant for a request before the open one, or for none.
func (s *watchStream) progressed(w *streamWatch, rev kv.Revision, answers int64) error {
	rev = max(rev, w.told)
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

// answered counts a watch that has answered, or will not any more.
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

// answer tells the client what the watches have answered.
func (s *watchStream) answer() error {
	var lowest, told kv.Revision
	all, some := true, false
	part := -1
	for _, w := range s.watches {
		if part >= 0 && w.part != part {
			all = false
		}
		part = w.part
		told = max(told, w.told)
		if w.reached == 0 {
			all = false
			continue
		}
		// Events may have come since the watch answered.
		w.reached = max(w.reached, w.told)
		if !some || w.reached < lowest {
			lowest = w.reached
		}
		some = true
	}
	if !some {
		return nil
	}
	if all && lowest >= told {
		for _, w := range s.watches {
			w.reached, w.told = 0, lowest
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
	w.told = rev
	return s.end.Send(&pb.WatchResponse{Header: s.f.header(rev), WatchId: w.id})
}
