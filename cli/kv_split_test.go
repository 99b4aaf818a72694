package cli_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// TestSplit splits a keyspace, runs every command on it, and merges it again.
func TestSplit(t *testing.T) {
	dir := t.TempDir()
	datastore := "sqlite://" + filepath.Join(dir, "kv.db")
	use := func(work func(ks kv.Keyspace)) {
		t.Helper()
		db, err := server.OpenDatastore(t.Context(), datastore)
		if err != nil {
			t.Fatal(err)
		}
		ks, err := db.Keyspace(context.Background(), "default", mvcc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		work(ks)
		if err := ks.Close(); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	put := func(ks kv.Keyspace, key string) {
		t.Helper()
		if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: []byte("v")}}}}); err != nil {
			t.Fatal(err)
		}
	}
	use(func(ks kv.Keyspace) {
		for i := range 5 {
			put(ks, fmt.Sprint("/registry/events/", i))
			put(ks, fmt.Sprint("/registry/pods/", i))
		}
	})
	split := []string{"split", "--datastore", datastore, "--prefix", "/registry/events/"}
	const partition = "default@partition:/registry/events/"

	mustContain(t, "dry run", mustSucceed(t, append(split, "--dry-run")...), "would move 5 keys")
	mustFail(t, "end in /", "split", "--datastore", datastore, "--prefix", "/registry/events")
	mustFail(t, "no keyspace", "split", "--datastore", datastore, "--prefix", "/x/", "--keyspace", "other")
	mustFail(t, "not found", "merge", "--datastore", datastore, "--prefix", "/registry/events/")
	mustContain(t, "split", mustSucceed(t, split...), "moved 5 keys", partition)
	mustFail(t, "already exists", split...)
	use(func(ks kv.Keyspace) { // the orders part
		for range 20 {
			put(ks, "/registry/events/0")
		}
	})

	mustContain(t, "status", mustSucceed(t, "status", "--datastore", datastore), "default ", partition)
	mustContain(t, "status", mustSucceed(t, "status", "--datastore", datastore, "--keyspace", "default"), partition)
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", datastore), "no findings", partition)
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", datastore, "--keyspace", "default"), partition)
	if out := mustSucceed(t, "dump", "--datastore", datastore); strings.Count(out, "/registry/") != 10 {
		t.Errorf("dump of all:\n%s", out)
	}
	if out := mustSucceed(t, "dump", "--datastore", datastore, "--prefix", "/registry/events/", "--history"); strings.Count(out, "PUT") != 20 {
		t.Errorf("history of the partition:\n%s", out)
	}
	mustFail(t, "each partition has its own history", "dump", "--datastore", datastore, "--history")

	backup := filepath.Join(dir, "backup")
	mustContain(t, "backup", mustSucceed(t, "backup", "--datastore", datastore, "--to", backup), `keyspace "default"`, "10 keys", "includes its 1 partitions")
	restored := "sqlite://" + filepath.Join(dir, "restored.db")
	mustContain(t, "restore", mustSucceed(t, "restore", "--from", backup, "--to", restored), "10 put", "verified: 10 keys")
	if out := mustSucceed(t, "status", "--datastore", restored); strings.Contains(out, "@partition") {
		t.Errorf("restored with partitions:\n%s", out)
	}
	mustFail(t, "is split", "restore", "--from", backup, "--to", datastore, "--mirror")
	copied := "sqlite://" + filepath.Join(dir, "copied.db")
	mustContain(t, "copy", mustSucceed(t, "copy", "--from", datastore, "--to", copied), "10")

	mustContain(t, "compact", mustSucceed(t, "compact", "--datastore", datastore, "--keep-revisions", "3", "--physical"), "default", partition)
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", datastore), "no findings")

	mustContain(t, "merge", mustSucceed(t, "merge", "--datastore", datastore, "--prefix", "/registry/events/"), "moved 5 keys")
	if out := mustSucceed(t, "status", "--datastore", datastore); strings.Contains(out, "@partition") {
		t.Errorf("merged:\n%s", out)
	}
	mustContain(t, "check", mustSucceed(t, "check", "--datastore", datastore), "no findings")
	if out := mustSucceed(t, "dump", "--datastore", datastore); strings.Count(out, "/registry/") != 10 {
		t.Errorf("dump after the merge:\n%s", out)
	}

	mustFail(t, "is a partition", "serve", "--datastore", datastore, "--keyspace", partition)
}
