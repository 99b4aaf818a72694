package keys_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"

	"github.com/atoll-dev/atoll/playground/keys"
)

func TestCertificatesVerifyAndAreGeneratedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	made, err := keys.LoadOrMake(dir, "east")
	if err != nil {
		t.Fatal(err)
	}
	pool := func(file string) *x509.CertPool {
		roots, err := cert.NewPool(file)
		if err != nil {
			t.Fatal(err)
		}
		return roots
	}
	roots, frontProxyRoots := pool(made.CACert), pool(made.FrontProxyCACert)
	asClient := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for file, options := range map[string]x509.VerifyOptions{
		made.ServerCert:     {Roots: roots, DNSName: "127.0.0.1"},
		made.AdminCert:      {Roots: roots, KeyUsages: asClient},
		made.FrontProxyCert: {Roots: frontProxyRoots, KeyUsages: asClient},
	} {
		certs, err := cert.CertsFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certs[0].Verify(options); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
	// Neither CA may verify certificates of the other.
	for file, wrong := range map[string]*x509.CertPool{made.AdminCert: frontProxyRoots, made.FrontProxyCert: roots} {
		certs, err := cert.CertsFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certs[0].Verify(x509.VerifyOptions{Roots: wrong, KeyUsages: asClient}); err == nil {
			t.Errorf("%s is verified by the wrong authority", filepath.Base(file))
		}
	}
	before, _ := os.ReadFile(made.ServerCert)
	if _, err := keys.LoadOrMake(dir, "east"); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(made.ServerCert); string(after) != string(before) {
		t.Error("a second start generated new certificates")
	}

	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := made.WriteKubeconfig(kubeconfig, "east", "https://127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:1" || len(config.CertData) == 0 || len(config.CAData) == 0 {
		t.Errorf("kubeconfig for %q: wrong server, or no inlined certificates", config.Host)
	}
}

// TestEarlierDirectoryIsCompleted loads a directory without a front proxy, as earlier versions
// generated it. The missing files are added and the others kept.
func TestEarlierDirectoryIsCompleted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	made, err := keys.LoadOrMake(dir, "east")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(made.CACert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(made.FrontProxyCACert)); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.LoadOrMake(dir, "east"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(made.CACert); err != nil || string(after) != string(before) {
		t.Errorf("the cluster's CA changed or does not exist: %v", err)
	}
	if certs, err := cert.CertsFromFile(made.FrontProxyCert); err != nil || certs[0].Subject.CommonName != keys.FrontProxyName {
		t.Errorf("front-proxy certificate: %v", err)
	}
}
