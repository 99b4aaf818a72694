package apiserver_test

import (
	"bytes"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

func defaultKey(n byte) apiserver.EncryptionKey {
	return apiserver.EncryptionKey{Name: fmt.Sprintf("atoll-%d", n), Secret: bytes.Repeat([]byte{n}, 32)}
}

// withKeys is a configuration of the default encryption.
func withKeys(cfg apiserver.Config, keys ...apiserver.EncryptionKey) apiserver.Config {
	cfg.DefaultEncryption = &apiserver.DefaultEncryption{
		Resources: []schema.GroupResource{{Resource: "secrets"}, gadgets().GroupResource()},
		Keys:      keys, KeyFile: "/data/pki/encryption.keys",
	}
	return cfg
}

// awaitStored waits until all objects of some keys are stored with a prefix.
func awaitStored(t *testing.T, keyspace *kubernetes.Client, under, prefix string, count int) {
	t.Helper()
	await(t, "all objects under "+under+" are stored with "+prefix, func() error {
		found, err := keyspace.KV.Get(t.Context(), under, clientv3.WithPrefix())
		if err != nil {
			return err
		}
		if len(found.Kvs) != count {
			return fmt.Errorf("%d objects, want %d", len(found.Kvs), count)
		}
		for _, e := range found.Kvs {
			if !bytes.HasPrefix(e.Value, []byte(prefix)) {
				return fmt.Errorf("%s: %.40q", e.Key, e.Value)
			}
		}
		return nil
	})
}

// TestStoredObjectsAreEncrypted: what a server without encryption has stored is encrypted by the first
// one with it, and again after a rotation. Clients see the same objects.
func TestStoredObjectsAreEncrypted(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	server := startServer(t, keyspace, files, "sole")
	defineGadgets(t, server)
	const secrets = 250 // several pages
	for i := range secrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a", i)}, StringData: map[string]string{"word": fmt.Sprint("sesame-", i)}}
		if _, err := server.client.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default").Create(t.Context(), gadget("one", `{"word":"sesame"}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitStored(t, keyspace, "/registry/secrets/default/", "k8s\x00", secrets)
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}

	for _, keys := range [][]apiserver.EncryptionKey{{defaultKey(1)}, {defaultKey(2), defaultKey(1)}, {defaultKey(2)}} {
		server = startServer(t, keyspace, withKeys(files, keys...), "sole")
		if err := server.server.CheckDecryption(t.Context()); err != nil {
			t.Error(err)
		}
		prefix := "k8s:enc:aesgcm:v1:" + keys[0].Name + ":"
		awaitStored(t, keyspace, "/registry/secrets/default/", prefix, secrets)
		awaitStored(t, keyspace, "/registry/tools.example.com/gadgets/", prefix, 1)
		all, err := server.client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != secrets {
			t.Fatalf("%d Secrets, %v", len(all.Items), err)
		}
		for _, s := range all.Items {
			if string(s.Data["word"]) != "sesame-"+s.Name[1:] {
				t.Errorf("%s has %q", s.Name, s.Data["word"])
			}
		}
		one, err := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil || one.GetGeneration() > 1 {
			t.Errorf("%+v, %v", one, err)
		}
		if err := server.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
