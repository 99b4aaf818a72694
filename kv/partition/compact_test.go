package partition_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestCompact checks that a compaction of the parent compacts a partition at its revision
// at that time.
func TestCompact(t *testing.T) {
	s := newStore(t, "b/")
	clock := testclock.NewFakeClock(time.Now())
	s.opts.Clock, s.opts.SampleInterval = clock, 10*time.Second
	s.open()
	compacted := func() kv.Revision {
		t.Helper()
		st, err := s.opened["b/"].Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.Compacted
	}
	begin := s.put("b/1", "")
	var early, late kv.Revision
	for i := range 5 {
		early = s.put("b/1", fmt.Sprint(i))
	}
	at := s.put("a", "1")
	// A sample is taken after the interval, and affects the next compaction.
	eventually(t, "a sample", func() bool { clock.Step(10 * time.Second); return s.Sampled("b/", at) >= early })
	for i := range 5 {
		late = s.put("b/1", fmt.Sprint("late", i))
	}
	s.put("a", "2")
	if _, err := s.Compact(t.Context(), at-1, true); err != nil {
		t.Fatal(err)
	}
	if got := compacted(); got > early {
		t.Errorf("a compaction of an earlier revision has compacted the partition at %d, want at most %d", got, early)
	}
	if _, err := s.Compact(t.Context(), at, true); err != nil {
		t.Fatal(err)
	}
	if got := compacted(); got < early || got >= late {
		t.Errorf("partition compacted at %d; at parent revision %d it was at %d, and is at %d now", got, at, early, late)
	}
	// Errors contain the revisions of the keyspace they concern.
	_, err := s.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("b/")), Revision: begin})
	if !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("read at a compacted revision: %v", err)
	}
	if _, err := s.Compact(t.Context(), at, false); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("repeated compaction: %v", err)
	}
	if _, err := s.Compact(t.Context(), at+100, false); !errors.Is(err, kv.ErrFutureRevision) {
		t.Errorf("compaction at a future revision: %v", err)
	}

	// A restart loses the timeline, and revisions that it does not cover are not compacted.
	before := compacted()
	later := s.put("a", "3")
	s.put("b/1", "after")
	s.close()
	s.open()
	if _, err := s.Compact(t.Context(), later-1, true); err != nil {
		t.Fatal(err)
	}
	if got := compacted(); got != before {
		t.Errorf("after a restart the partition was compacted at %d, from %d", got, before)
	}
}
