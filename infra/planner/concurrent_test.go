package planner

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
)

// TestInventoryDuringPlans runs plans of the same namespace while the Inventory changes. A later
// plan equals that of a new Inventory.
func TestInventoryDuringPlans(t *testing.T) {
	s := enginetest.NewEnv()
	s.NoLog = true
	m := newModel(t, s)
	e := newPlanner(t, s, nil)
	random := rand.New(rand.NewPCG(3, 4))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range 15 {
				opts := Options{Namespace: enginetest.Namespace, Mode: change.Normal, Salt: enginetest.Salt()}
				if _, err := e.Plan(t.Context(), opts, enginetest.NewPlanStore()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 300 {
		m.version++
		ref := enginetest.ThingRef(fmt.Sprint("t", random.IntN(20)))
		m.objects[ref] = enginetest.NewObject(ref, int64(m.version), enginetest.RandomSpec(random, ref, 20))
		e.Inventory.SetObject(m.objects[ref])
		e.Inventory.SetObject(enginetest.NewObject(enginetest.ImageRef(fmt.Sprint("d", random.IntN(3))), int64(m.version), enginetest.RandomSpec(random, enginetest.ImageRef("d"), 20)))
		if random.IntN(20) == 0 {
			e.Inventory.KindsChanged()
		}
		if random.IntN(20) == 0 {
			e.Inventory.Compact()
		}
	}
	all.Wait()
	for i := range 3 {
		ref := enginetest.ImageRef(fmt.Sprint("d", i))
		if o := e.Inventory.Object(ref); o != nil {
			m.objects[ref] = o
		}
	}
	got, store := mustPlan(t, e, Options{})
	fresh := newPlanner(t, s, nil)
	m.syncInventory(fresh.Inventory, nil, nil)
	want, other := mustPlan(t, fresh, Options{})
	if a, b := actions(t, got, store), actions(t, want, other); a != b {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}
