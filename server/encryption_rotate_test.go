package server_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/playground/postgres"
	"github.com/atoll-dev/atoll/server"
)

func (a atoll) createSecret(t *testing.T, name, word string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": word}}
	if _, err := a.client(t).CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (a atoll) hasSecret(t *testing.T, name, word string) {
	t.Helper()
	got, err := a.client(t).CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || string(got.Data["word"]) != word {
		t.Errorf("Secret %s: %q, %v", name, got.Data["word"], err)
	}
}

// storedUnder returns how many Secrets of namespace default are encrypted with a key, and how many there are.
func storedUnder(t *testing.T, datastore, key string) (with, all int) {
	t.Helper()
	store, err := server.OpenDatastoreReadOnly(t.Context(), datastore)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	table, err := store.Open(t.Context(), server.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("/registry/secrets/default/"))}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.KVs {
		if bytes.HasPrefix(e.Value, []byte("k8s:enc:aesgcm:v1:"+key+":")) {
			with++
		}
	}
	return with, len(res.KVs)
}

// encryptionKeysOf returns the names of the keys, the present one first.
func encryptionKeysOf(t *testing.T, place server.KeyPlace) (names []string) {
	t.Helper()
	keys, err := server.Keys(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if k.Name == server.KeyEncryption {
			names = append(names, k.Fingerprint)
		}
	}
	return names
}

// TestRotateEncryptionOfOneServer: after a rotation and a restart, everything is encrypted with the new key. A server
// without the key of its data names the file, and starts when it is back.
func TestRotateEncryptionOfOneServer(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WithoutWorkloadAPIs: true}
	place := server.KeyPlace{DataDir: cfg.DataDir}
	datastore := server.SQLiteURL(filepath.Join(cfg.DataDir, "atoll.db"))
	a := newServer(t, cfg)
	a.createSecret(t, "one", "sesame")
	if _, err := server.ChangeKeys(t.Context(), place, server.KeyChange{Encryption: true}, time.Now(), false); err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a = newServer(t, cfg)
	keys := encryptionKeysOf(t, place)
	eventually(t, "the Secret is encrypted with the new key", func(context.Context) error {
		if with, all := storedUnder(t, datastore, keys[0]); with != 1 || all != 1 {
			return fmt.Errorf("%d of %d", with, all)
		}
		return nil
	})
	a.hasSecret(t, "one", "sesame")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(cfg.DataDir, "pki", "encryption.keys")
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(t.Context(), cfg)
	if err == nil {
		s.Close()
		t.Fatal("a server without the key of its data has started")
	}
	for _, word := range []string{file, keys[0], "secrets/default/one", "backup"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error lacks %q: %v", word, err)
		}
	}
	// Appended, as the error says, to the file that was created.
	created, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(created, kept...), 0o600); err != nil {
		t.Fatal(err)
	}
	a = newServer(t, cfg)
	a.hasSecret(t, "one", "sesame")
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestRotateEncryptionOfServers: servers that share a database read values that others encrypted with a new key before
// they are restarted themselves, and then encrypt with it. The former key can be forgotten.
func TestRotateEncryptionOfServers(t *testing.T) {
	database, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Stop() })
	configs := []server.Config{{DataDir: t.TempDir()}, {DataDir: t.TempDir()}}
	servers := make([]atoll, len(configs))
	for i := range configs {
		configs[i].Datastore, configs[i].WithoutWorkloadAPIs = database.URL(), true
		if i > 0 {
			configs[i].TokenFile = filepath.Join(configs[0].DataDir, "token")
		}
		servers[i] = newServer(t, configs[i])
	}
	stop := func(i int) {
		t.Helper()
		if err := servers[i].stop(); err != nil {
			t.Fatal(err)
		}
	}
	servers[0].createSecret(t, "one", "sesame")
	servers[1].hasSecret(t, "one", "sesame")
	servers[0].createWorkspace(t, "team-a")
	inWorkspace := servers[1]
	inWorkspace.path = "/clusters/team-a"
	inWorkspace.createSecret(t, "one", "tide")
	place := server.KeyPlace{Datastore: database.URL(), TokenFile: filepath.Join(configs[0].DataDir, "token")}
	former := encryptionKeysOf(t, place)[0]
	if _, err := server.ChangeKeys(t.Context(), place, server.KeyChange{Encryption: true}, time.Now().Add(-time.Hour), false); err != nil {
		t.Fatal(err)
	}
	stop(0)
	servers[0] = newServer(t, configs[0])
	servers[0].createSecret(t, "two", "open")
	keys := encryptionKeysOf(t, place)
	if len(keys) != 2 || keys[1] != former {
		t.Fatal(keys)
	}
	servers[1].hasSecret(t, "two", "open")
	servers[1].createSecret(t, "three", "lagoon")
	eventually(t, "all Secrets are encrypted with the new key", func(context.Context) error {
		if with, all := storedUnder(t, database.URL(), keys[0]); with != 3 || all != 3 {
			return fmt.Errorf("%d of %d", with, all)
		}
		if all := storedInWorkspaces(t, database.URL()); len(all) != 1 || all[0].under != keys[0] {
			return fmt.Errorf("in workspaces: %v", all)
		}
		return nil
	})
	servers[0].hasSecret(t, "three", "lagoon")
	forget := func() []string {
		t.Helper()
		if _, err := server.ChangeKeys(t.Context(), place, server.KeyChange{Forget: true}, time.Now(), false); err != nil {
			t.Fatal(err)
		}
		return encryptionKeysOf(t, place)
	}
	if kept := forget(); len(kept) != 2 {
		t.Error("the former key is forgotten while the history needs it", kept)
	}
	stop(0)
	stop(1)
	compactAll(t, database.URL())
	if kept := forget(); len(kept) != 2 {
		t.Error("the former key is forgotten while the history of a workspace needs it", kept)
	}
	compact(t, database.URL(), storedInWorkspaces(t, database.URL())[0].keyspace)
	if kept := forget(); len(kept) != 1 || kept[0] != keys[0] {
		t.Error("the former key is not forgotten", kept)
	}
	for i := range servers {
		servers[i] = newServer(t, configs[i])
		servers[i].hasSecret(t, "one", "sesame")
		again := servers[i]
		again.path = "/clusters/team-a"
		again.hasSecret(t, "one", "tide")
		stop(i)
	}
}

// compactAll compacts the history of the root.
func compactAll(t *testing.T, datastore string) {
	t.Helper()
	compact(t, datastore, server.Workspace)
}

// compact compacts the history of a keyspace while no server runs.
func compact(t *testing.T, datastore, keyspace string) {
	t.Helper()
	store, err := server.OpenDatastore(t.Context(), datastore)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	table, err := store.Open(t.Context(), keyspace)
	if err != nil {
		t.Fatal(err)
	}
	head, err := table.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := table.SetCompacted(t.Context(), head.Revision); err != nil {
		t.Fatal(err)
	}
}
