package plancontroller

import (
	"strings"
	"sync"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/schema"
)

type fields = map[string]any

const (
	demo  = "demo.providers.atoll.dev"
	other = "other.providers.atoll.dev"
)

// fakeInventory is an inventory in maps.
type fakeInventory struct {
	mu      sync.Mutex
	objects map[expr.Ref]*infra.Object
}

func newFakeInventory() *fakeInventory {
	return &fakeInventory{objects: map[expr.Ref]*infra.Object{}}
}

func (m *fakeInventory) SetObject(o *infra.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[o.Ref] = o
}

func (m *fakeInventory) Object(ref expr.Ref) *infra.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[ref]
}

func (m *fakeInventory) State(expr.Ref) *infra.State          { return nil }
func (m *fakeInventory) Unapplied(string) map[expr.Ref][]byte { return nil }

// fakeTypes serves the kind Disk of the Provider demo.
type fakeTypes struct{}

func (fakeTypes) Groups() []string { return []string{demo} }

func (fakeTypes) ByPlural(group, plural string) (*infra.ServedKind, bool) {
	if group != demo || plural != "disks" {
		return nil, false
	}
	return &infra.ServedKind{
		Kind:     schema.Kind{Group: demo, Name: schema.Name{Type: "demo_disk", Kind: "Disk", Plural: "disks"}},
		Provider: strings.TrimSuffix(demo, "."+v1alpha1.ProvidersDomain),
	}, true
}

func (f fakeTypes) Kind(ref expr.Ref) (*infra.ServedKind, error) {
	if served, _ := f.ByPlural(demo, "disks"); ref.Type == served.Type {
		return served, nil
	}
	return nil, infra.ErrNotServed
}
