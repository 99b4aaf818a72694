package apiserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
)

var (
	testSecrets = schema.GroupResource{Resource: "secrets"}
	testThings  = schema.GroupResource{Group: "example.com", Resource: "things"}
)

func testKey(n byte) EncryptionKey {
	return EncryptionKey{Name: fmt.Sprintf("atoll-%d", n), Secret: bytes.Repeat([]byte{n}, 32)}
}

// encryptionOf returns an encryption by default, under an EncryptionConfiguration if entries are given.
func encryptionOf(t *testing.T, entries string, keys ...EncryptionKey) *encryption {
	t.Helper()
	e, err := newEncryption(&DefaultEncryption{Resources: []schema.GroupResource{testSecrets, testThings}, Keys: keys, KeyFile: "/data/pki/encryption.keys"})
	if err != nil {
		t.Fatal(err)
	}
	if entries == "" {
		return e
	}
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"+entries), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := encryptionconfig.LoadEncryptionConfig(t.Context(), path, false, "")
	if err != nil {
		t.Fatal(err)
	}
	e.configured = encryptionconfig.StaticTransformers(loaded.Transformers)
	return e
}

func gcmEntry(resource, provider, name string, key byte) string {
	return fmt.Sprintf("- resources: [%q]\n  providers:\n  - %s: {keys: [{name: %s, secret: %s}]}\n  - identity: {}\n",
		resource, provider, name, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key}, 32)))
}

// TestEncryptionFollows stores values with one encryption and reads them with another.
func TestEncryptionFollows(t *testing.T) {
	const own = "k8s:enc:aescbc:v1:own:"
	for name, tc := range map[string]struct {
		before, after *encryption
		resource      schema.GroupResource
		stored        string // prefix; empty is plain
		stale         bool
		fails         string
	}{
		"the same key":                          {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"a custom resource":                     {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", testKey(1)), testThings, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"another resource":                      {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", testKey(1)), schema.GroupResource{Resource: "configmaps"}, "", false, ""},
		"from before encryption":                {encryptionOf(t, ""), encryptionOf(t, "", testKey(1)), testSecrets, "", true, ""},
		"a former key":                          {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", testKey(2), testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
		"a key that is gone":                    {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", testKey(2)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, "/data/pki/encryption.keys"},
		"another key of that name":              {encryptionOf(t, "", testKey(1)), encryptionOf(t, "", EncryptionKey{"atoll-1", bytes.Repeat([]byte{9}, 32)}), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, "damaged"},
		"no keys any more":                      {encryptionOf(t, "", testKey(1)), encryptionOf(t, ""), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, "/data/pki/encryption.keys"},
		"a configuration is introduced":         {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("secrets", "aescbc", "own", 3), testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
		"it does not name the resource":         {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("configmaps", "aescbc", "own", 3), testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"it names all resources":                {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("*.*", "aescbc", "own", 3), testKey(1)), testThings, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
		"it names the group":                    {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("*.example.com", "aescbc", "own", 3), testKey(1)), testThings, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
		"it has another key of its provider":    {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("secrets", "aesgcm", "own", 3), testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
		"it has the default key":                {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("secrets", "aesgcm", "atoll-1", 1), testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"only it has the default key":           {encryptionOf(t, "", testKey(1)), encryptionOf(t, gcmEntry("secrets", "aesgcm", "atoll-1", 1), testKey(2)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"the configuration stays":               {encryptionOf(t, gcmEntry("secrets", "aescbc", "own", 3), testKey(1)), encryptionOf(t, gcmEntry("secrets", "aescbc", "own", 3), testKey(1)), testSecrets, own, false, ""},
		"the configuration is gone":             {encryptionOf(t, gcmEntry("secrets", "aescbc", "own", 3), testKey(1)), encryptionOf(t, "", testKey(1)), testSecrets, own, false, "--encryption-provider-config"},
		"the configuration had the default key": {encryptionOf(t, gcmEntry("secrets", "aesgcm", "atoll-1", 1), testKey(1)), encryptionOf(t, "", testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", false, ""},
		"identity is configured":                {encryptionOf(t, "", testKey(1)), encryptionOf(t, "- resources: [secrets]\n  providers: [{identity: {}}]\n", testKey(1)), testSecrets, "k8s:enc:aesgcm:v1:atoll-1:", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			at := value.DefaultContext("/registry/some/key")
			const plain = `{"kind":"Secret","data":"sesame"}`
			stored, err := tc.before.transformer(tc.resource).TransformToStorage(t.Context(), []byte(plain), at)
			if err != nil {
				t.Fatal(err)
			}
			if tc.stored == "" && string(stored) != plain || !bytes.HasPrefix(stored, []byte(tc.stored)) || tc.stored != "" && bytes.Contains(stored, []byte("sesame")) {
				t.Fatalf("stored as %q", stored)
			}
			got, stale, err := tc.after.transformer(tc.resource).TransformFromStorage(t.Context(), stored, at)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || strings.Contains(err.Error(), "sesame") {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if err != nil || string(got) != plain || stale != tc.stale {
				t.Errorf("%q, stale %v, %v", got, stale, err)
			}
			if tc.stored == "" {
				return
			}
			if _, _, err := tc.after.transformer(tc.resource).TransformFromStorage(t.Context(), stored, value.DefaultContext("/registry/other/key")); strings.Contains(tc.stored, "aesgcm") && err == nil {
				t.Error("a value that was moved to another key is accepted")
			}
		})
	}
}

// TestKeysAreReloaded: a value under an unknown key makes a server read its keys again, once in a while.
func TestKeysAreReloaded(t *testing.T) {
	at := value.DefaultContext("/registry/secrets/a/b")
	other := encryptionOf(t, "", testKey(2), testKey(1))
	stored, err := other.transformer(testSecrets).TransformToStorage(t.Context(), []byte("{}"), at)
	if err != nil {
		t.Fatal(err)
	}
	e := encryptionOf(t, "", testKey(1))
	calls := 0
	e.defaults.Reload = func(context.Context) ([]EncryptionKey, error) {
		calls++
		return []EncryptionKey{testKey(2), testKey(1)}, nil
	}
	tr := e.transformer(testSecrets)
	if plain, stale, err := tr.TransformFromStorage(t.Context(), stored, at); err != nil || string(plain) != "{}" || stale || calls != 1 {
		t.Fatalf("%q, %v, %v, %d calls", plain, stale, err, calls)
	}
	select {
	case <-e.changed:
	default:
		t.Error("the rewriter does not know of the new key")
	}
	if again, err := tr.TransformToStorage(t.Context(), []byte("{}"), at); err != nil || !bytes.HasPrefix(again, []byte("k8s:enc:aesgcm:v1:atoll-2:")) {
		t.Errorf("the new key does not encrypt: %q, %v", again, err)
	}
	unknown, err := encryptionOf(t, "", testKey(3)).transformer(testSecrets).TransformToStorage(t.Context(), []byte("{}"), at)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if _, _, err := tr.TransformFromStorage(t.Context(), unknown, at); err == nil || !strings.Contains(err.Error(), "atoll-3") {
			t.Fatal(err)
		}
	}
	if calls > 2 {
		t.Errorf("the keys were read %d times", calls)
	}

	failing := encryptionOf(t, "", testKey(1))
	failing.defaults.Reload = func(context.Context) ([]EncryptionKey, error) { return nil, errors.New("database is away") }
	if _, _, err := failing.transformer(testSecrets).TransformFromStorage(t.Context(), unknown, at); err == nil || !strings.Contains(err.Error(), "database is away") {
		t.Error(err)
	}
}
