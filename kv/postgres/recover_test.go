package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// recoverBy advances a keyspace like kv/transfer.
func recoverBy(t *testing.T, table *table, bump kv.Revision) (to kv.Revision) {
	t.Helper()
	err := table.Recover(t.Context(), func(tx kv.Tx) error {
		to = tx.Head().Revision + bump
		key := []byte("temporary")
		return tx.Write(to, []kv.Change{
			{KV: kv.KeyValue{Key: key, CreateRevision: to - 1, ModRevision: to - 1, Version: 1}},
			{KV: kv.KeyValue{Key: key, ModRevision: to}, Deleted: true, PrevRevision: to - 1},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRecover checks that the keyspace is unchanged at a higher revision. Servers that have
// it open refuse to continue with it; servers that open it do not.
func TestRecover(t *testing.T) {
	db := openTest(t)
	running := openURL(t, server(t).SocketURL(), WithSchema(db.opts.schema))
	// It does not follow its keyspace, so it can only notice on a new connection.
	silent := openURL(t, server(t).SocketURL(), WithSchema(db.opts.schema))
	table := openTable(t, db, "default")
	write(t, table, "a", "1", "b", "2")
	k := openStore(t, running, mvcc.Options{})
	watch, err := k.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil)})
	if err != nil {
		t.Fatal(err)
	}
	other := openTable(t, silent, "default")
	if got := dump(t, other, 0); got != "a=1@2 b=2@3" {
		t.Fatal(got)
	}

	to := recoverBy(t, table, 1_000_000)
	if got := dump(t, table, 0); got != "a=1@2 b=2@3" {
		t.Error(got)
	}
	head, err := table.Head(t.Context())
	if err != nil || head != (kv.Head{Revision: to, Compacted: to}) {
		t.Errorf("recovered: %+v, %v", head, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}

	timeout := time.After(30 * time.Second)
	for ended := false; !ended; {
		select {
		case r, open := <-watch.Responses():
			if !open {
				t.Fatal("the watch of a running server ended without an error")
			}
			// It may get the new revision first: then it has to list again.
			ended = errors.Is(r.Err, kv.ErrBehind) || errors.Is(r.Err, kv.ErrCompacted)
			if r.Err != nil && !ended {
				t.Errorf("the watch of a running server: %v", r.Err)
			}
		case <-timeout:
			t.Fatal("a running server does not notice")
		}
	}
	eventually(t, "a running server refuses to serve", func() bool {
		_, err := k.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix(nil)})
		return errors.Is(err, kv.ErrBehind) && strings.Contains(err.Error(), "restart this server")
	})
	sql(t, server(t), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	eventually(t, "a server with new connections refuses to serve", func() bool {
		_, err := other.Head(context.Background())
		return errors.Is(err, kv.ErrBehind)
	})
	// The server that made the recovery continues, also with new connections.
	write(t, table, "c", "3")
	fresh := openURL(t, server(t).SocketURL(), WithSchema(db.opts.schema))
	write(t, openTable(t, fresh, "default"), "c", "4")
	for more := true; more; {
		if more, err = openTable(t, fresh, "default").Sweep(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
	}
	if got := dump(t, table, 0); got != fmt.Sprintf("a=1@2 b=2@3 c=4@%d", to+2) {
		t.Errorf("swept: %s", got)
	}
	if err := fresh.Check(t.Context()); err != nil {
		t.Errorf("swept: %v", err)
	}
	if recoverBy(t, table, 10) <= to {
		t.Error("a second recovery decreases the revision")
	}
}
