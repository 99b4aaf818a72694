package mvcc

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// prematureHints is a shared table that sends hints of revisions that do not exist: of
// commits that failed, or that a failover has undone.
type prematureHints struct {
	kv.Table
	tell chan kv.Revision
}

func (p *prematureHints) Follow(ctx context.Context, notify func(kv.Revision)) error {
	for {
		select {
		case rev := <-p.tell:
			notify(rev)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestPrematureHint checks that a revision hinted too early is delivered when it is
// committed, both to existing watches and to later ones.
func TestPrematureHint(t *testing.T) {
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	p := &prematureHints{Table: table, tell: make(chan kv.Revision)}
	k, err := Open(t.Context(), p, db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	// When the tailer has woken up for another hint, it has fully processed the first.
	for range 2 {
		p.tell <- 5
		p.tell <- 0 // returns when the first hint has been received
		for len(k.tail.wakec) > 0 {
			runtime.Gosched()
		}
	}
	watch, err := k.Watch(t.Context(), kv.WatchRequest{Span: kv.Prefix(nil), StartRevision: 2})
	if err != nil {
		t.Fatal(err)
	}
	for want := kv.Revision(2); want < 8; want++ {
		if _, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("a"), Value: []byte("b")}}}}); err != nil {
			t.Fatal(err)
		}
		select {
		case r := <-watch.Responses():
			if r.Err != nil || len(r.Events) != 1 || r.Events[0].KV.ModRevision != want || r.Revision != want {
				t.Fatalf("%+v, want the event of revision %d", r, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the event of revision %d was not delivered", want)
		}
	}
}
