package postgres

import (
	"errors"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func TestTable(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) { testTable(t, openTable(t, d.open(t), "default")) })
}

func testTable(t *testing.T, table *table) {
	write(t, table, "a", "1", "b", "2", "a", "3", "b", "", "c", "5", "b", "6")
	for rev, want := range []string{
		2: "a=1@2", 3: "a=1@2 b=2@3", 4: "a=3@4 b=2@3", 5: "a=3@4", 6: "a=3@4 c=5@6", 7: "a=3@4 b=6@7 c=5@6",
	} {
		if rev < 2 {
			continue
		}
		if got := dump(t, table, kv.Revision(rev)); got != want {
			t.Errorf("at %d: %s, want %s", rev, got, want)
		}
	}
	if got := dump(t, table, 0); got != "a=3@4 b=6@7 c=5@6" {
		t.Error(got)
	}
	list, head, err := table.Changes(t.Context(), 3, 100, 2, true)
	if err != nil || len(list) != 2 || head.Revision != 7 {
		t.Fatal(list, head, err)
	}
	if c := list[0]; string(c.KV.Key) != "a" || c.Prev == nil || string(c.Prev.Value) != "1" || c.PrevRevision != 2 {
		t.Errorf("%+v", c)
	}
	if c := list[1]; !c.Deleted || string(c.Prev.Value) != "2" {
		t.Errorf("%+v", c)
	}
	if got, err := table.Inspect(t.Context()); err != nil || got.Keys != 3 || got.History != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := table.SetCompacted(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var err error
		if more, err = table.Sweep(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
	}
	if got := dump(t, table, 6); got != "a=3@4 c=5@6" {
		t.Error(got)
	}
	if got := dump(t, table, 7); got != "a=3@4 b=6@7 c=5@6" {
		t.Error(got)
	}
	if got, err := table.Inspect(t.Context()); err != nil || got.Keys != 3 || got.History != 0 {
		t.Errorf("swept: %+v, %v", got, err)
	}
	if err := table.db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestIdleCommits checks that commits without a revision leave a bounded number of rows.
func TestIdleCommits(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	write(t, table, "a", "1")
	for beat := range int64(2*keepIdle + 10) {
		err := table.Update(t.Context(), []kv.Lookup{{Lease: 7}}, func(tx kv.Tx) error {
			old, err := tx.Lease(7)
			if err == nil && beat > 0 && (old == nil || old.Beat != beat-1) {
				t.Fatalf("lease %+v before beat %d", old, beat)
			}
			if err != nil {
				return err
			}
			return tx.PutLease(kv.LeaseRecord{ID: 7, TTL: 60, Beat: beat})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := sql(t, server(t), `SELECT count(*) < `+"1100"+` FROM `+db.opts.schema+`.segment`); n != "t" {
		t.Error("the rows of idle commits are not removed")
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRefusedUpdate checks that fn's error is returned unchanged, and that nothing has
// happened, also to the connection.
func TestRefusedUpdate(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) { testRefusedUpdate(t, openTable(t, d.open(t), "default")) })
}

func testRefusedUpdate(t *testing.T, table *table) {
	refusal := errors.New("no")
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		if err := changesOf(tx, "a", "1"); err != nil {
			t.Error(err)
		}
		return refusal
	})
	if err != refusal {
		t.Error(err)
	}
	err = table.Update(t.Context(), nil, func(tx kv.Tx) error { return changesOf(tx, string(make([]byte, 4000)), "1") })
	if !errors.Is(err, kv.ErrRequestTooLarge) {
		t.Error(err)
	}
	if got := dump(t, table, 0); got != "" {
		t.Error(got)
	}
}

// TestLongKeys checks that a key too long for an index is refused, without an effect on
// other writes in its commit.
func TestLongKeys(t *testing.T) {
	k := openStore(t, openTest(t), mvcc.Options{})
	put := func(n int) error {
		_, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: make([]byte, n), Value: []byte("v")}}}})
		return err
	}
	if err := put(maxKeyBytes); err != nil {
		t.Errorf("a key of %d bytes: %v", maxKeyBytes, err)
	}
	if err := put(maxKeyBytes + 1); !errors.Is(err, kv.ErrRequestTooLarge) {
		t.Errorf("a key of %d bytes: %v", maxKeyBytes+1, err)
	}
}

func TestOneLine(t *testing.T) {
	cause := errors.New("failed to connect to `user=u database=d`:\n\t127.0.0.1:1 (127.0.0.1): refused\n\t127.0.0.1:1 (127.0.0.1): refused\n\t[::1]:1 (::1): refused")
	const want = "failed to connect to `user=u database=d`: 127.0.0.1:1 (127.0.0.1): refused; [::1]:1 (::1): refused"
	if got := (oneLine{cause}); got.Error() != want || !errors.Is(got, cause) {
		t.Errorf("%v, want %s", got, want)
	}
}
