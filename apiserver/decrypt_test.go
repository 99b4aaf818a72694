package apiserver_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/v3/kubernetes"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// encryptedBy writes an encryption configuration and returns its file.
func encryptedBy(t *testing.T) string {
	t.Helper()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	config := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [gadgets.tools.example.com, "*.shop.example.com"]
  providers:
  - aesgcm: {keys: [{name: first, secret: %s}]}
  - identity: {}
`, key)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDecryptionIsChecked: a server that lacks the keys of its data refuses to start, and names them.
func TestDecryptionIsChecked(t *testing.T) {
	t.Parallel()
	configuration := func(key byte) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		config := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: first, secret: %s}]}
  - identity: {}
`, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key}, 32)))
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct{ file, want string }{
		"without a configuration": {"", "--encryption-provider-config"},
		"with another key":        {configuration(1), "aescbc:v1:other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
			cfg := makeFiles(t)
			cfg.EncryptionConfigFile = tc.file
			server := startServer(t, keyspace, cfg, "sole")
			t.Cleanup(func() {
				if err := server.stop(); err != nil {
					t.Error(err)
				}
			})
			secret := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret",
				"metadata": map[string]any{"name": "a"}, "stringData": map[string]any{"a": "b"}}}
			secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
			if _, err := dynamicClient(t, server.config).Resource(secrets).Namespace("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := server.server.CheckDecryption(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := keyspace.Put(t.Context(), "/registry/secrets/default/b", "k8s:enc:aescbc:v1:other:0123456789abcdef0123456789abcdef"); err != nil {
				t.Fatal(err)
			}
			err := server.server.CheckDecryption(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "secrets/default/b") {
				t.Error(err)
			}
		})
	}
}

// TestDecrypt: custom resources and kinds without CRDs are stored encrypted if the
// encryption configuration names them, and readers of the keyspace can decrypt them by
// their keys.
func TestDecrypt(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	cfg := makeFiles(t)
	cfg.Kinds, cfg.EncryptionConfigFile = servedBySource(newSource(shops()...)), encryptedBy(t)
	server := startServer(t, keyspace, cfg, "sole")
	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})
	defineGadgets(t, server)
	crds, err := apiextensions.NewForConfig(server.config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crdOf(gadgets().Group, "Gear"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gears := gadgets().GroupVersion().WithResource("gears")
	await(t, "gears are served", func() error {
		if code, _, body := ask(t, server.config, "/apis/tools.example.com/v1/gears"); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})

	for _, tt := range []struct {
		resource  schema.GroupVersionResource
		object    *unstructured.Unstructured
		encrypted bool
	}{
		{gadgets(), gadget("one", `{"word":"sesame"}`), true},
		{shopWidgets, widget("one", `{"color":"sesame"}`), true},
		{gears, gear("one", `{"word":"sesame"}`), false},
	} {
		if _, err := dynamicClient(t, server.config).Resource(tt.resource).Namespace("default").Create(t.Context(), tt.object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		resource := tt.resource.GroupResource()
		key := "/registry/" + resource.Group + "/" + resource.Resource + "/default/one"
		stored := storedUnder(t, keyspace, key)
		if got := bytes.HasPrefix(stored, []byte("k8s:enc:aesgcm:v1:first:")) && !bytes.Contains(stored, []byte("sesame")); got != tt.encrypted {
			t.Errorf("%s: encrypted: %v", resource, got)
		}
		plain, err := server.server.Decrypt(t.Context(), resource, key, stored)
		if err != nil {
			t.Fatal(err)
		}
		var object unstructured.Unstructured
		if err := json.Unmarshal(plain, &object.Object); err != nil || object.GetName() != "one" || !bytes.Contains(plain, []byte("sesame")) {
			t.Errorf("%s: %s, %v", resource, plain, err)
		}
		// Values stored before encryption was configured stay readable.
		if again, err := server.server.Decrypt(t.Context(), resource, key, plain); err != nil || !bytes.Equal(again, plain) {
			t.Errorf("%s: stored plain: %v", resource, err)
		}
		if !tt.encrypted {
			continue
		}
		for what, try := range map[string]func() ([]byte, error){
			"under another key": func() ([]byte, error) { return server.server.Decrypt(t.Context(), resource, key+"x", stored) },
			"cut short": func() ([]byte, error) {
				return server.server.Decrypt(t.Context(), resource, key, stored[:len(stored)-1])
			},
			"of a resource that is not encrypted": func() ([]byte, error) {
				return server.server.Decrypt(t.Context(), gears.GroupResource(), key, stored)
			},
		} {
			if got, err := try(); err == nil || got != nil || strings.Contains(err.Error(), "sesame") || !strings.Contains(err.Error(), "decrypt ") {
				t.Errorf("%s, %s: %q, %v", resource, what, got, err)
			}
		}
	}
}

func gear(name, spec string) *unstructured.Unstructured {
	u := gadget(name, spec)
	u.SetKind("Gear")
	return u
}

func storedUnder(t *testing.T, keyspace *kubernetes.Client, key string) []byte {
	t.Helper()
	answer, err := keyspace.Kubernetes.Get(t.Context(), key, kubernetes.GetOptions{})
	if err != nil || answer.KV == nil {
		t.Fatalf("nothing is stored under %s: %v", key, err)
	}
	return answer.KV.Value
}
