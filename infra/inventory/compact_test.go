package inventory

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/enginetest"
)

// TestCompact checks, over several slabs, that values are equal after Compact but in new memory.
func TestCompact(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	text := func() string { return string(randomBytes(random, random.IntN(60))) }
	w := newTestInventory(t)
	var names []string
	for i := range compactBatch + 100 {
		name := fmt.Sprint("t", i)
		o := enginetest.NewObject(enginetest.ThingRef(name), int64(i), fmt.Sprintf(`{"name":%q}`, text()))
		state := &infra.State{Ref: o.Ref, UID: text(), ResourceVersion: text(), Spec: v1alpha1.ResourceStateSpec{
			Object: v1alpha1.StateOwner{Name: name, UID: o.UID, Generation: 3}, Type: o.Ref.Type, Settled: text(),
		}}
		if random.IntN(2) == 0 {
			state.Spec.Written = slices.Clone(o.Spec)
		}
		if random.IntN(4) > 0 {
			state.Spec.Current = &v1alpha1.ResourceValue{SchemaVersion: 1, Value: randomBytes(random, random.IntN(2*slabBytes)/(1+random.IntN(1000))), Private: randomBytes(random, 3)}
			for range random.IntN(3) {
				state.Spec.Current.Sensitive = append(state.Spec.Current.Sensitive, text())
				state.Spec.Current.Dependencies = append(state.Spec.Current.Dependencies, text())
			}
		}
		if random.IntN(4) > 0 {
			state.Spec.Refreshed = &metav1.MicroTime{Time: time.Unix(int64(i), 0)}
			state.Spec.Carried = &v1alpha1.CarriedOut{ApplyUID: "an apply", Steps: []v1alpha1.CarriedStep{{Call: text(), Action: "create"}, {Call: text(), Problem: text()}}}
		}
		if random.IntN(10) == 0 {
			state.Spec.Pending = &v1alpha1.PendingChange{Apply: text()}
			state.Spec.Deposed = []v1alpha1.DeposedResource{{Key: text()}}
		}
		if random.IntN(10) > 0 {
			w.SetObject(o)
		}
		if random.IntN(10) > 0 {
			w.SetState(state)
		}
		names = append(names, name)
	}
	type both struct {
		o *infra.Object
		s *infra.State
	}
	look := func() (all []both) {
		for _, name := range names {
			all = append(all, both{w.Object(enginetest.ThingRef(name)), w.State(enginetest.ThingRef(name))})
		}
		return all
	}
	memos := func() (all []Memo) {
		for i := range w.nodes {
			w.nodes[i].memo.Fingerprint = cmp.Or(w.nodes[i].memo.Fingerprint, fmt.Sprint(i))
			all = append(all, w.nodes[i].memo)
		}
		return all
	}
	before, remembered, clock := look(), memos(), w.clock
	w.Compact()
	after := look()
	for i, b := range before {
		a := after[i]
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("%s: got\n%+v\nwant\n%+v", names[i], a, b)
		}
		if a.o != nil && a.o == b.o || a.s != nil && (a.s == b.s || a.s.Spec.Current != nil && a.s.Spec.Current == b.s.Spec.Current) {
			t.Fatalf("%s was not moved", names[i])
		}
		if a.s == nil {
			continue
		}
		if a.o != nil && len(a.s.Spec.Written) > 0 && &a.s.Spec.Written[0] != &a.o.Spec[0] {
			t.Fatalf("%s: the spec is in memory twice", names[i])
		}
		// An append must not reach the neighbours.
		if v := a.s.Spec.Current; v != nil {
			_, _, _ = append(v.Value, 0), append(v.Private, 0), append(v.Dependencies, "")
		}
	}
	if !reflect.DeepEqual(after, look()) || !reflect.DeepEqual(remembered, memos()) || w.clock != clock {
		t.Error("neighbours, memos or the clock have changed")
	}
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('a' + random.IntN(26))
	}
	return b
}
