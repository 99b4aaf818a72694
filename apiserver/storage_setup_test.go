package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/kv/postgres"
	"github.com/atoll-dev/atoll/kv/sqlite"
	postgresserver "github.com/atoll-dev/atoll/playground/postgres"
)

// storedPrefix marks values that went through the suite's transformer.
const storedPrefix = "test!"

// subject is the store under test: upstream's etcd3 store over one of our keyspaces, in
// process, with everything that the suite changes or counts.
type subject struct {
	storage.Interface
	client      *kubernetes.Client
	codec       runtime.Codec
	transformer *swappable
	lists       *countedLists
	recorder    *storagetesting.KubernetesRecorder
	// partition that holds the stored keys, if there is one.
	partition kv.Keyspace
}

// newSubject opens a store on an empty keyspace.
func newSubject(t *testing.T, in datastore, opts mvcc.Options) *subject {
	t.Helper()
	client, part := openKeyspace(t, in, opts)
	lists := &countedLists{Interface: client.Kubernetes}
	recorder := storagetesting.NewKubernetesRecorder(lists)
	client.Kubernetes = recorder

	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	s := &subject{
		client:      client,
		codec:       apitesting.TestCodec(serializer.NewCodecFactory(scheme), examplev1.SchemeGroupVersion),
		transformer: &swappable{now: storagetesting.NewPrefixTransformer([]byte(storedPrefix), false)},
		lists:       lists,
		recorder:    recorder,
		partition:   part,
	}
	compactor := etcd3.NewCompactor(client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	versioner := storage.APIObjectVersioner{}
	leases := etcd3.NewDefaultLeaseManagerConfig()
	leases.ReuseDurationSeconds = 1 // the suite waits for expiry
	store, err := etcd3.New(client, compactor, s.codec,
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		"", "/pods/", schema.GroupResource{Resource: "pods"}, s.transformer, leases,
		etcd3.NewDefaultDecoder(s.codec, versioner), versioner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	s.Interface = store
	return s
}

// datastore opens a database for one test.
type datastore func(t *testing.T) kv.Backend

// onEach runs a suite on each kind of datastore.
func onEach(t *testing.T, suite func(*testing.T, datastore)) {
	t.Run("SQLite", func(t *testing.T) { suite(t, inSQLite) })
	t.Run("PostgreSQL", func(t *testing.T) { suite(t, inPostgres) })
}

// onEachAndPartition also runs a suite inside a partition.
func onEachAndPartition(t *testing.T, suite func(*testing.T, datastore)) {
	onEach(t, suite)
	t.Run("partition", func(t *testing.T) { suite(t, inPartition) })
}

// inPartition stores the suites' data in a partition of a keyspace with other
// revisions, in which the compactors of servers keep their key.
func inPartition(t *testing.T) kv.Backend {
	t.Helper()
	db := inSQLite(t)
	if _, err := db.(kv.Splitter).Split(t.Context(), t.Name(), "/", kv.SplitOptions{EmptyOnly: true}); err != nil {
		t.Fatal(err)
	}
	return db
}

// parts opens the partitions of a keyspace.
type parts struct {
	db   kv.Backend
	name string
	opts mvcc.Options
	// last engine opened for a prefix
	last kv.Keyspace
}

func (p *parts) Prefixes(ctx context.Context) ([]string, error) {
	return p.db.Partitions(ctx, p.name)
}

func (p *parts) Open(ctx context.Context, prefix string) (partition.Engine, error) {
	name := p.name
	if prefix != "" {
		name = kv.PartitionName(name, prefix)
	}
	table, err := p.db.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	k, err := mvcc.Open(ctx, table, p.db, p.opts)
	if prefix != "" {
		p.last = k
	}
	return k, err
}

func inSQLite(t *testing.T) kv.Backend {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "atoll.db"))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// stage is the one PostgreSQL of this test binary, started by the first test that needs
// it.
type stage struct {
	once   sync.Once
	server *postgresserver.Server
	err    error
}

var shared stage

func TestMain(m *testing.M) {
	if os.Getenv(kubectlRole) != "" {
		if err := cmd.NewDefaultKubectlCommand().Execute(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if shared.server != nil {
		_ = shared.server.Stop()
	}
	os.Exit(code)
}

func inPostgres(t *testing.T) kv.Backend {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a PostgreSQL; not with -short")
	}
	shared.once.Do(func() {
		shared.server, shared.err = postgresserver.Start(context.Background(), postgresserver.Config{})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	db, err := postgres.Open(t.Context(), shared.server.URL(), postgres.WithMaxConns(4))
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// openKeyspace returns a client of a new keyspace, and its partition if it has one.
func openKeyspace(t *testing.T, in datastore, opts mvcc.Options) (_ *kubernetes.Client, part kv.Keyspace) {
	t.Helper()
	db := in(t)
	source := &parts{db, t.Name(), opts, nil}
	keyspace, err := partition.Open(t.Context(), t.Name(), source, partition.Options{LeaseInterval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	client, err := etcd.InProcess(keyspace, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		if err := errors.Join(keyspace.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return client, source.last
}

// UpdatePrefixTransformer lets the suite change how values are stored.
func (s *subject) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	changed := *s.transformer.get().(*storagetesting.PrefixTransformer)
	return s.transformer.swap(modify(&changed))
}

// CorruptTransformer lets the suite make all stored values unreadable.
func (s *subject) CorruptTransformer() func() {
	return s.transformer.swap(etcd3.WithCorruptObjErrorHandlingTransformer(unreadable{s.transformer.get()}))
}

type unreadable struct{ value.Transformer }

func (unreadable) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, errors.New("bits flipped")
}

// swappable is a transformer that can be replaced while the store is running.
type swappable struct {
	mu  sync.RWMutex
	now value.Transformer
}

func (s *swappable) get() value.Transformer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

func (s *swappable) swap(next value.Transformer) (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.now
	s.now = next
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now = before
	}
}

func (s *swappable) TransformFromStorage(ctx context.Context, data []byte, where value.Context) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, where)
}

func (s *swappable) TransformToStorage(ctx context.Context, data []byte, where value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, where)
}

// countedLists counts the pages that the store reads.
type countedLists struct {
	kubernetes.Interface
	pages atomic.Uint64
}

func (c *countedLists) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	c.pages.Add(1)
	return c.Interface.List(ctx, prefix, opts)
}

// validateStored checks that the stored value can be decoded and has no fields that
// belong only to responses.
func (s *subject) validateStored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	resp, err := s.client.KV.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 {
		t.Fatalf("nothing is stored under %s", key)
	}
	stored := strings.TrimPrefix(string(resp.Kvs[0].Value), storedPrefix)
	obj, err := runtime.Decode(s.codec, []byte(stored))
	if err != nil {
		t.Fatalf("decode the value of %s: %v", key, err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("stored with resource version %q and self link %q", pod.ResourceVersion, pod.SelfLink)
	}
}

// validateCalls checks how many objects a paged list read, and in how many pages: the
// store doubles the page size each time, up to 10,000.
func (s *subject) validateCalls(t *testing.T, pageSize, objects uint64) {
	t.Helper()
	const largestPage = 10_000
	if reads := s.transformer.get().(*storagetesting.PrefixTransformer).GetReadsAndReset(); reads != objects {
		t.Errorf("%d objects were read, want %d", reads, objects)
	}
	pages := uint64(1)
	if pageSize > 0 {
		for read, size := uint64(1), pageSize; read < objects; pages++ {
			size = min(2*size, largestPage)
			read += size
		}
	}
	if got := s.lists.pages.Swap(0); got != pages {
		t.Fatalf("%d pages were read, want %d", got, pages)
	}
}

// bump creates a revision that does not concern the store.
func (s *subject) bump(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	resp, err := s.client.KV.Put(ctx, "/unrelated", "ok")
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header.Revision
}

// compact compacts at a resource version, as the server does, and waits until the store
// has noticed.
func (s *subject) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	rev, err := storage.APIObjectVersioner{}.ParseResourceVersion(resourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	if s.partition != nil {
		// Servers compact by revisions of the parent; the suite passes a revision of
		// the partition.
		if _, err := s.client.KV.Put(ctx, "compact_rev_key", resourceVersion); err != nil {
			t.Fatal(err)
		}
		_, err = s.partition.Compact(ctx, int64(rev), false)
		s.bump(ctx, t) // as writing the key does with a single sequence of revisions
	} else {
		// The first call may find that another compactor was faster.
		var version int64
		version, _, _, err = etcd3.Compact(ctx, s.client.Client, 0, int64(rev))
		if err != nil {
			_, _, _, err = etcd3.Compact(ctx, s.client.Client, version, int64(rev))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot) {
		return // then the store is not notified
	}
	for ctx, cancel := context.WithTimeout(ctx, 10*time.Second); ; {
		if s.CompactRevision() == int64(rev) {
			cancel()
			return
		}
		select {
		case <-ctx.Done():
			cancel()
			t.Fatalf("the store has compact revision %d, want %d", s.CompactRevision(), rev)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// keys lists the store's keys, from which it estimates sizes.
func (s *subject) keys(ctx context.Context) ([]string, error) {
	resp, err := s.client.KV.Get(ctx, "/pods/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	keys := make([]string, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		keys[i] = string(kv.Key)
	}
	return keys, nil
}
