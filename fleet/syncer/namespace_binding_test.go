package syncer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// shopNamespace is the control plane's namespace.
func shopNamespace() *unstructured.Unstructured {
	ns := object("v1", "Namespace", "", "shop", "source-ns", nil)
	ns.SetLabels(map[string]string{"kubernetes.io/metadata.name": "shop", "team": "a", v1alpha1.ConfigurationLabel: "WhereNeeded"})
	return ns
}

// namespaceBindingOf is the binding of namespace shop in east, with an override of a label. With placed, a policy
// places it.
func namespaceBindingOf(placed bool, path string) *unstructured.Unstructured {
	b := &v1alpha1.ResourceBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "ClusterResourceBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: "namespace-shop", UID: "binding-ns", Finalizers: []string{v1alpha1.BindingFinalizer}},
		Spec: v1alpha1.ResourceBindingSpec{
			Resource:  v1alpha1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "shop", UID: "source-ns", Resource: "namespaces"},
			Clusters:  []v1alpha1.ClusterShare{{Name: "east", Reason: "Scheduled", Overrides: []int32{0}}},
			Overrides: []v1alpha1.Override{{JSONPatch: []v1alpha1.PatchOperation{{Op: "add", Path: path, Value: &runtime.RawExtension{Raw: []byte(`"restricted"`)}}}}},
		},
	}
	if placed {
		b.Spec.Policy = &v1alpha1.PolicyReference{Kind: "ClusterPlacement", Name: "p"}
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: m}
}

const enforce = "/metadata/labels/pod-security.kubernetes.io~1enforce"

// expectNamespace waits until the labels of the member's namespace, apart from the fleet's, are as wanted: "none" if it
// should not exist. It also waits for the reason of the binding's entry: "-" without an entry.
func (s *fixture) expectNamespace(labels, reason string) {
	s.t.Helper()
	fakeapi.Eventually(s.t, "the namespace is as wanted", func() error {
		have := "none"
		if ns := s.member.Get(namespaces(), "", "shop"); ns != nil {
			var list []string
			for _, key := range []string{"team", "pod-security.kubernetes.io/enforce"} {
				if value, ok := ns.GetLabels()[key]; ok {
					list = append(list, value)
				}
			}
			have = strings.Join(list, " ")
			for key := range ns.GetLabels() {
				if strings.HasPrefix(key, v1alpha1.Group) && key != v1alpha1.ManagedLabel {
					return errors.New("the control plane's own label is there: " + key)
				}
			}
		}
		state := s.namespaceState()
		is := "-"
		if state.Name != "" {
			is = state.Reason
		}
		if have != labels || is != reason {
			return fmt.Errorf("it has %q with reason %q (%s)\n%s", have, is, state.Message, strings.Join(s.writes(), "\n"))
		}
		return nil
	})
}

func (s *fixture) namespaceState() v1alpha1.ClusterState {
	u := s.control.Get(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop")
	if u == nil {
		return v1alpha1.ClusterState{}
	}
	b := &v1alpha1.ResourceBinding{}
	s.control.Read(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", b)
	state, _ := b.State("east")
	return state
}

// unchoose removes the cluster from the namespace's binding.
func (s *fixture) unchoose() {
	s.control.Merge(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", `{"spec":{"clusters":[]}}`)
}

// TestEmptyNamespaceIsPlaced: a placed namespace is in the member without objects, with the labels of the control
// plane and the overrides, and goes when it is no longer placed.
func TestEmptyNamespaceIsPlaced(t *testing.T) {
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce)), nil)
	s.expectNamespace("a restricted", "")
	s.control.Merge(namespaces(), "", "shop", `{"metadata":{"labels":{"team":"b"}}}`)
	s.expectNamespace("b restricted", "")
	s.eventually("it is watched", s.watches(interpret.NamespaceKind(), types.NamespacedName{Name: "shop"}))
	s.member.Merge(namespaces(), "", "shop", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`)
	s.expectNamespace("b restricted", "")
	s.unchoose()
	s.expectNamespace("none", "-")
}

// TestNamespaceWithContentStays: objects of others keep a placed namespace, without the overrides, and the
// binding names them until it is empty.
func TestNamespaceWithContentStays(t *testing.T) {
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce)), nil)
	s.expectNamespace("a restricted", "")
	s.member.Put(configMap("theirs"))
	s.unchoose()
	s.expectNamespace("a", v1alpha1.StateHeld)
	if m := s.namespaceState().Message; !strings.Contains(m, "ConfigMap conf") || !strings.Contains(m, "not empty") {
		t.Error(m)
	}
	s.member.Delete(configMaps, "shop", "conf")
	s.expectNamespace("none", "-")
}

// TestPlacedNamespaceWithObjects: objects of the fleet that leave at the same time, or later, do not keep a placed namespace.
func TestPlacedNamespaceWithObjects(t *testing.T) {
	for name, between := range map[string]func(*fixture){
		"at the same time": func(*fixture) {},
		"the object leaves later": func(s *fixture) {
			s.expectNamespace("a", "-")
			s.control.Merge(namespaces(), "", "shop", `{"metadata":{"labels":{"team":"b"}}}`)
			s.expectNamespace("b", "-")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce), configMap("source"), binding(true, nil)), nil)
			s.expectNamespace("a restricted", "")
			s.eventually("the object is there", func() bool { return s.conf() != nil && s.state().UID != "" })
			s.unchoose()
			between(s)
			s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", `{"spec":{"clusters":[]}}`)
			s.expectNamespace("none", "-")
		})
	}
}

// TestOverriddenNamespaceStays: a namespace that exists for its objects has the overrides of its binding, from its
// creation on, and stays without them when the binding goes.
func TestOverriddenNamespaceStays(t *testing.T) {
	for name, ends := range map[string]func(*fixture){
		"the cluster is no longer named": func(s *fixture) { s.unchoose() },
		"its last object left at the same time": func(s *fixture) {
			s.control.Merge(v1alpha1.ResourceBindingResource, "shop", "configmap-conf", `{"spec":{"clusters":[]}}`)
			s.unchoose()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(false, enforce), configMap("source"), binding(true, nil)), nil)
			s.expectNamespace("a restricted", "")
			s.eventually("the object is there", func() bool { return s.conf() != nil && s.state().UID != "" })
			ends(s)
			s.expectNamespace("a", "-")
		})
	}
}

// TestForeignNamespaceIsUsed: a namespace of someone else stays as it is, and is a conflict. If the cluster joined with
// --adopt, it is used, and the binding reports a conflict only if the control plane's labels differ.
func TestForeignNamespaceIsUsed(t *testing.T) {
	foreign := object("v1", "Namespace", "", "shop", "foreign", nil)
	foreign.SetLabels(map[string]string{"team": "x"})
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce)), objects(foreign))
	s.expectNamespace("x", v1alpha1.StateConflict)
	if m := s.namespaceState().Message; !strings.Contains(m, "no object is put into it") || !strings.Contains(m, "atoll adopt") {
		t.Error(m)
	}
	s.control.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"true"}}}`)
	s.expectNamespace("x", v1alpha1.StateConflict)
	s.member.Merge(namespaces(), "", "shop", `{"metadata":{"labels":{"team":"a","pod-security.kubernetes.io/enforce":"restricted"}}}`)
	s.expectNamespace("a restricted", "")
	s.unchoose()
	s.expectNamespace("a restricted", "-")
}

// TestForeignNamespaceIsAdopted: with the annotation of the control plane's namespace, it gets the labels.
func TestForeignNamespaceIsAdopted(t *testing.T) {
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce)), objects(object("v1", "Namespace", "", "shop", "foreign", nil)))
	s.expectNamespace("", v1alpha1.StateConflict)
	s.control.Merge(namespaces(), "", "shop", `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"true"}}}`)
	s.expectNamespace("a restricted", "")
}

// TestBrokenOverrideOfNamespace: an override that cannot be applied is reported, and no namespace is created without it.
func TestBrokenOverrideOfNamespace(t *testing.T) {
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, "/metadata/name"), configMap("source"), binding(true, nil)), nil)
	s.expectNamespace("none", v1alpha1.StateApplyFailed)
	s.eventually("the object waits", func() bool { return s.state().Reason == v1alpha1.StateApplyFailed })
	if m := s.state().Message; !strings.Contains(m, "namespace shop") {
		t.Error(m)
	}
	s.control.Merge(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", `{"spec":{"overrides":[{"jsonPatch":[{"op":"add","path":"`+enforce+`","value":"restricted"}]}]}}`)
	s.expectNamespace("a restricted", "")
	s.eventually("the object is there", func() bool { return s.conf() != nil })
}

// TestDeletedNamespaceGoes: with the control plane's namespace, the member's goes, and the binding has no entry.
func TestDeletedNamespaceGoes(t *testing.T) {
	for name, content := range map[string]bool{"empty": false, "with content": true} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce)), nil)
			s.expectNamespace("a restricted", "")
			if content {
				s.member.Put(configMap("theirs"))
			}
			s.control.Delete(namespaces(), "", "shop")
			s.control.Change(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", func(u *unstructured.Unstructured) {
				now := metav1.Now()
				u.SetDeletionTimestamp(&now)
			})
			s.eventually("there is no entry", func() bool { return s.namespaceState().Name == "" })
			if there := s.member.Get(namespaces(), "", "shop") != nil; there != content {
				t.Errorf("the namespace is there: %v", there)
			}
		})
	}
}

// TestPolicyOfUsedNamespaceEnds: if no policy places a namespace any more, objects of the fleet keep it, as if it had
// never been placed.
func TestPolicyOfUsedNamespaceEnds(t *testing.T) {
	s := newFixture(t, objects(shopNamespace(), namespaceBindingOf(true, enforce), configMap("source"), binding(true, nil)), nil)
	s.expectNamespace("a restricted", "")
	s.eventually("the object is there", func() bool { return s.conf() != nil && s.state().UID != "" })
	s.unchoose()
	s.control.Change(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", func(u *unstructured.Unstructured) {
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
	})
	s.expectNamespace("a", "-")
	if s.conf() == nil {
		t.Error("the object is gone")
	}
	s.control.Merge(namespaces(), "", "shop", `{"metadata":{"labels":{"team":"b"}}}`)
	s.expectNamespace("b", "-")
}
