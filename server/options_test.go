package server_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/server"
)

// TestAuditAndEncryption checks these two upstream features with our storage.
func TestAuditAndEncryption(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	auditLog := filepath.Join(dir, "audit.log")
	cfg := server.Config{
		DataDir:             filepath.Join(dir, "data"),
		WithoutWorkloadAPIs: true,
		Audit: apiserver.Audit{
			PolicyFile: write("policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, resources: [{group: "", resources: [secrets]}]}]
`),
			LogPath: auditLog,
		},
		EncryptionConfigFile: write("encryption.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: k1, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`),
	}
	s := newServer(t, cfg)
	const plaintext = "the lagoon is deep"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sealed"}, StringData: map[string]string{"k": plaintext}}
	if _, err := s.client(t).CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is in the audit log", func(context.Context) error {
		log, err := os.ReadFile(auditLog)
		if err == nil && !(bytes.Contains(log, []byte(`"name":"sealed"`)) && bytes.Contains(log, []byte(`"username":"atoll-admin"`))) {
			err = fmt.Errorf("audit log has %d bytes, without the request", len(log))
		}
		return err
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}

	files, err := filepath.Glob(filepath.Join(cfg.DataDir, "atoll.db*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no database file", err)
	}
	sealed := false
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(content, []byte(plaintext)) {
			t.Errorf("%s holds the secret in plain text", filepath.Base(file))
		}
		sealed = sealed || bytes.Contains(content, []byte("k8s:enc:aescbc:v1:k1:"))
	}
	if !sealed {
		t.Error("nothing in the database is encrypted")
	}

	s = newServer(t, cfg)
	got, err := s.client(t).CoreV1().Secrets("default").Get(t.Context(), "sealed", metav1.GetOptions{})
	if err != nil || string(got.Data["k"]) != plaintext {
		t.Errorf("after a restart: %q, %v", got.Data["k"], err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestErrorsNameUnusableFiles(t *testing.T) {
	for name, change := range map[string]func(*server.Config){
		"audit policy": func(c *server.Config) { c.Audit.PolicyFile, c.Audit.LogPath = "/nowhere/policy.yaml", "-" },
		"encryption":   func(c *server.Config) { c.EncryptionConfigFile = "/nowhere/encryption.yaml" },
		"plugin":       func(c *server.Config) { c.EnableAdmissionPlugins = []string{"nowhere"} },
		// Before the database is waited for.
		"token": func(c *server.Config) { c.Datastore, c.TokenFile = "postgres://127.0.0.1:1/d", "/nowhere/token" },
		"token of SQLite": func(c *server.Config) {
			c.TokenFile = filepath.Join(c.DataDir, "nowhere")
			_ = os.WriteFile(c.TokenFile, []byte("a token of sixteen"), 0o600)
		},
		"cluster": func(c *server.Config) { c.Cluster = "nowhere.East" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := server.Config{DataDir: t.TempDir()}
			change(&cfg)
			s, err := server.New(t.Context(), cfg)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), "nowhere") {
				t.Errorf("error %q does not name the file", err)
			}
		})
	}
}
