package infra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/plan"
)

// fleet notes what is placed, in one list with what the provider does.
type fleet struct {
	mu     sync.Mutex
	cloud  *cloud
	placed []Placing
	fails  map[string]error
}

func (f *fleet) Place(_ context.Context, what Placing) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.placed = append(f.placed, what)
	if err := f.fails[what.Address.Name]; err != nil {
		return err
	}
	verb := "place"
	if what.Removed {
		verb = "remove"
	}
	f.cloud.mu.Lock()
	defer f.cloud.mu.Unlock()
	f.cloud.log = append(f.cloud.log, deed{what.ApplyUID, verb, what.Address.Name, ""})
	return nil
}

func deployment(t *testing.T, name string, uses ...string) *plan.Change {
	t.Helper()
	three := int32(3)
	w := plan.Workload{Address: plan.WorkloadAddress(testNamespace, "apps/v1", "Deployment", name), After: plan.Placed{Clusters: map[string]*int32{"east": &three}},
		Detail: "no cluster → east 3", Uses: uses, Preconditions: []string{"binding b", "proposal p-" + name}}
	c, err := w.Change()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// together plans and applies with workloads, and gives what was done, in order.
func (i *island) together(t *testing.T, f *fleet, uid string, workloads ...*plan.Change) (string, *Applied) {
	t.Helper()
	f.cloud = i.cloud
	slices.SortFunc(workloads, func(a, b *plan.Change) int { return a.Address.Compare(b.Address) })
	p := i.plan(t, uid, Planning{Workloads: workloads})
	_, e := i.server()
	e.Workloads = f
	what := p.applying()
	what.Parallelism = 1
	got, err := e.Apply(t.Context(), what, p.store)
	if err != nil {
		t.Fatal(err)
	}
	return i.cloud.deeds(), got
}

// TestWorkloadsInOrder: what takes a value from a workload comes after it, and a workload after what writes a Secret that it
// needs. Where both are so, the value counts.
func TestWorkloadsInOrder(t *testing.T) {
	i := newIsland(t)
	i.objectsOf(map[string]string{
		"dns":  `{"labels":{"name":"dns","at":"${k8s.Deployment[\"web\"].status.ready}"}}`,
		"db":   `{"labels":{"name":"db"},"connection":{"secret":"db"}}`,
		"both": `{"labels":{"name":"both","at":"${k8s[\"apps/v1\"].Deployment[\"loop\"].status.ready}"},"connection":{"secret":"loop"}}`,
	})
	f := &fleet{}
	got, done := i.together(t, f, "one", deployment(t, "web", "db"), deployment(t, "loop", "loop"), deployment(t, "alone"))
	if done.Succeeded != done.Total || done.Total != 6 || done.Done.Place != 3 || done.Done.Create != 3 || len(done.Problems) > 0 {
		t.Fatalf("%+v", done)
	}
	before := func(first, then string) {
		t.Helper()
		if at, after := strings.Index(got, first), strings.Index(got, then); at < 0 || after < at {
			t.Errorf("%q does not come before %q: %s", first, then, got)
		}
	}
	before("create db", "place web")
	before("place web", "create dns")
	before("place loop", "create both")
	for _, p := range f.placed {
		if want := p.Address.Name != "alone"; p.Healthy != want {
			t.Errorf("%s is waited for to be well: %v", p.Address, p.Healthy)
		}
		if !slices.Equal(p.Preconditions, []string{"binding b", "proposal p-" + p.Address.Name}) || p.ApplyUID != "one" {
			t.Errorf("placed %+v", p)
		}
	}
}

// TestWorkloadsThatFail: one that moved is refused, one that fails holds up what takes a value from it, and nothing else.
func TestWorkloadsThatFail(t *testing.T) {
	i := newIsland(t)
	i.objectsOf(map[string]string{
		"dns":   `{"labels":{"name":"dns","at":"${k8s.Deployment[\"web\"].status.ready}"}}`,
		"other": `{"labels":{"name":"other"}}`,
	})
	f := &fleet{fails: map[string]error{"web": errors.New("east: no room"), "moved": fmt.Errorf("something else is proposed by now: %w", ErrMoved)}}
	got, done := i.together(t, f, "one", deployment(t, "web"), deployment(t, "moved"))
	if got != "create other" || done.Failed != 1 || done.Refused != 1 || done.Blocked != 1 || done.Succeeded != 1 {
		t.Fatalf("%s: %+v", got, done)
	}
	text := fmt.Sprint(done.Problems)
	if !strings.Contains(text, "Deployment.apps/web") || !strings.Contains(text, "east: no room") || !strings.Contains(text, "plan it again") {
		t.Errorf("problems %s", text)
	}
}

// TestWorkloadTampered: a place that was put into a chunk, or changed, is found before anything is done.
func TestWorkloadTampered(t *testing.T) {
	i := newIsland(t)
	f := &fleet{cloud: i.cloud}
	p := i.plan(t, "one", Planning{Workloads: []*plan.Change{deployment(t, "web")}})
	other := i.plan(t, "two", Planning{Workloads: []*plan.Change{deployment(t, "mallory")}})
	_, e := i.server()
	e.Workloads = f
	what := p.applying()
	if _, err := e.Apply(t.Context(), what, other.store); err == nil || len(f.placed) > 0 {
		t.Errorf("placed %+v, %v", f.placed, err)
	}
}

// objectsOf writes specs that take values from Deployments.
func (i *island) objectsOf(specs map[string]string) {
	for _, name := range []string{"web", "loop"} {
		i.stand.objects[name] = cty.ObjectVal(map[string]cty.Value{"status": cty.ObjectVal(map[string]cty.Value{"ready": cty.StringVal("yes")})})
	}
	i.write(specs)
}
