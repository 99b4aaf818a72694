package server

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/playground/postgres"
)

// chain returns the certificates of a file.
func chain(t *testing.T, content []byte) []*x509.Certificate {
	t.Helper()
	all, err := cert.ParseCertsPEM(content)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// accepts reports whether a client that knows some authorities accepts a certificate.
func accepts(t *testing.T, authorities, presented []byte) bool {
	t.Helper()
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range chain(t, authorities) {
		roots.AddCert(c)
	}
	all := chain(t, presented)
	for _, c := range all[1:] {
		between.AddCert(c)
	}
	_, err := all[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

func TestRotateKeys(t *testing.T) {
	dataDir := t.TempDir()
	dir := filepath.Join(dataDir, "pki")
	read := func(name string) []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	start := func() (serving []byte) {
		t.Helper()
		if _, err := openPKI(dir, []string{"localhost"}, time.Now()); err != nil {
			t.Fatal(err)
		}
		return read(servingCert)
	}
	change := func(c KeyChange, dryRun bool, want string) {
		t.Helper()
		keys, err := ChangeKeys(t.Context(), KeyPlace{DataDir: dataDir}, c, time.Now().Add(time.Minute), dryRun)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range keys {
			state := k.Name
			if k.Former {
				state += "(former)"
			}
			got = append(got, state)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: %v, want %s", c, got, want)
		}
	}
	first := start()
	firstCA, firstAccount := read(caCert), read(serviceAccountKey)
	both := KeyChange{Authority: true, ServiceAccounts: true}
	const one, two = "authority service-accounts encryption", "authority authority(former) service-accounts service-accounts(former) encryption"

	change(KeyChange{}, true, one)
	change(both, true, two)
	if !bytes.Equal(firstCA, read(caCert)) {
		t.Error("a dry run changes the authority")
	}
	change(both, false, two)
	second := start()
	if bytes.Equal(first, second) {
		t.Error("the serving certificate is the former authority's")
	}
	if again := start(); !bytes.Equal(second, again) {
		t.Error("a second start signs again")
	}
	secondCA := read(caCert)
	newOnly := encodeCert(chain(t, secondCA)[0])
	for name, c := range map[string]struct{ authorities, presented []byte }{
		"former client, new server":       {firstCA, second},
		"new client, new server":          {newOnly, second},
		"both authorities, former server": {secondCA, first},
	} {
		if !accepts(t, c.authorities, c.presented) {
			t.Errorf("%s: refused", name)
		}
	}
	if accepts(t, newOnly, first) {
		t.Error("the new authority alone accepts a certificate of the former one")
	}
	public, err := keyutil.ParsePublicKeysPEM(read(serviceAccountKey))
	if err != nil || len(public) != 2 {
		t.Fatal(len(public), err)
	}
	former, err := keyutil.ParsePublicKeysPEM(firstAccount)
	if err != nil || fingerprint(former[0]) != fingerprint(public[1]) || fingerprint(former[0]) == fingerprint(public[0]) {
		t.Error("the former key of service accounts is not the second one", err)
	}

	change(KeyChange{Forget: true}, false, one)
	third := start()
	if len(chain(t, third)) != 1 || accepts(t, firstCA, third) || !accepts(t, newOnly, third) || !bytes.Equal(read(caCert), newOnly) {
		t.Error("the former authority is not forgotten")
	}
	// The copy that an interrupted rotation has left is the only one of the former files.
	copied := filepath.Join(dataDir, "pki.before-rotation")
	if err := os.Mkdir(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ChangeKeys(t.Context(), KeyPlace{DataDir: dataDir}, KeyChange{ServiceAccounts: true}, time.Now(), false); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Error("after an interrupted rotation:", err)
	}
	if err := os.Remove(copied); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dataDir); err != nil || len(entries) != 1 {
		t.Error("files remain", entries, err)
	}
}

func TestRotateSharedKeys(t *testing.T) {
	database, err := postgres.Start(t.Context(), postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Stop() })
	place := KeyPlace{Datastore: database.URL()}
	if _, err := ChangeKeys(t.Context(), KeyPlace{Datastore: place.Datastore, TokenFile: os.DevNull}, KeyChange{}, time.Now(), false); err == nil {
		t.Error("keys of an empty database")
	}
	store, err := OpenDatastore(t.Context(), place.Datastore)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	system, err := store.Keyspace(t.Context(), systemKeyspace, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer system.Close()
	first := shareTest(t, "")
	if err := first.share(system); err != nil {
		t.Fatal(err)
	}
	second := shareTest(t, filepath.Join(first.DataDir, tokenFile))
	if err := second.share(system); err != nil {
		t.Fatal(err)
	}
	stranger := shareTest(t, filepath.Join(first.DataDir, tokenFile))
	if _, err := openPKI(stranger.pki, nil, stranger.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("another-token-of-servers\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	change := func(c KeyChange) error {
		_, err := ChangeKeys(t.Context(), place, c, time.Now().Add(time.Minute), false)
		return err
	}
	if err := change(KeyChange{}); err == nil || !strings.Contains(err.Error(), "--token-file is required") {
		t.Error("without a token:", err)
	}
	place.TokenFile = token
	if err := change(KeyChange{Authority: true}); err == nil || !strings.Contains(err.Error(), "does not decrypt") {
		t.Error("with another token:", err)
	}
	place.TokenFile = filepath.Join(first.DataDir, tokenFile)
	if err := change(KeyChange{Authority: true, ServiceAccounts: true, NewTokenFile: token}); err != nil {
		t.Fatal(err)
	}
	// The former token is of no use; with the new one, the directory's files are replaced.
	if err := first.share(system); err == nil || !strings.Contains(err.Error(), "--token-file") {
		t.Error("the former token:", err)
	}
	for _, s := range []*sharing{first, second} {
		s.TokenFile = token
		if err := s.share(system); err != nil {
			t.Error(err)
		}
	}
	first.sameAs(second)
	if _, err := os.Stat(filepath.Join(first.pki, crossCert)); err != nil {
		t.Error(err)
	}
	stranger.TokenFile = token
	if err := stranger.share(system); err == nil || !strings.Contains(err.Error(), "another Atoll") {
		t.Error("a directory of another Atoll:", err)
	}
	place.TokenFile = token
	if err := change(KeyChange{Forget: true}); err != nil {
		t.Fatal(err)
	}
	if err := first.share(system); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(first.pki, crossCert)); err == nil {
		t.Error("the certificate by the former authority remains")
	}
	// A server that was not started between the two changes.
	if err := second.share(system); err != nil {
		t.Error(err)
	}
	first.sameAs(second)
}
