package server

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

var pkiStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func openTestPKI(t *testing.T, dir string, now time.Time, names ...string) *pki {
	t.Helper()
	p, err := openPKI(dir, names, now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func leaf(t *testing.T, p *pki, name string) *x509.Certificate {
	t.Helper()
	certs, err := cert.CertsFromFile(p.file(name))
	if err != nil {
		t.Fatal(err)
	}
	return certs[0]
}

func TestCertificatesAreRenewedWhenDue(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	p := openTestPKI(t, dir, pkiStart, "localhost", "127.0.0.1")
	first := leaf(t, p, servingCert)
	pool := x509.NewCertPool()
	pool.AddCert(p.ca)
	for name, usage := range map[string]x509.ExtKeyUsage{servingCert: x509.ExtKeyUsageServerAuth, adminCert: x509.ExtKeyUsageClientAuth} {
		if _, err := leaf(t, p, name).Verify(x509.VerifyOptions{Roots: pool, CurrentTime: pkiStart, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := first.VerifyHostname("127.0.0.1"); err != nil {
		t.Error(err)
	}

	day := 24 * time.Hour
	for _, step := range []struct {
		what  string
		after time.Duration
		names []string
		same  bool
	}{
		{"a restart", day, []string{"localhost", "127.0.0.1"}, true},
		{"another name", day, []string{"localhost", "127.0.0.1", "atoll.example.com"}, false},
		{"that name again", 2 * day, []string{"localhost", "127.0.0.1", "atoll.example.com"}, true},
		{"three quarters of its time", 300 * day, []string{"localhost", "127.0.0.1", "atoll.example.com"}, false},
	} {
		before := leaf(t, p, servingCert)
		p = openTestPKI(t, dir, pkiStart.Add(step.after), step.names...)
		if same := leaf(t, p, servingCert).Equal(before); same != step.same {
			t.Errorf("after %s the certificate is unchanged: %v", step.what, same)
		}
	}
	if !leaf(t, p, caCert).Equal(p.ca) || p.ca.NotBefore.After(pkiStart) {
		t.Error("the certificate authority was replaced")
	}
}

func TestIncompleteAuthorityIsRejected(t *testing.T) {
	for _, lost := range []string{caCert, caKey} {
		dir := filepath.Join(t.TempDir(), "pki")
		openTestPKI(t, dir, pkiStart, "localhost")
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
		if _, err := openPKI(dir, []string{"localhost"}, pkiStart); err == nil || !strings.Contains(err.Error(), "backup") {
			t.Errorf("without %s: %v", lost, err)
		}
	}
}

func TestServingNamesAreStable(t *testing.T) {
	cfg := Config{BindAddress: "0.0.0.0", TLSNames: []string{"b.example.com", "a.example.com", "localhost"}}
	names := cfg.servingNames()
	if !slices.IsSorted(names) || !slices.Contains(names, "a.example.com") || !slices.Contains(names, "127.0.0.1") {
		t.Errorf("%v", names)
	}
	if again := cfg.servingNames(); !slices.Equal(names, again) {
		t.Errorf("%v, then %v", names, again)
	}
}
