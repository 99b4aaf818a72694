package apistore

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
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

func TestValueStore(t *testing.T) {
	s := newFixture(t)
	put := func(kind, namespace, name string, data fields) {
		s.server.Put(fields{"apiVersion": "v1", "kind": kind, "metadata": fields{"name": name, "namespace": namespace}, "data": data})
	}
	put("Secret", "shop", "s", fields{"key": []byte("hush")})
	put("Secret", "shop", "x", fields{"p": []byte("hush")})
	put("Secret", "other", "x", nil)
	put("ConfigMap", "shop", "x", fields{"a": "b"})
	values := NewValues(s.dyn, s.kube)
	ctx := ForPlan(t.Context(), "shop", nil)
	if got, err := values.Secret(ctx, "shop", "s", "key"); err != nil || string(got) != "hush" {
		t.Errorf("got %q, %v", got, err)
	}
	s.server.Delete(corev1.SchemeGroupVersion.WithResource("secrets"), "shop", "s")
	if _, err := values.Secret(ctx, "shop", "s", "key"); err != nil {
		t.Errorf("within one plan a Secret was read twice: %v", err)
	}
	if _, err := values.Secret(ctx, "shop", "s", "other"); err == nil || !strings.Contains(err.Error(), `no key "other", but key`) || strings.Contains(err.Error(), "hush") {
		t.Errorf("missing key: %v", err)
	}
	k8s := func(kind, group, namespace string) expr.Ref {
		return expr.Ref{Kind: expr.Kubernetes, Type: kind, APIVersion: group, Namespace: namespace, Name: "x"}
	}
	v, err := values.Object(ctx, k8s("ConfigMap", "", "shop"))
	if err != nil || v.GetAttr("data").GetAttr("a").AsString() != "b" {
		t.Errorf("got %#v, %v", v, err)
	}
	v, err = values.Object(ctx, k8s("Secret", "v1", "shop"))
	if err != nil || !v.GetAttr("data").HasMark(providerapi.Sensitive) || v.GetAttr("metadata").ContainsMarked() {
		t.Errorf("got %#v, %v", v, err)
	}
	for ref, says := range map[expr.Ref]string{
		k8s("Boat", "", "shop"):           "no such kind",
		k8s("Event", "", "shop"):          `k8s["events.k8s.io/v1"].Event or k8s["v1"].Event`,
		k8s("Secret", "", "other"):        "secret values are available only in their own namespace",
		k8s("ConfigMap", "", "elsewhere"): "ConfigMap x not found in namespace elsewhere",
		k8s("ResourceState", "", "shop"):  "cannot be referenced",
	} {
		if _, err := values.Object(ctx, ref); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
