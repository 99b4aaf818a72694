package partition_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// engines is a partition.Opener on a database. It records the engines that it opened, for
// tests that bypass the composite.
type engines struct {
	db     kv.Backend
	name   string
	opts   mvcc.Options
	opened map[string]*mvcc.Keyspace
}

func (s *engines) Prefixes(ctx context.Context) ([]string, error) {
	return s.db.Partitions(ctx, s.name)
}

func (s *engines) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	name := s.name
	if prefix != "" {
		name = kv.PartitionName(s.name, prefix)
	}
	table, err := s.db.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	k, err := mvcc.Open(ctx, table, s.db, s.opts)
	if err != nil {
		return nil, err
	}
	s.opened[prefix] = k
	return k, nil
}

// store is a keyspace in an SQLite file, which can be closed and reopened.
type store struct {
	t    testing.TB
	path string
	opts partition.Options
	db   *sqlite.DB
	*engines
	*partition.Keyspace
}

// newStore creates a keyspace with partitions for prefixes, without opening it.
func newStore(t testing.TB, prefixes ...string) *store {
	t.Helper()
	s := &store{t: t, path: filepath.Join(t.TempDir(), "kv.db")}
	s.opts.LeaseInterval = 20 * time.Millisecond
	s.offline(func(db *sqlite.DB) {
		for _, p := range prefixes {
			if _, err := db.Split(t.Context(), "default", p, kv.SplitOptions{EmptyOnly: true}); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Cleanup(s.close)
	return s
}

// offline runs work on the database while no engine has it open.
func (s *store) offline(work func(*sqlite.DB)) {
	s.t.Helper()
	// Opening the keyspace creates it.
	for _, step := range []func(*sqlite.DB){
		func(db *sqlite.DB) {
			if _, err := db.Open(s.t.Context(), "default"); err != nil {
				s.t.Fatal(err)
			}
		}, work,
	} {
		db, err := sqlite.Open(s.path)
		if err != nil {
			s.t.Fatal(err)
		}
		step(db)
		if err := db.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *store) open() *store {
	s.t.Helper()
	var err error
	if s.db, err = sqlite.Open(s.path); err != nil {
		s.t.Fatal(err)
	}
	s.engines = &engines{db: s.db, name: "default", opened: map[string]*mvcc.Keyspace{}}
	if s.Keyspace, err = partition.Open(context.Background(), "default", s.engines, s.opts); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// close closes the keyspace and checks the file.
func (s *store) close() {
	s.t.Helper()
	if s.Keyspace == nil {
		return
	}
	if err := s.Keyspace.Close(); err != nil {
		s.t.Error(err)
	}
	s.Keyspace = nil
	if err := s.db.Check(context.Background()); err != nil {
		s.t.Error(err)
	}
	if err := s.db.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *store) split(prefix string) *kv.SplitResult {
	s.t.Helper()
	var moved *kv.SplitResult
	s.offline(func(db *sqlite.DB) {
		var err error
		if moved, err = db.Split(s.t.Context(), "default", prefix, kv.SplitOptions{}); err != nil {
			s.t.Fatal(err)
		}
	})
	return moved
}

func (s *store) merge(prefix string) *kv.SplitResult {
	s.t.Helper()
	var moved *kv.SplitResult
	s.offline(func(db *sqlite.DB) {
		var err error
		if moved, err = db.Merge(s.t.Context(), "default", prefix, kv.SplitOptions{}); err != nil {
			s.t.Fatal(err)
		}
	})
	return moved
}

// Short helpers of the tests.

func (s *store) put(key, value string, lease ...kv.LeaseID) kv.Revision {
	s.t.Helper()
	op := kv.PutOp{Key: []byte(key), Value: []byte(value)}
	if len(lease) > 0 {
		op.Lease = lease[0]
	}
	res, err := s.Txn(s.t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &op}}})
	if err != nil {
		s.t.Fatalf("put %s: %v", key, err)
	}
	return res.Revision
}

func (s *store) delete(key string) kv.Revision {
	s.t.Helper()
	res, err := s.Txn(s.t.Context(), kv.TxnRequest{Then: []kv.Op{{Delete: &kv.DeleteOp{Span: kv.Span{Start: []byte(key)}}}}})
	if err != nil {
		s.t.Fatalf("delete %s: %v", key, err)
	}
	return res.Revision
}

func (s *store) list(prefix string) *kv.RangeResult {
	s.t.Helper()
	res, err := s.Range(s.t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte(prefix))})
	if err != nil {
		s.t.Fatalf("list %q: %v", prefix, err)
	}
	return res
}

func (s *store) keys(prefix string) (keys []string) {
	s.t.Helper()
	for _, e := range s.list(prefix).KVs {
		keys = append(keys, string(e.Key)+"="+string(e.Value))
	}
	return keys
}

func (s *store) grant(id kv.LeaseID, ttl time.Duration) kv.LeaseID {
	s.t.Helper()
	l, err := s.Grant(s.t.Context(), id, ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return l.ID
}

// events returns the events of a watch up to a revision.
func (s *store) events(prefix string, from, upTo kv.Revision) (events []kv.Event, end error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	w, err := s.Watch(ctx, kv.WatchRequest{Span: kv.Prefix([]byte(prefix)), StartRevision: from})
	if err != nil {
		return nil, err
	}
	w.RequestProgress()
	for r := range w.Responses() {
		if r.Err != nil {
			return events, r.Err
		}
		events = append(events, r.Events...)
		if r.Revision >= upTo {
			return events, nil
		}
	}
	return events, context.Cause(ctx)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
