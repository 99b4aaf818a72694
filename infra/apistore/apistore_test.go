package apistore

import (
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
)

func TestStateStore(t *testing.T) {
	s := newFixture(t)
	states := NewStates(s.dyn)
	ref := expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}
	state := &infra.State{Ref: ref, Spec: v1alpha1.ResourceStateSpec{Type: "demo_disk", Provider: "demo",
		Object: v1alpha1.StateOwner{Group: demo, Kind: "Disk", Name: "a", UID: "u"}, Current: &v1alpha1.ResourceValue{Value: []byte(`{"id":1}`)}}}
	first, err := states.Put(t.Context(), state)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := states.api.Get(t.Context(), "shop", v1alpha1.StateName("disks", "demo", "a")); err != nil {
		t.Errorf("the state is not stored under its name: %v", err)
	}
	if _, err := states.Put(t.Context(), state); !errors.Is(err, infra.ErrStale) {
		t.Errorf("create of an existing state: %v", err)
	}
	first.Spec.Settled = "x"
	second, err := states.Put(t.Context(), first)
	if err != nil || second.ResourceVersion == first.ResourceVersion || second.UID != first.UID || string(second.Spec.Current.Value) != `{"id":1}` {
		t.Fatalf("got %+v, %v", second, err)
	}
	if _, err := states.Put(t.Context(), first); !errors.Is(err, infra.ErrStale) {
		t.Errorf("update of a stale state: %v", err)
	}
	if err := states.Delete(t.Context(), first); !errors.Is(err, infra.ErrStale) {
		t.Errorf("delete of a stale state: %v", err)
	}
	for range 2 {
		if err := states.Delete(t.Context(), second); err != nil {
			t.Error(err)
		}
	}
	if _, err := states.Put(t.Context(), second); !errors.Is(err, infra.ErrStale) {
		t.Errorf("update of a deleted state: %v", err)
	}
	if _, err := states.Put(t.Context(), &infra.State{Ref: ref}); err == nil {
		t.Error("a state without an owner was stored")
	}
}

func TestObjectStore(t *testing.T) {
	s := newFixture(t)
	s.disk("a", "theirs")
	live := func() *unstructured.Unstructured { return s.server.Get(disks, "shop", "a") }
	o := &infra.Object{Ref: expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}, Group: demo, Kind: "Disk", Plural: "disks", UID: string(live().GetUID()), Generation: 1}
	objects := NewObjects(s.dyn, s.kube, clock.RealClock{})
	for range 2 {
		if err := objects.AddFinalizer(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if got := live().GetFinalizers(); !slices.Equal(got, []string{"theirs", infra.Finalizer}) {
		t.Errorf("finalizers %v", got)
	}
	for name, moved := range map[string]infra.Object{
		"another UID":        {Ref: o.Ref, Group: demo, Plural: "disks", UID: "x", Generation: 1},
		"another generation": {Ref: o.Ref, Group: demo, Plural: "disks", UID: o.UID, Generation: 2},
		"gone":               {Ref: expr.Ref{Namespace: "shop", Name: "b"}, Group: demo, Plural: "disks", UID: o.UID},
	} {
		if err := objects.AddFinalizer(t.Context(), &moved); !errors.Is(err, infra.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	what := infra.ObjectStatus{Attributes: map[string]any{"id": "x", "size": 1, "list": []any{1.5, true}}, Generation: 1,
		Secret: map[string][]byte{"password": []byte("hush")}, SecretName: "conn",
		Conditions: []infra.Condition{{Type: infra.ConditionReady, True: true, Reason: "Created", Message: "It is there."}}}
	if err := objects.UpdateStatus(t.Context(), o, what); err != nil {
		t.Fatal(err)
	}
	first := live()
	conditions, _, _ := unstructured.NestedSlice(first.Object, "status", "conditions")
	if len(conditions) != 1 || conditions[0].(map[string]any)["observedGeneration"] != int64(1) {
		t.Errorf("conditions %v", conditions)
	}
	if err := objects.UpdateStatus(t.Context(), o, what); err != nil || live().GetResourceVersion() != first.GetResourceVersion() {
		t.Errorf("an unchanged status was written: %v", err)
	}
	secret, err := s.kube.CoreV1().Secrets("shop").Get(t.Context(), "conn", metav1.GetOptions{})
	if err != nil || string(secret.Data["password"]) != "hush" || !metav1.IsControlledBy(secret, first) {
		t.Errorf("the Secret is %+v, %v", secret, err)
	}
	what.Attributes, what.Secret = map[string]any{"id": "y"}, map[string][]byte{"password": []byte("whisper")}
	if err := objects.UpdateStatus(t.Context(), o, what); err != nil {
		t.Fatal(err)
	}
	if attributes, _, _ := unstructured.NestedMap(live().Object, "status", "attributes"); len(attributes) != 1 || attributes["id"] != "y" {
		t.Errorf("attributes %v", attributes)
	}
	s.server.Put(fields{"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": "mine", "namespace": "shop"}})
	what.SecretName = "mine"
	if err := objects.UpdateStatus(t.Context(), o, what); err == nil || !strings.Contains(err.Error(), "spec.connection.secret") || strings.Contains(err.Error(), "whisper") {
		t.Errorf("a Secret of another owner: %v", err)
	}
	for range 2 {
		if err := objects.RemoveFinalizer(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if got := live().GetFinalizers(); !slices.Equal(got, []string{"theirs"}) {
		t.Errorf("finalizers %v", got)
	}
}

// AddFinalizer and UpdateStatus do not read an object that is unchanged since it was last observed; they read
// one that has changed.
func TestWritesReuseTheObservedObject(t *testing.T) {
	s := newFixture(t)
	objects := NewObjects(s.dyn, s.kube, clock.RealClock{})
	what := infra.ObjectStatus{Attributes: map[string]any{"id": "x"}, Generation: 1, Conditions: []infra.Condition{{Type: infra.ConditionReady, True: true, Reason: "Created"}}}
	seen := func(name string) *infra.Object {
		u := s.disk(name)
		return &infra.Object{Ref: expr.Ref{Type: "demo_disk", Namespace: "shop", Name: name}, Group: demo, Kind: "Disk", Plural: "disks",
			UID: string(u.GetUID()), ResourceVersion: u.GetResourceVersion(), Generation: 1, NoFinalizers: true}
	}
	label := func(name string) {
		s.server.Change(disks, "shop", name, func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"l": "m"}) })
	}
	for _, between := range []string{"nothing", "before the finalizer", "before the status"} {
		o := seen(strings.ReplaceAll(between, " ", "-"))
		if between == "before the finalizer" {
			label(o.Ref.Name)
		}
		if err := objects.AddFinalizer(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if between == "before the status" {
			label(o.Ref.Name)
		}
		if err := objects.UpdateStatus(t.Context(), o, what); err != nil {
			t.Fatal(err)
		}
		u := s.server.Get(disks, "shop", o.Ref.Name)
		id, _, _ := unstructured.NestedString(u.Object, "status", "attributes", "id")
		if id != "x" || !slices.Equal(u.GetFinalizers(), []string{infra.Finalizer}) || (len(u.GetLabels()) > 0) != (between != "nothing") {
			t.Errorf("changed %s: %+v", between, u.Object)
		}
	}
	gone := seen("gone")
	s.server.Delete(disks, "shop", "gone")
	if err := objects.AddFinalizer(t.Context(), gone); !errors.Is(err, infra.ErrStale) {
		t.Errorf("a deleted object got the finalizer: %v", err)
	}
	if len(objects.stored) > 0 {
		t.Errorf("stored objects remain cached: %v", objects.stored)
	}
}
