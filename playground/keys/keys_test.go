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

func TestMadeOnceAndVerifying(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	made, err := keys.LoadOrMake(dir, "east")
	if err != nil {
		t.Fatal(err)
	}
	roots, err := cert.NewPool(made.CACert)
	if err != nil {
		t.Fatal(err)
	}
	for file, options := range map[string]x509.VerifyOptions{
		made.ServerCert: {Roots: roots, DNSName: "127.0.0.1"},
		made.AdminCert:  {Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
	} {
		certs, err := cert.CertsFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certs[0].Verify(options); err != nil {
			t.Errorf("%s: %v", filepath.Base(file), err)
		}
	}
	before, _ := os.ReadFile(made.ServerCert)
	if _, err := keys.LoadOrMake(dir, "east"); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(made.ServerCert); string(after) != string(before) {
		t.Error("a second start made new certificates")
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
		t.Errorf("kubeconfig for %q lacks what it should carry", config.Host)
	}
}
