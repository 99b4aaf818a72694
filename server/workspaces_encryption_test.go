package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	infrav1alpha1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// storedValue is an encrypted value of a workspace.
type storedValue struct {
	keyspace, key, under string
	revision             kv.Revision
}

// storedInWorkspaces returns the encrypted values of all workspaces below the root.
func storedInWorkspaces(t *testing.T, datastore string) (all []storedValue) {
	t.Helper()
	store, err := server.OpenDatastoreReadOnly(t.Context(), datastore)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	names, err := store.Keyspaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "workspace-") {
			continue
		}
		table, err := store.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		res, _, err := table.Range(t.Context(), kv.RangeRequest{Span: kv.Prefix([]byte("/registry/"))}, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res.KVs {
			if rest, ok := bytes.CutPrefix(e.Value, []byte("k8s:enc:aesgcm:v1:")); ok {
				under, _, _ := bytes.Cut(rest, []byte(":"))
				all = append(all, storedValue{name, string(e.Key), string(under), e.ModRevision})
			}
		}
	}
	return all
}

// underKey returns those values that are encrypted with a key.
func underKey(all []storedValue, key string) (some []storedValue) {
	for _, v := range all {
		if v.under == key {
			some = append(some, v)
		}
	}
	return some
}

// hasMetric returns an error if a metric of encryption has another value. The tests of a process share one endpoint of metrics, so it is read from
// the server.
func (a atoll) hasMetric(t *testing.T, name string, value float64) error {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(a.EncryptionMetrics())
	all, err := registry.Gather()
	if err != nil {
		return err
	}
	for _, family := range all {
		if family.GetName() != name {
			continue
		}
		if is := family.GetMetric()[0].GetGauge().GetValue(); is != value {
			return fmt.Errorf("%s is %v", name, is)
		}
		return nil
	}
	return errors.New("there is no metric " + name)
}

// put writes a value into a keyspace while no server runs, and returns the former one.
func put(t *testing.T, datastore, keyspace, key string, value []byte) (former []byte) {
	t.Helper()
	store, err := server.OpenDatastore(t.Context(), datastore)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	in, err := store.Keyspace(t.Context(), keyspace, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	was, err := in.Range(t.Context(), kv.RangeRequest{Span: kv.Span{Start: []byte(key)}})
	if err != nil || len(was.KVs) != 1 {
		t.Fatal(was, err)
	}
	if _, err := in.Txn(t.Context(), kv.TxnRequest{Then: []kv.Op{{Put: &kv.PutOp{Key: []byte(key), Value: value}}}}); err != nil {
		t.Fatal(err)
	}
	return was.KVs[0].Value
}

// laterClock is ahead of the time.
type laterClock struct{ clock.RealClock }

func (laterClock) Now() time.Time                     { return time.Now().Add(time.Hour) }
func (c laterClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }

var tenantStates = infrav1alpha1.ResourceStateResource

// TestRotateEncryptionOfWorkspaces: after a rotation, the server encrypts the objects of workspaces with the new key, also if a workspace sleeps,
// is in another one, or has ResourceStates. It goes on where it was stopped, and after the error of one workspace, which it names: until
// that one is readable, the metric does not say that all is encrypted. Then the former key is forgotten, and everything can be read.
func TestRotateEncryptionOfWorkspaces(t *testing.T) {
	cfg := server.Config{DataDir: t.TempDir(), WithoutWorkloadAPIs: true}
	place := server.KeyPlace{DataDir: cfg.DataDir}
	datastore := server.SQLiteURL(filepath.Join(cfg.DataDir, "atoll.db"))
	var a atoll
	stop := func() {
		t.Helper()
		if err := a.stop(); err != nil {
			t.Fatal(err)
		}
	}
	a = newServer(t, cfg)
	var paths []string
	for i := range 6 {
		name := fmt.Sprint("enc-", i)
		a.createWorkspace(t, name)
		a.createNested(t, name, "in")
		paths = append(paths, name, name+":in")
	}
	secretIn := func(path, name string) error {
		_, err := clientOf(t, a.workspace(t, path)).CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name},
			StringData: map[string]string{"word": "sesame " + path}}, metav1.CreateOptions{})
		return err
	}
	for _, path := range paths {
		if err := secretIn(path, "one"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the kinds of infrastructure are served", func(ctx context.Context) error {
		_, err := clientsOf(t, a.workspace(t, "enc-1:in")).Resource(tenantStates).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": tenantStates.GroupVersion().String(), "kind": "ResourceState", "metadata": map[string]any{"name": "state"}, "spec": map[string]any{
				"object": map[string]any{"group": "g", "kind": "Thing", "name": "t", "uid": "u"}, "type": "thing", "provider": "p", "settled": "sesame"}}}, metav1.CreateOptions{})
		return err
	})
	readable := func() {
		t.Helper()
		for _, path := range paths {
			got, err := clientOf(t, a.workspace(t, path)).CoreV1().Secrets("default").Get(t.Context(), "one", metav1.GetOptions{})
			if err != nil || string(got.Data["word"]) != "sesame "+path {
				t.Errorf("the Secret in %s: %q, %v", path, got.Data["word"], err)
			}
		}
		state := func(in *rest.Config) string {
			got, err := clientsOf(t, in).Resource(tenantStates).Namespace("default").Get(t.Context(), "state", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			word, _, _ := unstructured.NestedString(got.Object, "spec", "settled")
			return word
		}
		if word := state(a.workspace(t, "enc-1:in")); word != "sesame" {
			t.Errorf("the ResourceState of a workspace: %s", word)
		}
	}
	readable()
	former := encryptionKeysOf(t, place)[0]
	stop()
	all := len(storedInWorkspaces(t, datastore))
	if all != len(paths)+1 {
		t.Fatal("encrypted values:", storedInWorkspaces(t, datastore))
	}
	if _, err := server.ChangeKeys(t.Context(), place, server.KeyChange{Encryption: true}, time.Now().Add(-time.Hour), false); err != nil {
		t.Fatal(err)
	}
	present := encryptionKeysOf(t, place)[0]
	// One workspace has a value that no key decrypts.
	damaged := storedInWorkspaces(t, datastore)[0]
	undamaged := put(t, datastore, damaged.keyspace, damaged.key, []byte("k8s:enc:aesgcm:v1:atoll-lost:sesame"))

	// It is stopped in the middle.
	a = newServer(t, cfg)
	eventually(t, "some workspaces are encrypted with the new key", func(context.Context) error {
		if n := len(underKey(storedInWorkspaces(t, datastore), present)); n == 0 {
			return errors.New("none is")
		}
		return nil
	})
	stop()
	before := underKey(storedInWorkspaces(t, datastore), present)

	a = newServer(t, cfg)
	eventually(t, "all others are encrypted with the new key", func(context.Context) error {
		if n := len(underKey(storedInWorkspaces(t, datastore), present)); n != all-1 {
			return fmt.Errorf("%d of %d", n, all-1)
		}
		return a.hasMetric(t, "atoll_encryption_pending_workspaces", 1)
	})
	if err := a.hasMetric(t, "atoll_encryption_complete", 0); err != nil {
		t.Error("while a workspace cannot be read:", err)
	}
	stop()
	after := underKey(storedInWorkspaces(t, datastore), present)
	for _, v := range before {
		for _, again := range after {
			if v.keyspace == again.keyspace && v.key == again.key && v.revision != again.revision {
				t.Errorf("%s was written twice", v.key)
			}
		}
	}

	put(t, datastore, damaged.keyspace, damaged.key, undamaged)
	a = newServer(t, cfg)
	eventually(t, "everything is encrypted with the new key", func(context.Context) error { return a.hasMetric(t, "atoll_encryption_complete", 1) })
	if left := underKey(storedInWorkspaces(t, datastore), former); len(left) > 0 {
		t.Error("the metric says that all is done, and these are not:", left)
	}
	readable()
	stop()
	compactAll(t, datastore)
	forget := func() []string {
		t.Helper()
		if _, err := server.ChangeKeys(t.Context(), place, server.KeyChange{Forget: true}, time.Now(), false); err != nil {
			t.Fatal(err)
		}
		return encryptionKeysOf(t, place)
	}
	if kept := forget(); len(kept) != 2 {
		t.Error("the former key is forgotten while the history of workspaces needs it", kept)
	}
	// Later, nothing wakes the workspaces, and their history is removed.
	later := cfg
	later.Clock = laterClock{}
	a = newServer(t, later)
	eventually(t, "the history of workspaces is removed", func(context.Context) error { return a.hasMetric(t, "atoll_encryption_complete", 1) })
	stop()
	if kept := forget(); len(kept) != 1 || kept[0] != present {
		t.Error("the former key is not forgotten", kept)
	}
	a = newServer(t, cfg)
	readable()
	stop()
}
