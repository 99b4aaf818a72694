package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/kvtest"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestUsage uses two servers of one database.
func TestUsage(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, d *database) {
		kvtest.Usage(t, 1, func(t testing.TB) (entries []kvtest.Limited, check func(context.Context) error) {
			option := d.schema(t)
			for range 2 {
				db := openURL(t, d.url, option)
				entries, check = append(entries, openStore(t, db, mvcc.Options{})), db.Check
			}
			return entries, check
		})
	})
}

// TestUsageStored: a commit of a keyspace with limits stores the usage; one without does not.
func TestUsageStored(t *testing.T) {
	db := openTest(t)
	table := openTable(t, db, "default")
	err := table.Update(t.Context(), nil, func(tx kv.Tx) error {
		tx.SetUsage(kv.Usage{Keys: 1, Bytes: 2})
		return changesOf(tx, "a", "1")
	})
	if err != nil {
		t.Fatal(err)
	}
	stored := func(want string) {
		t.Helper()
		if got := ask(t, db, `SELECT concat(usage_rev = rev, ' ', usage_keys, ' ', usage_bytes) FROM head`); len(got) != 1 || got[0] != want {
			t.Errorf("stored: %v, want %s", got, want)
		}
	}
	stored("t 1 2")
	write(t, table, "b", "22")
	stored("f 1 2")
	if got, head, err := table.Usage(t.Context()); err != nil || got != (kv.Usage{Keys: 2, Bytes: 5}) || head.Revision != 3 {
		t.Error(got, head, err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestUsageOfParts(t *testing.T) {
	option := schemaOf(t)
	kvtest.UsageOfParts(t, func() kvtest.SplitDB { return openURL(t, server(t).SocketURL(), option) },
		func(db kv.Backend, table kv.Table) (kvtest.Limited, func() error) {
			k, err := mvcc.Open(context.Background(), table, db, mvcc.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return k, k.Close
		})
}

// withoutUsage removes the columns of the usage from the table head, as in earlier versions.
const withoutUsage = `DROP COLUMN usage_rev, DROP COLUMN usage_keys, DROP COLUMN usage_bytes`

// TestUsageMigration opens a schema from before the usage was stored: the first commit with limits counts.
func TestUsageMigration(t *testing.T) {
	schema := schemaOf(t)
	var o options
	schema(&o)
	url := server(t).SocketURL()
	db := openURL(t, url, schema)
	write(t, openTable(t, db, "default"), "a", "1", "b", "22")
	db.Close()
	sql(t, server(t), fmt.Sprintf(`ALTER TABLE %[1]s.head `+withoutUsage+`; DROP INDEX %[1]s.dropped_stage, %[1]s.dropped_since; UPDATE %[1]s.meta SET version = 5`, o.schema))
	db = openURL(t, url, schema)
	limit := int64(3)
	k := openStore(t, db, mvcc.Options{Limits: kv.Limits{Keys: &limit}})
	put := func(key string) error {
		_, err := k.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key)}}}})
		return err
	}
	if err := put("c"); err != nil {
		t.Error(err)
	}
	if err := put("d"); !errors.Is(err, kv.ErrLimitExceeded) {
		t.Error(err)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}
