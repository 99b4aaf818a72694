package partition_test

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestLimits: the limits apply to each part, and the usage is that of all.
func TestLimits(t *testing.T) {
	s := newStore(t, "/b/").open()
	limit := int64(1)
	s.SetLimits(kv.Limits{Keys: &limit})
	s.put("/a/1", "v")
	s.put("/b/1", "v")
	for _, key := range []string{"/a/2", "/b/2"} {
		_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key)}}}})
		if !errors.Is(err, kv.ErrLimitExceeded) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if used, err := s.Usage(t.Context()); err != nil || used != (kv.Usage{Keys: 2, Bytes: 10}) {
		t.Error(used, err)
	}
	s.SetLimits(kv.Limits{})
	s.put("/b/2", "v")
}
