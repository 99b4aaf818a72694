package plancontroller

import (
	"encoding/json"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
)

// recordedInventory has objects and states.
type recordedInventory struct {
	objects map[expr.Ref]*infra.Object
	states  map[expr.Ref]*infra.State
}

func (i recordedInventory) Object(ref expr.Ref) *infra.Object    { return i.objects[ref] }
func (i recordedInventory) State(ref expr.Ref) *infra.State      { return i.states[ref] }
func (i recordedInventory) Unapplied(string) map[expr.Ref][]byte { return nil }

// TestSubjectsAndAuthors: policies select a change by the labels that its object has and had, and its authors are
// those whom the server has recorded.
func TestSubjectsAndAuthors(t *testing.T) {
	ref := func(name string) expr.Ref { return expr.Ref{Type: "demo_disk", Namespace: "shop", Name: name} }
	person := func(name string) string { return `{"username":"` + name + `"}` }
	object := func(spec, author, changedBy string, set map[string]string) *infra.Object {
		return &infra.Object{Group: demo, Spec: []byte(spec), Author: author, ChangedBy: changedBy, Labels: set}
	}
	state := func(spec string, applied *v1alpha1.AppliedObject) *infra.State {
		return &infra.State{Spec: v1alpha1.ResourceStateSpec{Provider: "demo", Written: []byte(spec), Applied: applied}}
	}
	gold := &v1alpha1.AppliedObject{Labels: map[string]string{"tier": "gold"}}
	deleted := object(`1`, person("ann"), person("bob"), nil)
	deleted.Deleting = true
	deletedBefore := object(`1`, "", "", nil)
	deletedBefore.Deleting = true
	inventory := recordedInventory{
		objects: map[expr.Ref]*infra.Object{
			ref("new"):            object(`1`, person("ann"), person("ann"), map[string]string{"a": "b"}),
			ref("dropped"):        object(`2`, person("ann"), person("bob"), nil),
			ref("earlier"):        object(`2`, "", "", nil),
			ref("drift"):          object(`1`, "", "", nil),
			ref("deleted"):        deleted,
			ref("deleted before"): deletedBefore,
			ref("moved"):          object(`1`, person("ann"), person("ann"), nil),
			ref("predecessor"):    deleted,
		},
		states: map[expr.Ref]*infra.State{
			ref("dropped"): state(`1`, gold), ref("earlier"): state(`1`, nil), ref("drift"): state(`1`, nil), ref("deleted"): state(`1`, gold),
			ref("deleted before"): state(`1`, nil), ref("gone"): state(`1`, gold), ref("predecessor"): state(`1`, gold),
		},
	}
	f := &planPolicies{session: &session{sessionConfig: sessionConfig{inventory: inventory}}}
	of := func(name string) *change.Change {
		return &change.Change{Address: change.Address{Namespace: "shop", Type: "demo_disk", Name: name}}
	}
	moved, restored, deposed := of("moved"), of("new"), of("gone")
	moved.MovedFrom = &change.Address{Namespace: "shop", Type: "demo_disk", Name: "predecessor"}
	restored.RestoreSpec = json.RawMessage(`1`)
	deposed.Address.Deposed = "x"
	goldSet := labels.Set{"tier": "gold"}
	for name, c := range map[string]struct {
		change  *change.Change
		sets    []labels.Set
		names   []string
		unknown bool
	}{
		"new":                         {of("new"), []labels.Set{{"a": "b"}}, []string{"ann"}, false},
		"a label was dropped":         {of("dropped"), []labels.Set{nil, goldSet}, []string{"ann", "bob"}, false},
		"changed before the upgrade":  {of("earlier"), []labels.Set{nil}, nil, true},
		"drift":                       {of("drift"), []labels.Set{nil}, nil, false},
		"deleted":                     {of("deleted"), []labels.Set{nil, goldSet}, []string{"ann", "bob"}, false},
		"deleted before the upgrade":  {of("deleted before"), []labels.Set{nil}, nil, true},
		"finalizers removed by force": {of("gone"), []labels.Set{goldSet}, nil, true},
		"moved":                       {moved, []labels.Set{nil, nil, goldSet}, []string{"ann", "bob"}, false},
		"restored by a rollback":      {restored, []labels.Set{{"a": "b"}}, nil, false},
		"a replaced predecessor":      {deposed, []labels.Set{goldSet}, nil, false},
	} {
		sets, provider := f.subject("shop", c.change)
		if !slices.EqualFunc(sets, c.sets, func(a, b labels.Set) bool { return a.String() == b.String() }) || provider != "demo" {
			t.Errorf("%s: labels %v of provider %q, want %v", name, sets, provider, c.sets)
		}
		var authors approval.Authors
		f.addAuthors(&authors, "shop", c.change)
		if !slices.Equal(authors.Names, c.names) || authors.Unknown != c.unknown {
			t.Errorf("%s: authors %+v, want %v, unknown %t", name, authors, c.names, c.unknown)
		}
	}
}
