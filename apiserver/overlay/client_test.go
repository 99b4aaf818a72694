package overlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // their kinds are encoded
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
)

// TestOverlayIsInvisible: a client with base objects answers random requests as one of a keyspace that stores them.
func TestOverlayIsInvisible(t *testing.T) {
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "atoll.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	encoder := &Encoder{Factory: serverstorage.NewDefaultStorageFactory(*storagebackend.NewDefaultConfig("/registry", nil), runtime.ContentTypeProtobuf, legacyscheme.Codecs,
		serverstorage.NewDefaultResourceEncodingConfig(legacyscheme.Scheme), serverstorage.NewResourceConfig(), nil),
		Transformer: func(schema.GroupResource) value.Transformer { return identity.NewEncryptCheckTransformer() }}
	base, err := encoder.NewBase(Objects([]byte("a certificate"), nil))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			compareOverlay(t, db, base, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

func compareOverlay(t *testing.T, db kv.Backend, b *Base, random *rand.Rand) {
	ctx := t.Context()
	overlaid, stored := openPlain(t, db, "overlaid"), openPlain(t, db, "stored")
	of := Birth{UID: "uid", Created: time.Unix(1_800_000_000, 0)}
	for _, client := range []*kubernetes.Client{overlaid, stored} {
		put, err := client.KV.Put(ctx, BirthKey, "")
		if err != nil {
			t.Fatal(err)
		}
		of.Revision = put.Header.Revision
	}
	b.Install(overlaid, of)
	var writes []clientv3.Op
	for _, key := range b.keys {
		value, err := b.value(ctx, of, key)
		if err != nil {
			t.Fatal(err)
		}
		writes = append(writes, clientv3.OpPut(key, string(value)))
	}
	for chunk := range slices.Chunk(writes, 100) {
		if _, err := stored.KV.Txn(ctx).Then(chunk...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	few := []string{b.keys[0], b.keys[1], b.keys[len(b.keys)/2], b.keys[len(b.keys)-1], b.keys[0] + "-other", "/registry/clusterroles/mine", "/registry/zzz/last"}
	for step := range 60 {
		key := few[random.IntN(len(few))]
		value := fmt.Sprint("value ", step)
		create, remove := random.IntN(3) == 0, random.IntN(3) == 0
		var done []bool
		for _, client := range []*kubernetes.Client{overlaid, stored} {
			expected := int64(0)
			if got, err := client.Kubernetes.Get(ctx, key, kubernetes.GetOptions{}); err != nil {
				t.Fatal(err)
			} else if got.KV != nil && !create {
				expected = got.KV.ModRevision
			}
			if remove {
				resp, err := client.Kubernetes.OptimisticDelete(ctx, key, expected, kubernetes.DeleteOptions{GetOnFailure: true})
				if err != nil {
					t.Fatal(err)
				}
				done = append(done, resp.Succeeded)
				continue
			}
			resp, err := client.Kubernetes.OptimisticPut(ctx, key, []byte(value), expected, kubernetes.PutOptions{GetOnFailure: true})
			if err != nil {
				t.Fatal(err)
			}
			done = append(done, resp.Succeeded)
		}
		if done[0] != done[1] {
			t.Fatalf("step %d: %s: create %v, remove %v: %v", step, key, create, remove, done)
		}
		prefix := []string{"/registry/", "/registry/clusterroles/", "/registry/clusterrolebindings/", "/registry/roles/kube-system/", key}[random.IntN(5)]
		limit := []int64{0, 1, 3, 50}[random.IntN(4)]
		if a, b := list(t, overlaid, prefix, limit), list(t, stored, prefix, limit); !slices.Equal(a, b) {
			t.Fatalf("step %d: %s in pages of %d:\n%v\nwant\n%v", step, prefix, limit, a, b)
		}
		for _, get := range []func(*kubernetes.Client) any{
			func(c *kubernetes.Client) any { return countOf(t, c, prefix) },
			func(c *kubernetes.Client) any { return ranged(t, c, prefix) },
		} {
			if a, b := get(overlaid), get(stored); !reflect.DeepEqual(a, b) {
				t.Fatalf("step %d: %s:\n%v\nwant\n%v", step, prefix, a, b)
			}
		}
	}
}

// openPlain opens a new keyspace without base objects.
func openPlain(t *testing.T, db kv.Backend, name string) *kubernetes.Client {
	t.Helper()
	table, err := db.Open(t.Context(), strings.ReplaceAll(t.Name(), "/", "-")+name)
	if err != nil {
		t.Fatal(err)
	}
	keyspace, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := etcd.InProcess(keyspace, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = keyspace.Close()
	})
	return client
}

// list returns all keys and values below a prefix, and the counts, read in pages.
func list(t *testing.T, client *kubernetes.Client, prefix string, limit int64) (all []string) {
	t.Helper()
	opts := kubernetes.ListOptions{Limit: limit}
	for {
		page, err := client.Kubernetes.List(t.Context(), prefix, opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Kvs {
			all = append(all, string(o.Key)+" "+string(o.Value))
		}
		all = append(all, fmt.Sprint("of ", page.Count))
		if int64(len(page.Kvs)) >= page.Count {
			return all
		}
		opts.Continue, opts.Revision = string(page.Kvs[len(page.Kvs)-1].Key)+"\x00", page.Revision
	}
}

func countOf(t *testing.T, client *kubernetes.Client, prefix string) int64 {
	t.Helper()
	n, err := client.Kubernetes.Count(t.Context(), prefix, kubernetes.CountOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ranged returns the keys below a prefix as a watch reads them at its beginning.
func ranged(t *testing.T, client *kubernetes.Client, prefix string) (all []string) {
	t.Helper()
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, err := client.KV.Get(context.WithoutCancel(t.Context()), from, clientv3.WithRange(end), clientv3.WithLimit(7))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Kvs {
			all = append(all, string(o.Key))
		}
		if !page.More {
			return all
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
