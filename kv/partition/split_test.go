package partition_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// TestSplitAndMerge splits a prefix off and merges it back. Clients see the same keys, and
// a watch that has received everything continues as if nothing had happened.
func TestSplitAndMerge(t *testing.T) {
	s := newStore(t).open()
	s.put("/other/a", "1")
	lease := s.grant(0, time.Hour)
	s.put("/events/a", "1")
	s.put("/events/a", "2", lease)
	s.put("/events/b", "1")
	s.put("/events/gone", "1")
	s.delete("/events/gone")
	s.put("/event", "not below the prefix")
	head := s.put("/other/b", "1")
	before := s.list("/events/").KVs
	s.close()

	s.offline(func(db *sqlite.DB) {
		dry, err := db.Split(t.Context(), "default", "/events/", kv.SplitOptions{DryRun: true})
		if err != nil || dry.Keys != 2 || dry.Leases != 1 {
			t.Fatalf("dry run: %+v, %v", dry, err)
		}
		_, err = db.Split(t.Context(), "default", "/events/", kv.SplitOptions{EmptyOnly: true})
		if !errors.Is(err, kv.ErrInvalidRequest) {
			t.Fatalf("split with EmptyOnly of a prefix with keys: %v", err)
		}
		if names, err := db.Keyspaces(t.Context()); err != nil || len(names) != 1 {
			t.Fatalf("a refused split or a dry run created %q, %v", names, err)
		}
	})
	moved := s.split("/events/")
	if moved.Keys != 2 || moved.Leases != 1 || moved.Revision != head+1 {
		t.Fatalf("moved %+v, with the head at %d", moved, head)
	}
	s.open()
	if got := s.list("/events/"); !slices.EqualFunc(got.KVs, before, equalKV) || got.Revision != head+1 || got.Count != 2 {
		t.Errorf("after the split at %d: %+v, before %+v", got.Revision, got.KVs, before)
	}
	if l, err := s.TimeToLive(t.Context(), lease, true); err != nil || len(l.Keys) != 1 || l.Granted != time.Hour {
		t.Errorf("the lease: %+v, %v", l, err)
	}
	if _, err := s.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("/events/")), Revision: head}); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("list at an older revision: %v", err)
	}
	if _, err := s.events("/events/", head, head+1); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("watch from an older revision: %v", err)
	}
	// The history of other resources is unchanged, and their watches do not receive the
	// move.
	others, err := s.events("/other/", 1, head+1)
	if err != nil || len(others) != 2 {
		t.Errorf("history of other resources: %+v, %v", others, err)
	}

	// From here on the revisions differ.
	s.put("/other/c", "1")
	s.put("/other/d", "1")
	last := s.put("/events/c", "1")
	if last != head+2 {
		t.Errorf("the partition's first own revision is %d, want %d", last, head+2)
	}
	seen, err := s.events("/events/", head+1, last)
	if err != nil || len(seen) != 1 || string(seen[0].KV.Key) != "/events/c" {
		t.Errorf("a watch that had received everything continues with %+v, %v", seen, err)
	}
	if rev := s.put("/events/a", "3"); rev != last+1 {
		t.Errorf("next revision %d", rev)
	}
	checkTables(t, s)
	s.close()

	merged := s.merge("/events/")
	s.open()
	if merged.Revision <= max(last+1, head+3) {
		t.Errorf("merge at revision %d is not above all earlier revisions", merged.Revision)
	}
	want := []string{"/events/a=3", "/events/b=1", "/events/c=1"}
	if got := s.keys("/events/"); !slices.Equal(got, want) {
		t.Errorf("after the merge %q, want %q", got, want)
	}
	if got := len(s.keys("")); got != 8 {
		t.Errorf("after the merge there are %d keys in all", got)
	}
	if _, err := s.events("/other/", merged.Revision-1, merged.Revision); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("watch from before the merge: %v", err)
	}
	if s.put("/events/d", "1") != merged.Revision+1 {
		t.Error("the next revision does not follow")
	}
	checkTables(t, s)
	s.close()
	// Closing the store checks the state after a sweep.
	s.split("/events/")
	s.open()
	if _, err := s.Compact(t.Context(), s.put("x", ""), true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.opened["/events/"].Compact(t.Context(), s.put("/events/a", "4"), true); err != nil {
		t.Fatal(err)
	}
	checkTables(t, s)
}

func equalKV(a, b kv.KeyValue) bool {
	return string(a.Key) == string(b.Key) && string(a.Value) == string(b.Value) && a.CreateRevision == b.CreateRevision &&
		a.ModRevision == b.ModRevision && a.Version == b.Version && a.Lease == b.Lease
}

// checkTables checks the log of each part against its state.
func checkTables(t *testing.T, s *store) {
	t.Helper()
	names, err := s.db.Keyspaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		table, err := s.db.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := inspect.Check(t.Context(), table, nil, func(f string) { t.Errorf("%s: %s", name, f) }); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSplitNothing splits at a prefix without keys, at a revision that deleted the last
// one.
func TestSplitNothing(t *testing.T) {
	s := newStore(t).open()
	s.put("/events/a", "1")
	gone := s.delete("/events/a")
	s.close()
	if moved := s.split("/events/"); moved.Keys != 0 {
		t.Fatalf("moved %+v", moved)
	}
	s.open()
	if _, err := s.events("/events/", gone, gone); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watch that has not received the deletion: %v", err)
	}
	rev := s.put("/events/b", "1")
	if seen, err := s.events("/events/", gone+1, rev); err != nil || len(seen) != 1 {
		t.Errorf("a watch that has received it: %+v, %v", seen, err)
	}
	s.delete("/events/b")
	s.put("/events/b", "2")
	ahead := s.delete("/events/b")
	s.close()
	if merged := s.merge("/events/"); merged.Keys != 0 || merged.Revision <= ahead {
		t.Errorf("merge: %+v, the partition was at %d", merged, ahead)
	}
	s.open()
	if s.put("/events/c", "") <= ahead {
		t.Error("revisions decreased")
	}
	checkTables(t, s)
}

// TestManyKeys moves more rows than one statement can.
func TestManyKeys(t *testing.T) {
	s := newStore(t).open()
	const keys = 1200
	for i := 0; i < keys; i += 100 {
		var ops []kv.Op
		for j := range 100 {
			ops = append(ops, kv.Op{Put: &kv.PutOp{Key: fmt.Appendf(nil, "/events/%05d", (i+j)*7919%keys), Value: []byte("v")}})
		}
		if _, err := s.Txn(t.Context(), kv.TxnRequest{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	want := s.list("/events/").KVs
	s.close()
	s.split("/events/")
	s.open()
	if got := s.list("/events/").KVs; !slices.EqualFunc(got, want, equalKV) {
		t.Errorf("%d keys after the split, %d before, or different keys", len(got), len(want))
	}
	checkTables(t, s)
	s.close()
	s.merge("/events/")
	s.open()
	if got := len(s.list("/events/").KVs); got != keys {
		t.Errorf("%d keys after the merge", got)
	}
	checkTables(t, s)
}

// TestRefusedSplits tests prefixes that cannot be a partition.
func TestRefusedSplits(t *testing.T) {
	s := newStore(t, "/a/b/")
	s.offline(func(db *sqlite.DB) {
		for prefix, want := range map[string]error{
			"": kv.ErrInvalidRequest, "/events": kv.ErrInvalidRequest, "/a/": kv.ErrInvalidRequest, "/a/b/c/": kv.ErrInvalidRequest,
			strings.Repeat("x", kv.MaxPartitionPrefix) + "/": kv.ErrInvalidRequest, "/a/b/": kv.ErrPartitionExists,
		} {
			if _, err := db.Split(t.Context(), "default", prefix, kv.SplitOptions{}); !errors.Is(err, want) {
				t.Errorf("split at %q: %v, want %v", prefix, err, want)
			}
		}
		if _, err := db.Split(t.Context(), "missing", "/a/", kv.SplitOptions{}); !errors.Is(err, kv.ErrKeyNotFound) {
			t.Errorf("split of a missing keyspace: %v", err)
		}
		if _, err := db.Merge(t.Context(), "default", "/c/", kv.SplitOptions{}); !errors.Is(err, kv.ErrKeyNotFound) {
			t.Errorf("merge of a missing partition: %v", err)
		}
		// Only a split creates a partition.
		if _, err := db.Open(t.Context(), kv.PartitionName("default", "/c/")); !errors.Is(err, kv.ErrKeyNotFound) {
			t.Errorf("open a missing partition: %v", err)
		}
		if _, err := db.Open(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Split(t.Context(), "default", "/c/", kv.SplitOptions{}); !errors.Is(err, kv.ErrInUse) {
			t.Errorf("split of an open keyspace: %v", err)
		}
	})
}

// TestNamingKey reads the key that names a partition, to learn its revision, as Kubernetes
// does before it answers a consistent list from a cache.
func TestNamingKey(t *testing.T) {
	s := newStore(t).open()
	s.put("/events", "in the way")
	s.put("/events/a", "")
	s.close()
	s.offline(func(db *sqlite.DB) {
		if _, err := db.Split(t.Context(), "default", "/events/", kv.SplitOptions{}); !errors.Is(err, kv.ErrInvalidRequest) {
			t.Fatalf("split with an existing naming key: %v", err)
		}
	})
	s.open()
	s.delete("/events")
	s.close()
	s.split("/events/")
	s.open()
	at := s.put("/events/a", "")
	for range 5 {
		s.put("/other", "")
	}
	req := kv.RangeRequest{Span: kv.Span{Start: []byte("/events")}, Limit: 1}
	if res, err := s.Range(t.Context(), req); err != nil || res.Revision != at || res.Count != 0 {
		t.Errorf("the partition is at %d, its naming key returns %+v, %v", at, res, err)
	}
	_, err := s.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/events")}}}})
	if !errors.Is(err, kv.ErrInvalidRequest) {
		t.Errorf("put of the key that names a partition: %v", err)
	}
	s.put("/events-of-others", "") // an unrelated key
}

// TestStrayKeys refuses a keyspace whose parent has keys under a partition's prefix.
func TestStrayKeys(t *testing.T) {
	s := newStore(t, "/events/").open()
	_, err := s.opened[""].Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/events/stray")}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.put("/events/a", "")
	s.close()
	db, err := sqlite.Open(s.path)
	if err != nil {
		t.Fatal(err)
	}
	s.engines.db = db
	if _, err := partition.Open(t.Context(), "default", s.engines, s.opts); err == nil || !strings.Contains(err.Error(), "/events/stray") {
		t.Errorf("opened despite stray keys: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s.merge("/events/")
	s.split("/events/")
	s.open()
	if got := s.keys("/events/"); !slices.Equal(got, []string{"/events/a=", "/events/stray="}) {
		t.Errorf("after the remedy the keys are %q", got)
	}
	checkTables(t, s)
}

// TestInterruptedSplit cancels a split at each stage: nothing has happened.
func TestInterruptedSplit(t *testing.T) {
	s := newStore(t).open()
	for i := range 30 {
		s.put(fmt.Sprintf("/events/%d", i), "")
	}
	s.close()
	s.offline(func(db *sqlite.DB) {
		for _, stop := range []string{"count keys", "copy keys", "index keys", "delete keys", "commit"} {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := db.Split(ctx, "default", "/events/", kv.SplitOptions{Step: func(stage string, _, _ int64) {
				if stage == stop {
					cancel()
				}
			}})
			cancel()
			if err == nil && stop == "commit" {
				return // too late to cancel
			}
			names, nerr := db.Keyspaces(t.Context())
			if err == nil || nerr != nil || len(names) != 1 {
				t.Fatalf("canceled at %q: %v; keyspaces %q, %v", stop, err, names, nerr)
			}
		}
	})
	s.open()
	if n := len(s.list("/events/").KVs); n != 30 {
		t.Errorf("%d keys", n)
	}
}

// TestProbe: a keyspace is served if all of its partitions are.
func TestProbe(t *testing.T) {
	s := newStore(t, "p/", "q/").open()
	if err := kv.Probe(t.Context(), s.Keyspace); err != nil {
		t.Error(err)
	}
	if err := s.opened["q/"].Close(); err != nil {
		t.Fatal(err)
	}
	s.put("p/a", "1")
	if err := kv.Probe(t.Context(), s.Keyspace); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("one partition is closed: %v", err)
	}
}
