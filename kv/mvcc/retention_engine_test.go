package mvcc_test

import (
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestHistoryIsBounded checks that history never has more changes than permitted, except
// that those of the last minutes are kept.
func TestHistoryIsBounded(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	var cuts atomic.Int32
	s := openStore(t, mvcc.Options{
		Clock: clock, Retention: mvcc.Retention{MaxChanges: 100},
		Observer: mvcc.Observer{EarlyCompaction: func() { cuts.Add(1) }},
	})
	for range 200 {
		s.put("a", "young")
	}
	before, err := s.History(t.Context())
	if err != nil || before.Changes != 200 {
		t.Fatalf("%+v, %v", before, err)
	}
	// The keyspace may have taken its first sample between two of the writes. Then its first compaction is at that sample,
	// and history is short enough only after the next one.
	h := before
	for deadline := time.Now().Add(20 * time.Second); h.Changes > 100; time.Sleep(time.Millisecond) {
		clock.Step(10 * time.Second)
		if h, err = s.History(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("history is not compacted: %+v after %d early compactions", h, cuts.Load())
		}
	}
	if h.Compacted > before.Revision || cuts.Load() == 0 {
		t.Errorf("%+v after %d early compactions", h, cuts.Load())
	}
}
