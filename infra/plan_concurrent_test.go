package infra

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
)

// TestInventoryDuringPlans runs plans of the same namespace while the Inventory changes. A later
// plan equals that of a new Inventory.
func TestInventoryDuringPlans(t *testing.T) {
	s := newFakeEnv()
	s.noLog = true
	m := newModel(t, s)
	e := newPlanner(t, s, nil)
	random := rand.New(rand.NewPCG(3, 4))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range 15 {
				opts := PlanOptions{Namespace: testNamespace, Mode: change.Normal, Salt: testSalt()}
				if _, err := e.Plan(t.Context(), opts, newFakePlanStore()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		m.version++
		ref := thingRef(fmt.Sprint("t", random.IntN(20)))
		m.objects[ref] = newObject(ref, int64(m.version), randomSpec(random, ref, 20))
		e.Inventory.SetObject(m.objects[ref])
		e.Inventory.SetObject(newObject(imageRef(fmt.Sprint("d", random.IntN(3))), int64(m.version), randomSpec(random, imageRef("d"), 20)))
		if random.IntN(20) == 0 {
			e.Inventory.KindsChanged()
		}
		if random.IntN(20) == 0 {
			e.Inventory.Compact()
		}
	}
	all.Wait()
	for i := range 3 {
		ref := imageRef(fmt.Sprint("d", i))
		if o := e.Inventory.Object(ref); o != nil {
			m.objects[ref] = o
		}
	}
	got, store := mustPlan(t, e, PlanOptions{})
	fresh := newPlanner(t, s, nil)
	m.syncInventory(fresh.Inventory, nil, nil)
	want, other := mustPlan(t, fresh, PlanOptions{})
	if a, b := actions(t, got, store), actions(t, want, other); a != b {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}
