package partition_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
)

// TestLeaseAcross ends a lease that has keys in all partitions.
func TestLeaseAcross(t *testing.T) {
	s := newStore(t, "b/", "d/").open()
	short, long := s.grant(0, 2*time.Second), s.grant(0, time.Hour)
	for _, key := range []string{"a", "b/1", "d/1"} {
		s.put(key, "", short)
		s.put(key+"-stays", "", long)
	}
	began := time.Now()
	eventually(t, "the expiry of the lease", func() bool { return len(s.list("").KVs) == 3 })
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("a lease of 2 s ended after %v", took)
	}
	if _, err := s.TimeToLive(t.Context(), short, false); !errors.Is(err, kv.ErrLeaseNotFound) {
		t.Errorf("TimeToLive of the expired lease: %v", err)
	}
	// Every partition refuses to attach a key to it.
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
		t.Errorf("after the lease was revoked, keys %q exist", left)
	}
}

// TestLeaseKept renews a lease, so that its copies must not expire either, also across a
// restart.
func TestLeaseKept(t *testing.T) {
	t.Parallel()
	s := newStore(t, "b/").open()
	id := s.grant(0, 2*time.Second)
	s.put("b/1", "", id)
	for range 2 {
		until := time.Now().Add(2500 * time.Millisecond)
		eventually(t, "a time longer than the TTL", func() bool {
			if _, err := s.KeepAlive(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return time.Now().After(until)
		})
		s.close()
		s.open()
		if !slices.Equal(s.keys(""), []string{"b/1="}) {
			t.Fatal("the key of a renewed lease is gone")
		}
	}
	eventually(t, "the expiry", func() bool { return len(s.list("").KVs) == 0 })
}

// TestLeaseInterrupted completes an interrupted revocation: the lease is gone from the
// parent, but a partition still has its copy.
func TestLeaseInterrupted(t *testing.T) {
	s := newStore(t, "b/")
	s.opts.LeaseInterval = time.Hour // disables the lease loop
	s.open()
	id := s.grant(500, time.Hour)
	s.put("b/1", "old", id)
	if _, err := s.opened[""].Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// Granted again it is a new lease, which does not own the first one's keys.
	s.grant(500, time.Hour)
	if left := s.keys("b/"); len(left) > 0 {
		t.Errorf("a new lease with the same ID has keys %q", left)
	}
	s.put("b/2", "", id)
	if _, err := s.opened[""].Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s.close()
	s.opts.LeaseInterval = 20 * time.Millisecond
	s.open()
	eventually(t, "the deletion of the keys", func() bool { return len(s.list("").KVs) == 0 })
}
