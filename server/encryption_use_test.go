package server

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// movingKeyspaces renames the keyspace of a workspace when it is opened for the first time.
type movingKeyspaces struct {
	*sqlite.DB
	moved bool
}

func (m *movingKeyspaces) OpenExisting(ctx context.Context, name string) (kv.Table, error) {
	if name == "workspace-1" && !m.moved {
		m.moved = true
		if err := m.Rename(ctx, name, "workspace-0"); err != nil {
			return nil, err
		}
	}
	return m.DB.OpenExisting(ctx, name)
}

// TestEncryptionUseOfMovedWorkspace: the values of a workspace that moves are counted, so the key that they need is not forgotten. No
// keyspace of the former name is created.
func TestEncryptionUseOfMovedWorkspace(t *testing.T) {
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store := &Datastore{Backend: db}
	keyspace, err := store.Keyspace(t.Context(), "workspace-1", mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = keyspace.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("k"), Value: []byte("k8s:enc:aesgcm:v1:former:...")}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := keyspace.Close(); err != nil {
		t.Fatal(err)
	}
	store.Backend = &movingKeyspaces{DB: db}
	use, err := encryptionUse(t.Context(), store)
	if err != nil || len(use["former"]) == 0 {
		t.Errorf("use %v, %v", use, err)
	}
	if names, err := store.Keyspaces(t.Context()); err != nil || len(names) != 1 || names[0] != "workspace-0" {
		t.Errorf("keyspaces %v, %v", names, err)
	}
}
