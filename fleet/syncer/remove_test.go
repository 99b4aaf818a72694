package syncer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func TestRemovesUnchosenObject(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(false, &v1alpha1.ClusterState{UID: "there"})), objects(managed("there", "source")))
	s.eventually("it is deleted by UID", s.contains("member delete conf uid=there"))
	s.eventually("the entry is removed", s.contains("control apply configmap-conf no entry"))
	journal := s.settle()
	if slices.IndexFunc(journal, func(e string) bool { return strings.Contains(e, "no entry") }) <
		slices.IndexFunc(journal, func(e string) bool { return strings.Contains(e, "delete") }) {
		t.Errorf("the entry was removed before the object:\n%s", strings.Join(journal, "\n"))
	}
}

// TestNeverRemoves: while anything is uncertain, the object in the member stays.
func TestNeverRemoves(t *testing.T) {
	deleting := func(b *unstructured.Unstructured) *unstructured.Unstructured {
		now := metav1.Now()
		b.SetDeletionTimestamp(&now)
		return b
	}
	applied := &v1alpha1.ClusterState{UID: "there", Generation: 1}
	tests := map[string]struct {
		control []*unstructured.Unstructured
		there   *unstructured.Unstructured
	}{
		"the object is not seen":               {objects(binding(true, applied)), managed("there", "source")},
		"the object was replaced":              {objects(configMap("another"), binding(true, applied)), managed("there", "source")},
		"only the binding was deleted":         {objects(configMap("source"), deleting(binding(true, applied))), managed("there", "source")},
		"nothing is bound":                     {nil, managed("there", "source")},
		"no longer chosen, but it is not ours": {objects(configMap("source"), binding(false, applied)), configMap("theirs")},
		"no longer chosen, never been there":   {objects(configMap("source"), binding(false, nil)), managed("there", "source")},
		"the object is gone, theirs is not":    {objects(deleting(binding(true, applied))), configMap("theirs")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tt.control, objects(tt.there))
			for _, entry := range s.settle() {
				if strings.HasPrefix(entry, "member delete") {
					t.Errorf("deleted: %s", entry)
				}
			}
			if s.conf() == nil {
				t.Error("the object is gone")
			}
		})
	}
}

// unchosenBindings returns bindings that no longer choose the cluster, and the member's objects
// of them.
func unchosenBindings(n int) (control, member []*unstructured.Unstructured) {
	for i := range n {
		name := fmt.Sprintf("conf-%d", i)
		b := binding(false, &v1alpha1.ClusterState{UID: types.UID(name), Health: v1alpha1.Healthy})
		b.SetName("configmap-" + name)
		b.SetUID(types.UID("binding-" + name))
		withSpec(b, "resource", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": "source"})
		there := managed(name, "source")
		there.SetName(name)
		source := configMap("source")
		source.SetName(name)
		control, member = append(control, b, source), append(member, there)
	}
	return control, member
}

func (s *fixture) deletions() int {
	n := 0
	for _, entry := range s.writes() {
		if strings.HasPrefix(entry, "member delete") {
			n++
		}
	}
	return n
}

// bindingsOfVanishedType returns bindings whose objects vanished with their type, and the
// member's objects of them.
func bindingsOfVanishedType(n int) (control, member []*unstructured.Unstructured) {
	now := metav1.Now()
	for i := range n {
		name := fmt.Sprintf("widget-%d", i)
		b := binding(true, &v1alpha1.ClusterState{UID: types.UID(name), Health: v1alpha1.Healthy})
		b.SetName("widget.example.com-" + name)
		b.SetUID(types.UID("binding-" + name))
		b.SetDeletionTimestamp(&now)
		withSpec(b, "resource", map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "name": name, "uid": "source", "resource": "widgets"})
		there := managed(name, "source")
		there.SetAPIVersion("example.com/v1")
		there.SetKind("Widget")
		there.SetName(name)
		control, member = append(control, b), append(member, there)
	}
	return control, member
}

// markRequested records a requested removal from the cluster in bindings.
func markRequested(reason string, bindings []*unstructured.Unstructured) {
	for _, b := range bindings {
		if b.GetKind() == "ResourceBinding" {
			withSpec(b, "requestedRemovals", []any{map[string]any{"name": "east", "reason": reason}})
		}
	}
}

// TestRequestedRemovalsAreNotHeld: requested removals are not limited, and allow no others.
func TestRequestedRemovalsAreNotHeld(t *testing.T) {
	const n = v1alpha1.MinDeletions + 1
	t.Run("users deleted", func(t *testing.T) {
		control, member := unchosenBindings(n)
		markRequested(v1alpha1.RemovalUsersDeleted, control)
		s := newFixture(t, control, member)
		s.eventually("all objects are deleted", func() bool { return s.deletions() == n })
		if s.contains("RemovalHeld")() {
			t.Error("some removals were held")
		}
	})
	t.Run("type deleted", func(t *testing.T) {
		control, member := bindingsOfVanishedType(n)
		markRequested(v1alpha1.RemovalTypeDeleted, control)
		s := newFixture(t, control, member)
		s.eventually("all objects are deleted", func() bool { return s.deletions() == n })
		if s.contains("RemovalHeld")() {
			t.Error("some removals were held")
		}
	})
	t.Run("type vanished", func(t *testing.T) {
		control, member := bindingsOfVanishedType(n)
		s := newFixture(t, control, member)
		s.eventually("the removals are held", s.contains("RemovalHeld"))
		s.settle()
		if s.deletions() != 0 {
			t.Errorf("%d objects were deleted", s.deletions())
		}
	})
	t.Run("some of them", func(t *testing.T) {
		control, member := unchosenBindings(2 * n)
		markRequested(v1alpha1.RemovalUsersDeleted, control[:2*n]) // each binding is followed by its object
		s := newFixture(t, control, member)
		s.eventually("half of them are deleted", func() bool { return s.deletions() == n })
		s.eventually("the others are held", s.contains("RemovalHeld"))
		s.settle()
		if s.deletions() != n {
			t.Errorf("%d objects were deleted, but only %d removals were requested", s.deletions(), n)
		}
	})
}

// TestHaltsMassDeletion: if decisions would remove too much at once, nothing is removed until a
// user allows it, and then all of it.
func TestHaltsMassDeletion(t *testing.T) {
	control, member := unchosenBindings(v1alpha1.MinDeletions + 1)
	s := newFixture(t, control, member)
	s.eventually("the removals are held", s.contains("RemovalHeld"))
	s.eventually("the Cluster's condition is set", s.contains("control apply east"))
	conditions, _, _ := unstructured.NestedSlice(s.control.Get(v1alpha1.ClusterResource, "", "east").Object, "status", "conditions")
	if got := fmt.Sprint(conditions); !strings.Contains(got, "DeletionsHalted") || !strings.Contains(got, "11 of the 11") ||
		!strings.Contains(got, "ConfigMap shop/conf-0") || !strings.Contains(got, "allow-deletions east") {
		t.Errorf("the conditions are %s", got)
	}
	s.settle()
	if n := s.deletions(); n != 0 {
		t.Errorf("%d objects were deleted", n)
	}
	s.allowDeletions()
	s.eventually("all objects are deleted", func() bool { return s.deletions() >= v1alpha1.MinDeletions+1 })
}

// allowDeletions permits the held removals.
func (s *fixture) allowDeletions() {
	s.t.Helper()
	s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{v1alpha1.AllowDeletionsAnnotation: time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	})
}

func TestFewRemovalsAreNotHalted(t *testing.T) {
	control, member := unchosenBindings(v1alpha1.MinDeletions)
	s := newFixture(t, control, member)
	s.eventually("all objects are deleted", func() bool { return s.deletions() == v1alpha1.MinDeletions })
}
