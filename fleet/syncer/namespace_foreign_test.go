package syncer

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestForeignNamespaceGetsNoObjects: nothing is put into a namespace that the member had before, until an administrator
// adopts it in every cluster or in this one, or joins the cluster with --adopt. Its objects are updated only as long as
// that holds.
func TestForeignNamespaceGetsNoObjects(t *testing.T) {
	for name, adopt := range map[string]struct {
		resource schema.GroupVersionResource
		object   string
		value    string
		marked   bool
	}{
		"in every cluster":  {namespaces(), "shop", "true", true},
		"in this cluster":   {namespaces(), "shop", "east", true},
		"join with --adopt": {v1alpha1.ClusterResource, "east", "true", false},
	} {
		t.Run(name, func(t *testing.T) {
			foreign := object("v1", "Namespace", "", "shop", "foreign", nil)
			s := newFixture(t, objects(shopNamespace(), configMap("source"), binding(true, nil)), objects(foreign))
			s.eventually("it is a conflict", func() bool { return s.state().Reason == v1alpha1.StateConflict })
			state := s.state()
			if s.conf() != nil || !state.OfNamespace("shop") || !strings.Contains(state.Message, "`atoll adopt namespace/shop`") {
				t.Fatalf("%v, with %+v", s.conf(), state)
			}
			s.control.Merge(namespaces(), "", "shop", `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"west"}}}`)
			s.control.Merge(adopt.resource, "", adopt.object, `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"`+adopt.value+`"}}}`)
			s.eventually("the object is there", func() bool { return s.conf() != nil && s.state().Reason == "" })
			if marked := s.member.Get(namespaces(), "", "shop").GetLabels()[v1alpha1.ManagedLabel] == "true"; marked != adopt.marked {
				t.Errorf("the namespace is the fleet's: %v", marked)
			}
			if adopt.marked {
				return // the fleet owns it from then on
			}
			s.control.Merge(namespaces(), "", "shop", `{"metadata":{"annotations":{"`+v1alpha1.AdoptAnnotation+`":"false"}}}`)
			s.eventually("the annotation is known", func() bool { return s.syncer.adoption("shop") == "false" })
			s.control.Change(configMaps, "shop", "conf", func(u *unstructured.Unstructured) {
				u.Object["data"] = map[string]any{"k": "changed"}
				u.SetGeneration(u.GetGeneration() + 1)
			})
			s.eventually("it is a conflict again", func() bool { return s.state().OfNamespace("shop") })
			if s.conf() == nil {
				t.Error("the object was removed")
			}
		})
	}
}

// TestNamespacesOfEveryCluster: default takes objects, and kube-system takes permissions, unless an annotation forbids it.
func TestNamespacesOfEveryCluster(t *testing.T) {
	for _, tt := range []struct {
		namespace, adopt string
		kind             schema.GroupKind
		want             bool
	}{
		{"default", "", schema.GroupKind{Group: "apps", Kind: "Deployment"}, true},
		{"default", "false", schema.GroupKind{Group: "apps", Kind: "Deployment"}, false},
		{"kube-system", "", schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}, true},
		{"kube-system", "false", schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}, false},
		{"kube-system", "", schema.GroupKind{Kind: "ConfigMap"}, false},
		{"kube-system", "true", schema.GroupKind{Kind: "ConfigMap"}, true},
		{"istio-system", "", schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"}, false},
	} {
		ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": tt.namespace}}}
		if tt.adopt != "" {
			ns.SetAnnotations(map[string]string{v1alpha1.AdoptAnnotation: tt.adopt})
		}
		s := &Syncer{View: oneNamespace{ns: ns}, cluster: "east"}
		if got := s.mayUse(ns, tt.kind); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
		if s.adopts(tt.namespace) {
			t.Errorf("%+v: it is marked as the fleet's", tt)
		}
	}
}

// oneNamespace is a View of one namespace.
type oneNamespace struct {
	View
	ns metav1.Object
}

func (v oneNamespace) Namespace(string) (metav1.Object, bool) { return v.ns, true }
func (v oneNamespace) Cluster() (*v1alpha1.Cluster, bool)     { return nil, false }
