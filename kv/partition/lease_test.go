package partition_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestLeaseAcross ends a lease whose keys lie everywhere.
func TestLeaseAcross(t *testing.T) {
	s := newStore(t, "b/", "d/").open()
	short, long := s.grant(0, 2*time.Second), s.grant(0, time.Hour)
	for _, key := range []string{"a", "b/1", "d/1"} {
		s.put(key, "", short)
		s.put(key+"-stays", "", long)
	}
	began := time.Now()
	eventually(t, "the end of the lease", func() bool { return len(s.list("").KVs) == 3 })
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("a lease of 2 s ended after %v", took)
	}
	if _, err := s.TimeToLive(t.Context(), short, false); !errors.Is(err, kv.ErrLeaseNotFound) {
		t.Errorf("it is described still: %v", err)
	}
	// Whoever attaches a key to it is told, by every partition.
	for _, key := range []string{"a", "b/1", "d/1"} {
		_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Lease: short}}}})
		if !errors.Is(err, kv.ErrLeaseNotFound) {
			t.Errorf("attach %s: %v", key, err)
		}
	}
	if _, err := s.Revoke(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	if left := s.keys(""); len(left) > 0 {
		t.Errorf("after the lease was revoked there is %q", left)
	}
}

// TestLeaseKept renews a lease, of which the copies must not end either; and a
// restart in between changes nothing.
func TestLeaseKept(t *testing.T) {
	t.Parallel()
	s := newStore(t, "b/").open()
	id := s.grant(0, 2*time.Second)
	s.put("b/1", "", id)
	for range 2 {
		until := time.Now().Add(2500 * time.Millisecond)
		eventually(t, "longer than the lease", func() bool {
			if _, err := s.KeepAlive(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return time.Now().After(until)
		})
		s.close()
		s.open()
		if !slices.Equal(s.keys(""), []string{"b/1="}) {
			t.Fatal("the key of a lease that was kept alive is gone")
		}
	}
	eventually(t, "the end", func() bool { return len(s.list("").KVs) == 0 })
}

// TestLeaseCutShort completes what a crash has left between two steps: the lease
// is gone from the parent, and a partition has not heard.
func TestLeaseCutShort(t *testing.T) {
	s := newStore(t, "b/")
	s.opts.LeaseInterval = time.Hour // what happens meanwhile happens by itself
	s.open()
	id := s.grant(500, time.Hour)
	s.put("b/1", "old", id)
	if _, err := s.opened[""].Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// Granted again it is another lease: keys of the first do not belong to it.
	s.grant(500, time.Hour)
	if left := s.keys("b/"); len(left) > 0 {
		t.Errorf("a new lease of the same id has %q", left)
	}
	s.put("b/2", "", id)
	if _, err := s.opened[""].Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.close()
	s.opts.LeaseInterval = 20 * time.Millisecond
	s.open()
	eventually(t, "the end of the keys", func() bool { return len(s.list("").KVs) == 0 })
}
