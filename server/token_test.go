package server

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func TestServersShareKeys(t *testing.T) {
	keyspace := openSystemKeyspace(t)
	first := shareTest(t, "")
	if err := first.share(keyspace); err != nil {
		t.Fatal(err)
	}
	res, err := keyspace.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte(sharedKey)}})
	if err != nil || len(res.KVs) != 1 || bytes.Contains(res.KVs[0].Value, []byte("PRIVATE")) {
		t.Fatalf("the datastore has %v, %v", res, err)
	}

	if err := shareTest(t, "").share(keyspace); err == nil || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("without the token: %v", err)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := shareTest(t, wrong).share(keyspace); err == nil || !strings.Contains(err.Error(), "--token-file") {
		t.Errorf("with another token: %v", err)
	}
	if err := os.WriteFile(wrong, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := shareTest(t, wrong).share(keyspace); err == nil || !strings.Contains(err.Error(), "at least") {
		t.Errorf("with a short token: %v", err)
	}

	second := shareTest(t, filepath.Join(first.DataDir, tokenFile))
	if err := second.share(keyspace); err != nil {
		t.Fatal(err)
	}
	first.sameAs(second)
	second.TokenFile = "" // it has stored the token
	if err := second.share(keyspace); err != nil {
		t.Errorf("the next start: %v", err)
	}

	other := shareTest(t, filepath.Join(first.DataDir, tokenFile))
	if _, err := openPKI(other.pki, nil, other.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	if err := other.share(keyspace); err == nil || !strings.Contains(err.Error(), "another Atoll") {
		t.Errorf("a directory with other keys: %v", err)
	}
}

func TestServersStartAtOnce(t *testing.T) {
	keyspace := openSystemKeyspace(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers := make([]*sharing, 4)
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i := range servers {
		servers[i] = shareTest(t, token)
		wg.Go(func() { errs[i] = servers[i].share(keyspace) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, s := range servers[1:] {
		servers[0].sameAs(s)
	}
}

// TestKeysOfOneServerAreKept: if a server with its own datastore moves to a shared one,
// its clients need no new kubeconfig.
func TestKeysOfOneServerAreKept(t *testing.T) {
	s := shareTest(t, "")
	before, err := openPKI(s.pki, nil, s.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.share(openSystemKeyspace(t)); err != nil {
		t.Fatal(err)
	}
	after, err := openPKI(s.pki, nil, s.Clock.Now())
	if err != nil || !after.ca.Equal(before.ca) {
		t.Errorf("the authority has changed: %v", err)
	}
}

type sharing struct {
	*Config
	t   *testing.T
	pki string
}

func shareTest(t *testing.T, token string) *sharing {
	dir := t.TempDir()
	return &sharing{&Config{DataDir: dir, TokenFile: token, Clock: clock.RealClock{}}, t, filepath.Join(dir, "pki")}
}

func (s *sharing) share(keyspace kv.Keyspace) error {
	return shareKeys(context.Background(), keyspace, s.Config, s.pki)
}

func (s *sharing) sameAs(other *sharing) {
	s.t.Helper()
	for _, name := range sharedFiles {
		a, err1 := os.ReadFile(filepath.Join(s.pki, name))
		b, err2 := os.ReadFile(filepath.Join(other.pki, name))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			s.t.Errorf("%s differs: %v, %v", name, err1, err2)
		}
	}
}

func openSystemKeyspace(t *testing.T) kv.Keyspace {
	db, err := OpenDatastore(t.Context(), "sqlite://"+filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	keyspace, err := db.Keyspace(t.Context(), systemKeyspace, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyspace.Close() })
	return keyspace
}
