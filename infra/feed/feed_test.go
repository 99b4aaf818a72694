package feed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/schema"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/kv/sqlite"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fakeInventory is an inventory in maps.
type fakeInventory struct {
	mu           sync.Mutex
	objects      map[expr.Ref]*infra.Object
	states       map[expr.Ref]*infra.State
	kindsChanged int
}

func newFakeInventory() *fakeInventory {
	return &fakeInventory{objects: map[expr.Ref]*infra.Object{}, states: map[expr.Ref]*infra.State{}}
}

func (m *fakeInventory) locked(do func()) { m.mu.Lock(); defer m.mu.Unlock(); do() }

func (m *fakeInventory) SetObject(o *infra.Object) { m.locked(func() { m.objects[o.Ref] = o }) }
func (m *fakeInventory) RemoveObject(ref expr.Ref) { m.locked(func() { delete(m.objects, ref) }) }
func (m *fakeInventory) SetState(s *infra.State) *infra.State {
	m.locked(func() { m.states[s.Ref] = s })
	return s
}

func (m *fakeInventory) RemoveState(ref expr.Ref) { m.locked(func() { delete(m.states, ref) }) }
func (m *fakeInventory) KindsChanged()            { m.locked(func() { m.kindsChanged++ }) }

func (m *fakeInventory) Object(ref expr.Ref) (o *infra.Object) {
	m.locked(func() { o = m.objects[ref] })
	return o
}

func (m *fakeInventory) State(ref expr.Ref) (s *infra.State) {
	m.locked(func() { s = m.states[ref] })
	return s
}

// contents returns everything in the inventory, as text.
func (m *fakeInventory) contents() map[string]string {
	out := map[string]string{}
	m.locked(func() {
		for ref, o := range m.objects {
			out[ref.String()] = fmt.Sprintf("%s gen %d at %s: %s", o.UID, o.Generation, o.ResourceVersion, o.Spec)
		}
		for ref, s := range m.states {
			out["state of "+ref.String()] = fmt.Sprintf("%s at %s: %s", s.UID, s.ResourceVersion, s.Spec.Settled)
		}
	})
	return out
}

// fakeTypes are the served types, by GROUP/PLURAL.
type fakeTypes struct {
	mu      sync.Mutex
	groups  []string
	types   map[string]*infra.ServedKind
	changed chan struct{}
}

func newFakeTypes() *fakeTypes {
	return &fakeTypes{types: map[string]*infra.ServedKind{}, changed: make(chan struct{})}
}

const (
	demo  = "demo.providers.atoll.dev"
	other = "other.providers.atoll.dev"
)

func (k *fakeTypes) serve(group, plural, kind, typeName string, data bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.types[group+"/"+plural] = &infra.ServedKind{
		Kind:     schema.Kind{Group: group, Name: schema.Name{Type: typeName, Data: data, Kind: kind, Plural: plural}},
		Provider: strings.TrimSuffix(group, "."+v1alpha1.ProvidersDomain),
	}
	if !slices.Contains(k.groups, group) {
		k.groups = append(k.groups, group)
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *fakeTypes) Groups() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.groups)
}

func (k *fakeTypes) ByPlural(group, plural string) (*infra.ServedKind, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, ok := k.types[group+"/"+plural]
	return s, ok
}

func (k *fakeTypes) Changed() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changed
}

// flakyWatcher is a watcher whose watches can be cut.
type flakyWatcher struct {
	clientv3.Watcher
	mu   sync.Mutex
	cuts []context.CancelFunc
}

func (c *flakyWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cuts = append(c.cuts, cancel)
	return c.Watcher.Watch(ctx, key, opts...)
}

func (c *flakyWatcher) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cancel := range c.cuts {
		cancel()
	}
	c.cuts = nil
}

// keyspace opens a new keyspace in SQLite, as the API server sees it.
func keyspace(t *testing.T) (*clientv3.Client, *flakyWatcher) {
	t.Helper()
	db, err := sqlite.Open(filepath.Join(t.TempDir(), "kv.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	table, err := db.Open(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	ks, err := mvcc.Open(t.Context(), table, db, mvcc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ks.Close() })
	client, err := etcd.InProcess(ks, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	cut := &flakyWatcher{Watcher: client.Client.Watcher}
	client.Client.Watcher = cut
	return client.Client, cut
}

// feeding runs a Feed until the test ends.
func feeding(t *testing.T, cfg Config) *Feed {
	t.Helper()
	cfg.Prefix, cfg.Clock = "/registry", clock.RealClock{}
	f := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	fakeapi.Until(t, "the feed runs", func() bool { return !errors.Is(f.WaitCurrent(t.Context()), ErrNotRunning) })
	return f
}

func current(t *testing.T, f *Feed) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := f.WaitCurrent(ctx); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, c *clientv3.Client, key string, value any) int64 {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Put(t.Context(), key, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return r.Header.Revision
}

type fields = map[string]any

func object(kind, namespace, name, uid string, generation int64, spec fields) fields {
	return fields{"kind": kind, "metadata": fields{"namespace": namespace, "name": name, "uid": uid, "generation": generation}, "spec": spec}
}

func stored(typeName, namespace, name, uid, settled string) fields {
	return fields{"metadata": fields{"namespace": namespace, "name": "x", "uid": uid}, "spec": fields{
		"object": fields{"group": demo, "kind": "Disk", "name": name, "uid": "o"}, "type": typeName, "provider": "demo", "settled": settled}}
}

// After WaitCurrent the inventory equals the keyspace, whatever was written, deleted, compacted or cut
// before.
func TestFeedMatchesKeyspace(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			client, cut := keyspace(t)
			served := newFakeTypes()
			served.serve(demo, "disks", "Disk", "demo_disk", false)
			served.serve(demo, "datazones", "DataZone", "demo_zone", true)
			served.serve(other, "things", "Thing", "other_thing", false)
			random := rand.New(rand.NewPCG(seed, 7))
			want := map[string]string{}
			write := func(n int) {
				namespace, name := fmt.Sprintf("ns%d", random.IntN(2)), fmt.Sprintf("n%d", random.IntN(12))
				is := []struct {
					group, plural string
					ref           expr.Ref
				}{
					{demo, "disks", expr.Ref{Type: "demo_disk", Namespace: namespace, Name: name}},
					{demo, "datazones", expr.Ref{Kind: expr.Data, Type: "demo_zone", Namespace: namespace, Name: name}},
					{other, "things", expr.Ref{Type: "other_thing", Namespace: namespace, Name: name}},
					{v1alpha1.Group, "resourcestates", expr.Ref{Type: "demo_disk", Namespace: namespace, Name: name}},
				}[random.IntN(4)]
				key := fmt.Sprintf("/registry/%s/%s/%s/%s", is.group, is.plural, namespace, name)
				state := is.group == v1alpha1.Group
				known := is.ref.String()
				if state {
					known = "state of " + known
				}
				switch uid := fmt.Sprintf("u%d", n); {
				case random.IntN(3) == 0:
					if _, err := client.Delete(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					delete(want, known)
				case state:
					revision := put(t, client, key, stored("demo_disk", namespace, name, uid, fmt.Sprint(n)))
					want[known] = fmt.Sprintf("%s at %d: %d", uid, revision, n)
				default:
					revision := put(t, client, key, object("K", namespace, name, uid, int64(n), fields{"n": n}))
					want[known] = fmt.Sprintf(`%s gen %d at %d: {"n":%d}`, uid, n, revision, n)
				}
			}
			for n := range 60 {
				write(n)
			}
			inv := newFakeInventory()
			f := feeding(t, Config{Keyspace: client, Types: served, Inventory: inv})
			for n := 100; n < 350; n++ {
				switch random.IntN(25) {
				case 0:
					cut.cut()
				case 1:
					r, err := client.Get(t.Context(), "/")
					if err != nil {
						t.Fatal(err)
					}
					if _, err := client.Compact(t.Context(), r.Header.Revision); err != nil && !strings.Contains(err.Error(), "compacted") {
						t.Fatal(err)
					}
				case 2, 3:
					current(t, f)
					if got := inv.contents(); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Fatalf("step %d:\ngot  %v\nwant %v", n, got, want)
					}
				default:
					write(n)
				}
			}
			current(t, f)
			if got := inv.contents(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// Objects follow their type when it is served later or renamed, and remain when it is no longer served.
func TestFeedFollowsTypes(t *testing.T) {
	client, _ := keyspace(t)
	served, inv := newFakeTypes(), newFakeInventory()
	put(t, client, "/registry/"+demo+"/disks/shop/a", object("Disk", "shop", "a", "u", 1, fields{}))
	f := feeding(t, Config{Keyspace: client, Types: served, Inventory: inv})
	if got := inv.contents(); len(got) != 0 {
		t.Fatalf("stored without a served type: %v", got)
	}
	was, is := expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}, expr.Ref{Type: "demo_ssd", Namespace: "shop", Name: "a"}
	served.serve(demo, "disks", "Disk", "demo_disk", false)
	current(t, f)
	if inv.Object(was) == nil {
		t.Fatal("the object does not have the type that is served now")
	}
	served.serve(demo, "disks", "Disk", "demo_ssd", false)
	current(t, f)
	if inv.Object(was) != nil || inv.Object(is) == nil {
		t.Fatalf("after its type was renamed: %v", inv.contents())
	}
	served.mu.Lock()
	delete(served.types, demo+"/disks")
	served.mu.Unlock()
	served.serve(other, "things", "Thing", "other_thing", false)
	current(t, f)
	if inv.Object(is) == nil {
		t.Error("an object was removed with its type")
	}
	if inv.kindsChanged == 0 {
		t.Error("the inventory was not notified of changed types")
	}
}

// States reveal groups whose Provider was deleted.
func TestFeedFollowsGroupsOfStates(t *testing.T) {
	client, _ := keyspace(t)
	served, inv := newFakeTypes(), newFakeInventory()
	f := feeding(t, Config{Keyspace: client, Types: served, Inventory: inv})
	put(t, client, "/registry/infra.atoll.dev/resourcestates/shop/x", stored("demo_disk", "shop", "a", "s", "1"))
	put(t, client, "/registry/"+demo+"/disks/shop/a", object("Disk", "shop", "a", "u", 1, fields{}))
	current(t, f)
	followed := false
	for _, fo := range f.all() {
		followed = followed || strings.Contains(fo.prefix, demo)
	}
	if !followed {
		t.Error("the group of a state is not watched")
	}
}

// A value that cannot be decoded is reported, does not count as deleted, and is read once it can be.
func TestFeedReportsUndecodableValues(t *testing.T) {
	client, _ := keyspace(t)
	served, inv := newFakeTypes(), newFakeInventory()
	served.serve(demo, "disks", "Disk", "demo_disk", false)
	var mu sync.Mutex
	locked := false
	lock := func(is bool) { mu.Lock(); locked = is; mu.Unlock() }
	f := feeding(t, Config{Keyspace: client, Types: served, Inventory: inv,
		Decode: func(_ context.Context, resource kschema.GroupResource, key string, value []byte) ([]byte, error) {
			mu.Lock()
			defer mu.Unlock()
			if locked && resource.Resource == "disks" && strings.HasSuffix(key, "/a") {
				return nil, errors.New("no key for it")
			}
			return value, nil
		}})
	key, ref := "/registry/"+demo+"/disks/shop/a", expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}
	put(t, client, key, object("Disk", "shop", "a", "u", 1, fields{}))
	current(t, f)
	lock(true)
	put(t, client, key, object("Disk", "shop", "a", "u", 2, fields{}))
	err := f.WaitCurrent(t.Context())
	if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "no key for it") {
		t.Errorf("undecodable object: %v", err)
	}
	if o := inv.Object(ref); o == nil || o.Generation != 1 {
		t.Errorf("the inventory has %+v", o)
	}
	lock(false)
	fakeapi.Until(t, "the object is decoded", func() bool { return f.WaitCurrent(t.Context()) == nil })
	if o := inv.Object(ref); o == nil || o.Generation != 2 {
		t.Errorf("the inventory has %+v", o)
	}
}

// An older state from the keyspace does not replace one that an apply has stored.
func TestFeedKeepsNewerState(t *testing.T) {
	client, _ := keyspace(t)
	inv := newFakeInventory()
	f := feeding(t, Config{Keyspace: client, Types: newFakeTypes(), Inventory: inv})
	ref := expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}
	inv.SetState(&infra.State{Ref: ref, UID: "s", ResourceVersion: "1000"})
	put(t, client, "/registry/infra.atoll.dev/resourcestates/shop/x", stored("demo_disk", "shop", "a", "s", "old"))
	current(t, f)
	if got := inv.State(ref); got.ResourceVersion != "1000" {
		t.Errorf("the inventory reverted to %s", got.ResourceVersion)
	}
}

func TestWaitCurrentWithoutRun(t *testing.T) {
	if err := New(Config{}).WaitCurrent(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v", err)
	}
}

func TestResourcesAreCounted(t *testing.T) {
	client, _ := keyspace(t)
	served := newFakeTypes()
	served.serve(demo, "disks", "Disk", "demo_disk", false)
	drifted := object("Disk", "shop", "b", "v", 1, fields{})
	drifted["status"] = fields{"conditions": []fields{{"type": infra.ConditionDrifted, "status": "True"}}}
	put(t, client, "/registry/"+demo+"/disks/shop/a", object("Disk", "shop", "a", "u", 1, fields{}))
	put(t, client, "/registry/"+demo+"/disks/shop/b", drifted)
	f := feeding(t, Config{Keyspace: client, Types: served, Inventory: newFakeInventory()})
	current(t, f)
	if n := f.Counts()[demo]; n != (Count{Objects: 2, Drifted: 1}) {
		t.Errorf("counted %+v", n)
	}
}
