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

// premature is a shared table that tells of revisions that are not there: those
// of commits that failed, or that a failover has undone.
type premature struct {
	kv.Table
	tell chan kv.Revision
}

func (p *premature) Follow(ctx context.Context, heard func(kv.Revision)) error {
	for {
		select {
		case rev := <-p.tell:
			heard(rev)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestPrematureHint: what a hint told too early is not passed over when it
// comes, neither by watches that were there nor by those that come later.
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
	p := &premature{Table: table, tell: make(chan kv.Revision)}
	k, err := Open(t.Context(), p, db, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	// When the tailer is told again and has woken up for that, it has believed
	// the first as far as it ever will.
	for range 2 {
		p.tell <- 5
		p.tell <- 0 // taken when what was told before has been heard
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
			t.Fatalf("the event of revision %d did not come", want)
		}
	}
}
