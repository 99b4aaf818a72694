package server

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/postgres"
)

func TestEncryptionKeysFile(t *testing.T) {
	now := time.Now()
	one, two := newEncryptionKey(now), newEncryptionKey(now)
	content := formatEncryptionKeys([]encryptionKey{one, two})
	keys, err := parseEncryptionKeys(content)
	if err != nil || len(keys) != 2 || keys[0].name != one.name || !bytes.Equal(keys[1].secret, two.secret) {
		t.Fatal(keys, err)
	}
	if again := formatEncryptionKeys(keys); !bytes.Equal(again, content) {
		t.Errorf("%s\n%s", content, again)
	}
	line := strings.Split(string(content), "\n")[2]
	for what, bad := range map[string]string{
		"cut short":     line[:40],
		"without time":  strings.Join(strings.Fields(line)[:2], " "),
		"short key":     "atoll-1 aGVsbG8= 2026-01-01T00:00:00Z",
		"foreign name":  strings.Replace(line, "atoll-", "other-", 1),
		"name of a key": line + "\n" + one.name + " " + strings.Fields(string(formatEncryptionKeys([]encryptionKey{two})))[len(strings.Fields(encryptionKeysHead))+1] + " 2026-01-01T00:00:00Z",
	} {
		if _, err := parseEncryptionKeys([]byte(bad)); err == nil || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("%s: %v", what, err)
		} else if strings.Contains(err.Error(), strings.Fields(line)[1]) {
			t.Errorf("%s: the error has the key: %v", what, err)
		}
	}
	merged, added, err := addEncryptionKeys(formatEncryptionKeys([]encryptionKey{one}), content)
	if err != nil || !added || !bytes.Equal(merged, content) {
		t.Error(string(merged), added, err)
	}
	if merged, added, err := addEncryptionKeys(content, formatEncryptionKeys([]encryptionKey{two})); err != nil || added || !bytes.Equal(merged, content) {
		t.Error(string(merged), added, err)
	}
}

// TestEmptyEncryptionKeys: an empty file, as of a full disk, is not replaced by new keys.
func TestEmptyEncryptionKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), encryptionKeys)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readOrCreateEncryptionKeys(path, time.Now()); err == nil || !strings.Contains(err.Error(), "backup") {
		t.Error(err)
	}
}

// TestForgetEncryptionKeys: a former key is kept while the present state or the history needs it, and
// while a running server may encrypt with it.
func TestForgetEncryptionKeys(t *testing.T) {
	dataDir := t.TempDir()
	dir := filepath.Join(dataDir, "pki")
	start := time.Now()
	if _, err := openPKI(dir, nil, start); err != nil {
		t.Fatal(err)
	}
	current := func() []Key {
		t.Helper()
		keys, err := Keys(t.Context(), KeyPlace{DataDir: dataDir})
		if err != nil {
			t.Fatal(err)
		}
		return keys[2:]
	}
	first := current()[0].Fingerprint
	if _, err := ChangeKeys(t.Context(), KeyPlace{DataDir: dataDir}, KeyChange{Encryption: true}, start, false); err != nil {
		t.Fatal(err)
	}
	forget := func(after time.Duration, want int, why string) {
		t.Helper()
		if _, err := ChangeKeys(t.Context(), KeyPlace{DataDir: dataDir}, KeyChange{Forget: true}, start.Add(after), false); err != nil {
			t.Fatal(err)
		}
		if keys := current(); len(keys) != want || want == 2 && keys[1].Fingerprint != first {
			t.Errorf("%s: %+v", why, keys)
		}
	}
	forget(time.Hour, 2, "the database is elsewhere")
	path := filepath.Join(dataDir, databaseFile)
	do := func(name string, use func(kv.Keyspace)) {
		t.Helper()
		store, err := OpenDatastore(t.Context(), SQLiteURL(path))
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		ks, err := store.Keyspace(t.Context(), name, mvcc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer ks.Close()
		use(ks)
	}
	put := func(value string) func(kv.Keyspace) {
		return func(ks kv.Keyspace) {
			if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte("/registry/secrets/a/b"), Value: []byte(value)}}}}); err != nil {
				t.Error(err)
			}
		}
	}
	do(Workspace, put("k8s:enc:aesgcm:v1:"+first+":box"))
	forget(time.Hour, 2, "a value is encrypted with it")
	do(Workspace, put("k8s:enc:aesgcm:v1:"+current()[0].Fingerprint+":box"))
	forget(time.Hour, 2, "the history has a value")
	compact := func(ks kv.Keyspace) {
		status, err := ks.Status(t.Context())
		if err == nil {
			_, err = ks.Compact(t.Context(), status.Revision, true)
		}
		if err != nil {
			t.Error(err)
		}
	}
	do(Workspace, compact)
	in := keyspaceOf("uid")
	do(in, put("k8s:enc:aesgcm:v1:"+first+":box"))
	do(Workspace, func(ks kv.Keyspace) {
		workspace := kv.Op{Put: &kv.PutOp{Key: []byte(storedWorkspaces + "team"), Value: []byte(`{"metadata":{"name":"team","uid":"uid"}}`)}}
		if _, err := ks.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{workspace}}); err != nil {
			t.Error(err)
		}
	})
	forget(time.Hour, 2, "a workspace below the root has a value")
	kept, err := ChangeKeys(t.Context(), KeyPlace{DataDir: dataDir}, KeyChange{Forget: true}, start.Add(time.Hour), true)
	if err != nil || len(kept) != 4 || len(kept[3].Needs) != 1 || kept[3].Needs[0].Workspace != "team" || kept[3].Needs[0].Resource != "secrets" || kept[3].Needs[0].Values != 1 {
		t.Errorf("the needs are not named: %+v, %v", kept, err)
	}
	do(in, put(""))
	do(in, compact)
	forget(time.Minute, 2, "a server may not know the new key yet")
	forget(time.Hour, 1, "it is not used")
}

// TestSharedEncryptionKeys: servers share the keys of encryption, also those that the directory of one
// has from another datastore, and never take back forgotten ones.
func TestSharedEncryptionKeys(t *testing.T) {
	database, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Stop() })
	store, err := OpenDatastore(t.Context(), database.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	system, err := store.Keyspace(t.Context(), systemKeyspace, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()

	// What a server of an earlier version has stored.
	first := shareTest(t, "")
	if _, err := openPKI(first.pki, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	file := func(s *sharing) string { return filepath.Join(s.pki, encryptionKeys) }
	if err := os.Remove(file(first)); err != nil {
		t.Fatal(err)
	}
	token, err := readToken(first.Config, true)
	if err != nil {
		t.Fatal(err)
	}
	if held, err := putSealed(context.Background(), system, token, first.pki); err != nil || held == nil {
		t.Fatal(err)
	}

	if err := first.share(system); err != nil {
		t.Fatal(err)
	}
	second := shareTest(t, filepath.Join(first.DataDir, tokenFile))
	if err := second.share(system); err != nil {
		t.Fatal(err)
	}
	read := func(s *sharing) []encryptionKey {
		t.Helper()
		content, err := os.ReadFile(file(s))
		if err != nil {
			t.Fatal(err)
		}
		keys, err := parseEncryptionKeys(content)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if one := read(first); len(one) != 1 || read(second)[0].name != one[0].name {
		t.Fatal("servers have different keys")
	}
	res, err := system.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}})
	if err != nil || bytes.Contains(res.KVs[0].Value, []byte("atoll-")) {
		t.Fatal("the datastore has the key in clear", err)
	}

	// The key of another datastore, whose data was copied.
	foreign := newEncryptionKey(time.Now())
	content, err := os.ReadFile(file(second))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file(second), append(content, formatEncryptionKeys([]encryptionKey{foreign})...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*sharing{second, first} {
		if err := s.share(system); err != nil {
			t.Fatal(err)
		}
		if keys := read(s); len(keys) != 2 || keys[1].name != foreign.name {
			t.Error("the added key is not shared:", len(keys))
		}
	}

	place := KeyPlace{Datastore: database.URL(), TokenFile: filepath.Join(first.DataDir, tokenFile)}
	for _, change := range []KeyChange{{Encryption: true}, {Forget: true}} {
		if _, err := ChangeKeys(t.Context(), place, change, time.Now().Add(time.Hour), false); err != nil {
			t.Fatal(err)
		}
	}
	place.TokenFile = filepath.Join(second.DataDir, tokenFile)
	keys, err := ChangeKeys(t.Context(), place, KeyChange{Forget: true}, time.Now().Add(2*time.Hour), false)
	if err != nil || len(keys) != 3 {
		t.Fatal(keys, err)
	}
	for _, s := range []*sharing{first, second} {
		if err := s.share(system); err != nil {
			t.Fatal(err)
		}
		if got := read(s); len(got) != 1 || got[0].name != keys[2].Fingerprint {
			t.Errorf("after the keys were forgotten: %d", len(got))
		}
	}
}
