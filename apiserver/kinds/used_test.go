package kinds

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/sets"
)

// keysOnly is a keyspace without values. It counts the keys that a request would have
// to count.
type keysOnly struct {
	clientv3.KV
	keys    sets.Set[string]
	counted int
	fails   bool
}

func (k *keysOnly) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if k.fails {
		return nil, errors.New("the keyspace is unreachable")
	}
	op := clientv3.OpGet(key, opts...)
	out := &clientv3.GetResponse{}
	for _, one := range slices.Sorted(keysOf(k.keys)) {
		if one == key && len(op.RangeBytes()) == 0 || one >= key && one < string(op.RangeBytes()) {
			k.counted++
			if len(out.Kvs) == 0 {
				out.Kvs = append(out.Kvs, &mvccpb.KeyValue{Key: []byte(one)})
			}
		}
	}
	return out, nil
}

func keysOf(set sets.Set[string]) func(func(string) bool) {
	return func(yield func(string) bool) {
		for key := range set {
			if !yield(key) {
				return
			}
		}
	}
}

// TestUsedResources: after any changes, the result is the set of resources that have
// keys.
func TestUsedResources(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	// Some are prefixes of others, and sort differently than expected.
	resources := []string{"a", "ab", "ab-c", "ab0", "b", "things"}
	k := &keysOnly{keys: sets.New("/registry/g.example/zzz/x", "/registry/g.examplf/a/x", "/registry/g.exampl/a/x")}
	k.keys.Delete("/registry/g.example/zzz/x")
	s := &storedResources{kv: k}
	for range 2000 {
		for range 1 + random.IntN(3) {
			key := "/registry/g.example/" + resources[random.IntN(len(resources))] + "/ns/" + strconv.Itoa(random.IntN(4))
			if random.IntN(2) == 0 {
				k.keys.Insert(key)
			} else {
				k.keys.Delete(key)
			}
		}
		want := sets.New[string]()
		for key := range k.keys {
			if rest, is := strings.CutPrefix(key, "/registry/g.example/"); is {
				want.Insert(rest[:strings.IndexByte(rest, '/')])
			}
		}
		k.fails = random.IntN(10) == 0
		got, err := s.resources(t.Context(), "g.example")
		if k.fails {
			if err == nil {
				t.Fatal("no error for an unreachable keyspace")
			}
			continue
		}
		if err != nil || !got.Equal(want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
	}
	for n := range 10_000 {
		k.keys.Insert("/registry/g.example/things/ns/many" + strconv.Itoa(n))
	}
	if _, err := s.resources(t.Context(), "g.example"); err != nil {
		t.Fatal(err)
	}
	k.counted = 0
	if got, err := s.resources(t.Context(), "g.example"); err != nil || !got.Has("things") || k.counted > 20 {
		t.Errorf("%v, %v: %d keys were counted", got, err, k.counted)
	}
}
