package postgres

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/pgproxy"
)

// tryCommit makes an optimistic commit, with changes by others in between.
func tryCommit(t testing.TB, table *table, between func(), pairs ...string) (kv.Head, bool) {
	t.Helper()
	follows, done, err := table.TryUpdate(t.Context(), []kv.Lookup{{Key: []byte(pairs[0])}}, func(tx kv.Tx) error {
		err := changesOf(tx, pairs...)
		if between != nil {
			between()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return follows, done
}

// TestTryUpdate checks that a commit computed on an old head follows the new one, unless
// one of its inputs has changed.
func TestTryUpdate(t *testing.T) {
	schema := schemaOf(t)
	db := openURL(t, server(t).SocketURL(), schema)
	table, other := openTable(t, db, "default"), openTable(t, openURL(t, server(t).SocketURL(), schema), "default")
	write(t, table, "a", "1", "gone", "1") // 2, 3
	write(t, table, "gone", "")            // 4

	// One key is changed twice, a deleted key is recreated, and another is created and
	// deleted.
	follows, done := tryCommit(t, table, func() { write(t, other, "x", "1", "y", "1") }, "a", "2", "gone", "2", "a", "3", "new", "1", "gone", "")
	if !done || follows.Revision != 6 {
		t.Fatalf("follows %+v, done: %v; want 6", follows, done)
	}
	if got, want := dump(t, other, 0), "a=3@9 new=1@10 x=1@5 y=1@6"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := dump(t, other, 8), "a=2@7 gone=2@8 x=1@5 y=1@6"; got != want {
		t.Errorf("at revision 8: got %s, want %s", got, want)
	}
	changes, _, err := other.Changes(t.Context(), 6, 11, 100, true)
	if err != nil {
		t.Fatal(err)
	}
	var got []kv.Revision
	for _, ch := range changes {
		got = append(got, ch.PrevRevision)
		if (ch.PrevRevision != 0) != (ch.Prev != nil) || ch.Prev != nil && ch.Prev.ModRevision != ch.PrevRevision {
			t.Errorf("%s@%d replaces %d: %+v", ch.KV.Key, ch.KV.ModRevision, ch.PrevRevision, ch.Prev)
		}
	}
	if want := []kv.Revision{2, 0, 7, 0, 8}; len(got) != len(want) || got[0] != 2 || got[2] != 7 || got[4] != 8 {
		t.Errorf("replaced revisions %v, want %v", got, want)
	}

	for _, c := range []struct {
		what    string
		between func()
	}{
		{"changed", func() { write(t, other, "a", "4") }},
		{"deleted", func() { write(t, other, "a", "") }},
		{"created", func() { write(t, other, "late", "1") }},
		{"the lease is revoked", func() { putLease(t, other, 9, false) }},
		{"another server has looked it up already", func() {
			lost := sought{commitID: commitID{rev: 1000, token: [tokenSize]byte{1}}, optimistic: true}
			if reached, err := other.resolve(t.Context(), time.Minute, lost, errors.New("connection reset")); reached != 0 || err != nil {
				t.Errorf("found at %d: %v", reached, err)
			}
		}},
		{"another keyspace", func() {
			sql(t, server(t), "UPDATE "+db.opts.schema+`.keyspace SET origin = '\x00'`)
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			write(t, other, "a", "3", "late", "")
			putLease(t, other, 9, true)
			before := ""
			_, done, err := table.TryUpdate(t.Context(), []kv.Lookup{{Key: []byte("a")}, {Lease: 9}}, func(tx kv.Tx) error {
				if l, err := tx.Lease(9); err != nil || l == nil {
					t.Errorf("lease %v: %v", l, err)
				}
				err := changesOf(tx, "a", "5", "late", "2")
				c.between()
				before = dump(t, other, 0)
				return err
			})
			if done || err != nil {
				t.Errorf("done: %v, %v", done, err)
			}
			if after := dump(t, other, 0); after != before {
				t.Errorf("changed from %s to %s", before, after)
			}
		})
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func putLease(t testing.TB, table kv.Table, id kv.LeaseID, there bool) {
	t.Helper()
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		if there {
			return tx.PutLease(kv.LeaseRecord{ID: id, TTL: 60})
		}
		return tx.DeleteLease(id)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTryUpdateNeedsHead checks that requests which need the head's lock are refused.
func TestTryUpdateNeedsHead(t *testing.T) {
	table := openTable(t, openTest(t), "default")
	write(t, table, "a", "1")
	for name, fn := range map[string]func(kv.Tx) error{
		"nothing changes": func(kv.Tx) error { return nil },
		"a range":         func(tx kv.Tx) error { _, err := tx.Range(kv.RangeRequest{Span: kv.Prefix(nil)}, true); return err },
		"no such lease":   func(tx kv.Tx) error { _, err := tx.Lease(7); return err },
		"keys of a lease": func(tx kv.Tx) error { _, err := tx.LeaseKeys(7); return err },
		"a lease granted": func(tx kv.Tx) error { return tx.PutLease(kv.LeaseRecord{ID: 7}) },
		"a lease revoked": func(tx kv.Tx) error { return tx.DeleteLease(7) },
		"a key not loaded": func(tx kv.Tx) error {
			return tx.Write(3, []kv.Change{{KV: kv.KeyValue{Key: []byte("b"), ModRevision: 3, CreateRevision: 3, Version: 1}}})
		},
	} {
		if _, done, err := table.TryUpdate(t.Context(), nil, fn); done || err != nil {
			t.Errorf("%s: done: %v, %v", name, done, err)
		}
	}
	refused := errors.New("no")
	if _, done, err := table.TryUpdate(t.Context(), nil, func(kv.Tx) error { return refused }); done || !errors.Is(err, refused) {
		t.Errorf("done: %v, %v", done, err)
	}
	if got := dump(t, table, 0); got != "a=1@2" {
		t.Error("changed to", got)
	}
}

// TestLostOptimisticCommit checks that an optimistic commit whose answer is lost is found
// at its actual revision.
func TestLostOptimisticCommit(t *testing.T) {
	d := emulate(t, pgproxy.PostgreSQL, 1)
	schema := d.schema(t)
	table, other := openTable(t, d.open(t, schema), "default"), openTable(t, openURL(t, server(t).SocketURL(), schema), "default")
	write(t, table, "a", "1")
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		eventually(t, "a reply is lost", func() bool { return d.proxy.Counts()[pgproxy.CommitRepliesLost] > 0 })
		d.proxy.Set(pgproxy.Faults{})
	}()
	follows, done := tryCommit(t, table, func() {
		write(t, other, "b", "1", "c", "1")
		d.proxy.Set(pgproxy.Faults{LoseCommitReply: 1})
	}, "a", "2")
	<-lost
	if !done || follows.Revision != 4 {
		t.Errorf("follows %+v, done: %v; want 4", follows, done)
	}
	if got, want := dump(t, table, 0), "a=2@5 b=1@3 c=1@4"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestManyServers checks that three servers, called in turn, behave as one.
func TestManyServers(t *testing.T) {
	t.Parallel()
	var done atomic.Int64
	open := func(t testing.TB) kv.Keyspace {
		schema := schemaOf(t)
		var entries []kv.Keyspace
		for range 3 {
			entries = append(entries, openStore(t, openURL(t, server(t).SocketURL(), schema), mvcc.Options{Observer: mvcc.Observer{
				Optimistic: func(ok bool) {
					if ok {
						done.Add(1)
					}
				}}}))
		}
		return kvtest.Spread(entries...)
	}
	for seed := range uint64(*seeds) {
		kvtest.Random(t, seed, 600, open)
		kvtest.Concurrent(t, seed, 16, 60, open)
	}
	if done.Load() == 0 {
		t.Error("nothing was committed optimistically")
	}
}
