package partition_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/inspect"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/postgres"
	playground "github.com/atoll-dev/atoll/playground/postgres"
)

// TestRunningServers splits and merges a keyspace while two servers write to it and watch
// it. No acknowledged write is lost, every watcher receives all writes, and none receives
// the deletions that a split makes in the parent.
func TestRunningServers(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	server, err := playground.Start(t.Context(), playground.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	open := func() (*postgres.DB, *partition.Keyspace) {
		db, err := postgres.Open(t.Context(), server.SocketURL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		ks, err := partition.Open(t.Context(), "default", &engines{db: db, name: "default", opened: map[string]*mvcc.Keyspace{}}, partition.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ks.Close() })
		return db, ks
	}
	db, one := open()
	_, two := open()
	servers := []*partition.Keyspace{one, two}

	ctx, cancel := context.WithCancel(t.Context())
	var watching, writing sync.WaitGroup
	var watchers []*watcher
	for _, ks := range servers {
		for _, prefix := range []string{"/events/", "/other/"} {
			w := &watcher{t: t, ks: ks, prefix: prefix, seen: map[string]bool{}}
			watchers = append(watchers, w)
			watching.Go(func() { w.run(ctx) })
		}
	}
	var done atomic.Bool
	var mu sync.Mutex
	acked := map[string]bool{}
	for n := range 8 {
		writing.Go(func() {
			for i := 0; !done.Load(); i++ {
				key := fmt.Sprintf("%s%d-%d", []string{"/events/", "/other/"}[i%2], n, i)
				_, err := servers[n%2].Txn(ctx, kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte(key)}}}})
				switch {
				case err == nil:
					mu.Lock()
					acked[key] = true
					mu.Unlock()
				case !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrUnknownOutcome):
					t.Errorf("put: %v", err)
					return
				}
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	more := func() {
		now := count()
		eventually(t, "more writes", func() bool { return count() > now+200 || t.Failed() })
	}
	more()
	for range 2 {
		moved, err := db.Split(t.Context(), "default", "/events/", kv.SplitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("split moved %d keys, the partition is at %d", moved.Keys, moved.Revision)
		more()
		if moved, err = db.Merge(t.Context(), "default", "/events/", kv.SplitOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Logf("merge moved %d keys, the keyspace is at %d", moved.Keys, moved.Revision)
		more()
	}
	if _, err := db.Split(t.Context(), "default", "/events/", kv.SplitOptions{}); err != nil {
		t.Fatal(err)
	}
	more()
	done.Store(true)
	writing.Wait()

	there := map[string]bool{}
	for _, prefix := range []string{"/events/", "/other/"} {
		res, err := two.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte(prefix))})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.KVs {
			there[string(e.Key)] = true
		}
	}
	for key := range acked {
		if !there[key] {
			t.Errorf("acknowledged %s is lost", key)
		}
	}
	for _, w := range watchers {
		eventually(t, "all watchers to receive all keys", func() bool { return w.knows(there) || t.Failed() })
	}
	cancel()
	watching.Wait()
	for _, w := range watchers {
		t.Logf("watcher of %s: %d keys, listed %d times, resumed %d times", w.prefix, len(w.seen), w.lists, w.resumed)
	}
	if err := db.Check(context.Background()); err != nil {
		t.Error(err)
	}
	names, err := db.Keyspaces(context.Background())
	if err != nil || len(names) != 2 {
		t.Fatalf("keyspaces %q, %v", names, err)
	}
	for _, name := range names {
		table, err := db.Open(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		if err := inspect.Check(context.Background(), table, nil, func(f string) { t.Errorf("%s: %s", name, f) }); err != nil {
			t.Error(err)
		}
	}
}

// watcher lists and watches a prefix like an informer.
type watcher struct {
	t              *testing.T
	ks             *partition.Keyspace
	prefix         string
	lists, resumed int

	mu   sync.Mutex
	seen map[string]bool
}

func (w *watcher) note(key []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[string(key)] = true
}

func (w *watcher) knows(all map[string]bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range all {
		if len(key) > len(w.prefix) && key[:len(w.prefix)] == w.prefix && !w.seen[key] {
			return false
		}
	}
	return true
}

func (w *watcher) run(ctx context.Context) {
	at := kv.Revision(0) // all changes up to it are known
	for ctx.Err() == nil {
		if at == 0 {
			res, err := w.ks.Range(ctx, kv.RangeRequest{Span: kv.Prefix([]byte(w.prefix))})
			if err != nil {
				continue
			}
			w.lists++
			for _, e := range res.KVs {
				w.note(e.Key)
			}
			at = res.Revision
		}
		at = w.watch(ctx, at)
		w.resumed++
	}
}

// watch continues from a revision and returns the revision that it reached, 0 if the start
// revision was compacted.
func (w *watcher) watch(ctx context.Context, at kv.Revision) kv.Revision {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := w.ks.Watch(ctx, kv.WatchRequest{Span: kv.Prefix([]byte(w.prefix)), StartRevision: at + 1})
	if err != nil {
		return at
	}
	for r := range watch.Responses() {
		if errors.Is(r.Err, kv.ErrCompacted) {
			return 0
		}
		for _, e := range r.Events {
			if e.Type == kv.EventDelete {
				w.t.Errorf("a watcher of %s received a deletion of %s at revision %d, but no client deleted it", w.prefix, e.KV.Key, e.KV.ModRevision)
			}
			if e.KV.ModRevision <= at {
				w.t.Errorf("a watcher of %s from revision %d received revision %d", w.prefix, at, e.KV.ModRevision)
			}
			w.note(e.KV.Key)
		}
		if r.Err == nil {
			at = max(at, r.Revision)
		}
	}
	return at
}

// TestSplitIsNoticed has an idle server detect a split at its next call, for each kind of
// call.
func TestSplitIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	server, err := playground.Start(t.Context(), playground.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	for n, call := range map[string]func(ks kv.Keyspace) error{
		"get": func(ks kv.Keyspace) error {
			_, err := ks.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte("/events/a")}})
			return err
		},
		"list": func(ks kv.Keyspace) error {
			_, err := ks.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("/events/"))})
			return err
		},
		"put": func(ks kv.Keyspace) error {
			_, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/events/b")}}}})
			return err
		},
		"leases":  func(ks kv.Keyspace) error { _, _, err := ks.LeaseList(t.Context()); return err },
		"status":  func(ks kv.Keyspace) error { _, err := ks.Status(t.Context()); return err },
		"compact": func(ks kv.Keyspace) error { _, err := ks.Compact(t.Context(), 2, false); return err },
	} {
		t.Run(n, func(t *testing.T) {
			// The server learns of it only by its own calls.
			db, err := postgres.Open(t.Context(), server.SocketURL(), postgres.WithSchema("atoll_"+n), postgres.WithPoll(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { db.Close() })
			table, err := db.Open(t.Context(), "default")
			if err != nil {
				t.Fatal(err)
			}
			ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ks.Close() })
			if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/events/a")}}}}); err != nil {
				t.Fatal(err)
			}
			other, err := postgres.Open(t.Context(), server.SocketURL(), postgres.WithSchema("atoll_"+n))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { other.Close() })
			if _, err := other.Split(t.Context(), "default", "/none/", kv.SplitOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := call(ks); !errors.Is(err, kv.ErrRepartitioned) || !errors.Is(err, kv.ErrBehind) {
				t.Errorf("%v", err)
			}
		})
	}
}
