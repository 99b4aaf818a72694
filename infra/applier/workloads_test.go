package applier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/enginetest"
	"github.com/atoll-dev/atoll/infra/planner"
)

// fakeWorkloads logs placements, in one list with the provider's operations.
type fakeWorkloads struct {
	mu     sync.Mutex
	cloud  *fakeCloud
	placed []infra.PlaceRequest
	fails  map[string]error
}

func (f *fakeWorkloads) Place(_ context.Context, request infra.PlaceRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.placed = append(f.placed, request)
	if err := f.fails[request.Address.Name]; err != nil {
		return err
	}
	verb := "place"
	if request.Removed {
		verb = "remove"
	}
	f.cloud.mu.Lock()
	defer f.cloud.mu.Unlock()
	f.cloud.log = append(f.cloud.log, operation{request.ApplyUID, verb, request.Address.Name, ""})
	return nil
}

func deployment(t *testing.T, name string, uses ...string) *change.Change {
	t.Helper()
	three := int32(3)
	w := change.Workload{Address: change.WorkloadAddress(enginetest.Namespace, "apps/v1", "Deployment", name), After: change.WorkloadState{Clusters: map[string]*int32{"east": &three}},
		Detail: "no cluster → east 3", Uses: uses, Preconditions: []string{"binding b", "proposal p-" + name}}
	c, err := w.Change()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// planAndApply plans and applies with workloads, and returns the operations in order.
func (i *datastore) planAndApply(t *testing.T, f *fakeWorkloads, uid string, workloads ...*change.Change) (string, *Result) {
	t.Helper()
	f.cloud = i.cloud
	slices.SortFunc(workloads, func(a, b *change.Change) int { return a.Address.Compare(b.Address) })
	p := i.plan(t, uid, planner.Options{Workloads: workloads})
	_, e := i.server()
	e.Workloads = f
	opts := p.applying()
	opts.Parallelism = 1
	got, err := e.Apply(t.Context(), opts, p.store)
	if err != nil {
		t.Fatal(err)
	}
	return i.cloud.operations(), got
}

// TestWorkloadsInOrder: a resource that takes a value from a workload comes after it. A workload
// that needs a Secret comes after the resource that writes it. If both apply, the value wins.
func TestWorkloadsInOrder(t *testing.T) {
	i := newDatastore(t)
	i.writeWithDeployments(map[string]string{
		"dns":  `{"labels":{"name":"dns","at":"${k8s.Deployment[\"web\"].status.ready}"}}`,
		"db":   `{"labels":{"name":"db"},"connection":{"secret":"db"}}`,
		"both": `{"labels":{"name":"both","at":"${k8s[\"apps/v1\"].Deployment[\"loop\"].status.ready}"},"connection":{"secret":"loop"}}`,
	})
	f := &fakeWorkloads{}
	got, done := i.planAndApply(t, f, "one", deployment(t, "web", "db"), deployment(t, "loop", "loop"), deployment(t, "alone"))
	if done.Succeeded != done.Total || done.Total != 6 || done.Summary.Place != 3 || done.Summary.Create != 3 || len(done.Problems) > 0 {
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
			t.Errorf("%s has to become healthy: %v", p.Address, p.Healthy)
		}
		if !slices.Equal(p.Preconditions, []string{"binding b", "proposal p-" + p.Address.Name}) || p.ApplyUID != "one" {
			t.Errorf("placed %+v", p)
		}
	}
}

// TestWorkloadFailures: a stale placement is refused. A failed one blocks the resources that take a
// value from it, and nothing else.
func TestWorkloadFailures(t *testing.T) {
	i := newDatastore(t)
	i.writeWithDeployments(map[string]string{
		"dns":   `{"labels":{"name":"dns","at":"${k8s.Deployment[\"web\"].status.ready}"}}`,
		"other": `{"labels":{"name":"other"}}`,
	})
	f := &fakeWorkloads{fails: map[string]error{"web": errors.New("east: no room"), "moved": fmt.Errorf("the proposal has changed: %w", infra.ErrStale)}}
	got, done := i.planAndApply(t, f, "one", deployment(t, "web"), deployment(t, "moved"))
	if got != "create other" || done.Failed != 1 || done.Refused != 1 || done.Blocked != 1 || done.Succeeded != 1 {
		t.Fatalf("%s: %+v", got, done)
	}
	text := fmt.Sprint(done.Problems)
	if !strings.Contains(text, "Deployment.apps/web") || !strings.Contains(text, "east: no room") || !strings.Contains(text, ": plan again") {
		t.Errorf("problems %s", text)
	}
}

// TestWorkloadTampered checks that an added or modified placement is found before anything is done.
func TestWorkloadTampered(t *testing.T) {
	i := newDatastore(t)
	f := &fakeWorkloads{cloud: i.cloud}
	p := i.plan(t, "one", planner.Options{Workloads: []*change.Change{deployment(t, "web")}})
	other := i.plan(t, "two", planner.Options{Workloads: []*change.Change{deployment(t, "mallory")}})
	_, e := i.server()
	e.Workloads = f
	opts := p.applying()
	if _, err := e.Apply(t.Context(), opts, other.store); err == nil || len(f.placed) > 0 {
		t.Errorf("placed %+v, %v", f.placed, err)
	}
}

// writeWithDeployments writes specs that take values from Deployments.
func (i *datastore) writeWithDeployments(specs map[string]string) {
	for _, name := range []string{"web", "loop"} {
		i.Env.Objects[name] = cty.ObjectVal(map[string]cty.Value{"status": cty.ObjectVal(map[string]cty.Value{"ready": cty.StringVal("yes")})})
	}
	i.writeSpecs(specs)
}
