package partition_test

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
)

// TestDrop drops a keyspace with partitions: every call to any part fails with ErrDropped,
// and the composite does not open it again.
func TestDrop(t *testing.T) {
	s := newStore(t, "/a/", "/b/")
	s.open()
	var watches []kv.Watch
	for _, key := range []string{"/a/1", "/b/1", "/c/1"} {
		s.put(key, "v")
		w, err := s.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix([]byte(key[:3]))})
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	opened := len(s.opened)
	if err := s.db.Drop(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/a/1", "/b/1", "/c/1"} {
		if _, err := s.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte(key)}}); !errors.Is(err, kv.ErrDropped) {
			t.Errorf("get %s: %v", key, err)
		}
		_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key)}}}})
		if !errors.Is(err, kv.ErrDropped) {
			t.Errorf("put %s: %v", key, err)
		}
	}
	for i, w := range watches {
		var last error
		for r := range w.Responses() {
			last = r.Err
		}
		if !errors.Is(last, kv.ErrDropped) {
			t.Errorf("watch %d ended with %v", i, last)
		}
	}
	if names, err := s.db.Keyspaces(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("keyspaces %v, %v", names, err)
	}
	if len(s.opened) != opened {
		t.Error("it was opened again")
	}
}

// TestRename renames a keyspace with partitions: every call to any part fails, the composite does not open the new name, nor a new
// keyspace of the old one, and the parts have their keys under the new name.
func TestRename(t *testing.T) {
	s := newStore(t, "/a/")
	s.open()
	for _, key := range []string{"/a/1", "/c/1"} {
		s.put(key, "v")
	}
	if err := s.db.Rename(t.Context(), "default", "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Open(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"/a/1", "/c/1"} {
		if _, err := s.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte(key)}}); !errors.Is(err, kv.ErrDropped) && !errors.Is(err, kv.ErrRepartitioned) {
			t.Errorf("get %s: %v", key, err)
		}
	}
	for _, name := range []string{"other", kv.PartitionName("other", "/a/")} {
		table, err := s.db.OpenExisting(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		found, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)}, false)
		if err != nil || len(found.KVs) != 1 {
			t.Errorf("%s has %v, %v", name, found, err)
		}
	}
}
