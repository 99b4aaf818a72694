package apiserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kms "k8s.io/kms/apis/v2"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// fakeKMS is a KMS v2 plug-in. Its key is XOR.
type fakeKMS struct {
	kms.UnimplementedKeyManagementServiceServer
	mu       sync.Mutex
	key      string
	decrypts int
}

func (k *fakeKMS) Status(context.Context, *kms.StatusRequest) (*kms.StatusResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyId: k.key}, nil
}

func (k *fakeKMS) Encrypt(_ context.Context, r *kms.EncryptRequest) (*kms.EncryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &kms.EncryptResponse{Ciphertext: scramble(r.Plaintext), KeyId: k.key}, nil
}

func (k *fakeKMS) Decrypt(_ context.Context, r *kms.DecryptRequest) (*kms.DecryptResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.decrypts++
	return &kms.DecryptResponse{Plaintext: scramble(r.Ciphertext)}, nil
}

func scramble(in []byte) []byte {
	out := bytes.Clone(in)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

// serveKMS serves a plug-in on a Unix socket, and returns an EncryptionConfiguration that uses it.
func serveKMS(t *testing.T, plugin *fakeKMS) (configuration string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	kms.RegisterKeyManagementServiceServer(server, plugin)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	configuration = filepath.Join(dir, "encryption.yaml")
	text := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: fake, endpoint: "unix://%s"}
  - identity: {}
`, socket)
	if err := os.WriteFile(configuration, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return configuration
}

// TestKMS introduces a KMS v2 plug-in on data that are encrypted by default. The plug-in's keys then protect
// all Secrets, and the default protects the other resources.
func TestKMS(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := withKeys(makeFiles(t), defaultKey(1))
	create := func(server running, name string) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"word": "sesame"}}
		if _, err := server.client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	server := startServer(t, keyspace, files, "sole")
	defineGadgets(t, server)
	create(server, "before")
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}

	plugin := &fakeKMS{key: "key-1"}
	files.EncryptionConfigFile = serveKMS(t, plugin)
	server = startServer(t, keyspace, files, "sole")
	create(server, "with")
	if _, err := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default").Create(t.Context(), gadget("one", `{"word":"sesame"}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitStored(t, keyspace, "/registry/secrets/default/", "k8s:enc:kms:v2:fake:", 2)
	awaitStored(t, keyspace, "/registry/tools.example.com/gadgets/", "k8s:enc:aesgcm:v1:atoll-1:", 1)
	if code, _, body := ask(t, server.config, "/readyz?verbose"); code != 200 || !strings.Contains(body, "kms-providers") {
		t.Errorf("/readyz does not check the plug-in: %d %s", code, body)
	}
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}

	// A restarted server decrypts with the plug-in, and encrypts again after the plug-in has another key.
	plugin.mu.Lock()
	plugin.key = "key-2"
	plugin.mu.Unlock()
	server = startServer(t, keyspace, files, "sole")
	all, err := server.client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 2 || string(all.Items[0].Data["word"]) != "sesame" {
		t.Error(all, err)
	}
	await(t, "the Secrets are encrypted with the new key", func() error {
		found, err := keyspace.KV.Get(t.Context(), "/registry/secrets/default/with")
		if err != nil || len(found.Kvs) != 1 {
			return fmt.Errorf("%v, %w", found, err)
		}
		if !bytes.Contains(found.Kvs[0].Value, []byte("key-2")) {
			return errors.New("it has the former key")
		}
		return nil
	})
	plugin.mu.Lock()
	defer plugin.mu.Unlock()
	if plugin.decrypts == 0 {
		t.Error("the plug-in was not used")
	}
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}
}
