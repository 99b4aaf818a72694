package join

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestConflicts selects conflicts by namespace, labels, names and cluster, and adopts them.
func TestConflicts(t *testing.T) {
	server := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 ConfigMap", "rbac.authorization.k8s.io/v1 ClusterRole")...)...)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}, meta.RESTScopeRoot)
	type fields = map[string]any
	put := func(apiVersion, kind, namespace, name, app string, states ...string) {
		metadata := fields{"name": name, "uid": namespace + name, "labels": fields{"app": app}}
		bound, of := fields{"name": strings.ToLower(kind) + "-" + name, "uid": "b" + namespace + name}, "ClusterResourceBinding"
		if namespace != "" {
			metadata["namespace"], bound["namespace"], of = namespace, namespace, "ResourceBinding"
		}
		server.Put(fields{"apiVersion": apiVersion, "kind": kind, "metadata": metadata})
		var clusters []any
		for _, s := range states {
			cluster, reason, _ := strings.Cut(s, ":")
			clusters = append(clusters, fields{"name": cluster, "health": "Unknown", "reason": reason})
		}
		server.Put(fields{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": of, "metadata": bound,
			"spec": fields{"resource": fields{"apiVersion": apiVersion, "kind": kind, "name": name, "uid": namespace + name}}, "status": fields{"clusters": clusters}})
	}
	put("v1", "ConfigMap", "shop", "a", "x", "east:Conflict", "west:Conflict")
	put("v1", "ConfigMap", "shop", "b", "y", "east:", "west:Conflict")
	put("v1", "ConfigMap", "shop", "fine", "x", "east:")
	put("v1", "ConfigMap", "other", "a", "x", "east:Conflict")
	put("rbac.authorization.k8s.io/v1", "ClusterRole", "", "r", "x", "east:Conflict")

	named := func(gk schema.GroupKind, namespace, name string) map[Name]bool {
		return map[Name]bool{{gk, types.NamespacedName{Namespace: namespace, Name: name}}: true}
	}
	x, err := labels.Parse("app=x")
	if err != nil {
		t.Fatal(err)
	}
	for want, f := range map[string]ConflictFilter{
		"ClusterRole /r [east] ConfigMap other/a [east] ConfigMap shop/a [east west] ConfigMap shop/b [west]": {},
		"ConfigMap shop/a [east west] ConfigMap shop/b [west]":                                                {Namespace: "shop"},
		"ConfigMap shop/a [east west]":                                                                        {Namespace: "shop", Selector: x},
		"ConfigMap shop/a [west] ConfigMap shop/b [west]":                                                     {Cluster: "west"},
		"ConfigMap shop/b [west]":                                                                             {Namespace: "shop", Named: named(schema.GroupKind{Kind: "ConfigMap"}, "shop", "b")},
		"ClusterRole /r [east]":                                                                               {Namespace: "shop", ClusterScoped: true, Named: named(schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}, "", "r")},
		"":                                                                                                    {Named: named(schema.GroupKind{Kind: "ConfigMap"}, "shop", "fine")},
	} {
		found, err := Conflicts(t.Context(), server.Dynamic(), mapper, f)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range found {
			got = append(got, fmt.Sprintf("%s %s/%s %v", c.Kind, c.Namespace, c.Name.Name, c.Clusters))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%+v: got %v, want %s", f, got, want)
		}
	}

	found, err := Conflicts(t.Context(), server.Dynamic(), mapper, ConflictFilter{Namespace: "shop", Selector: x})
	if err != nil {
		t.Fatal(err)
	}
	adopted := func() bool {
		return server.Get(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "shop", "a").GetAnnotations()[v1alpha1.AdoptAnnotation] == "true"
	}
	if err := found[0].Adopt(t.Context(), server.Dynamic(), []string{metav1.DryRunAll}); err != nil || adopted() {
		t.Errorf("a dry run: %v, adopted %v", err, adopted())
	}
	if err := found[0].Adopt(t.Context(), server.Dynamic(), nil); err != nil || !adopted() {
		t.Errorf("%v, adopted %v", err, adopted())
	}
}

// TestConflictsOfNamespaces: a namespace that keeps objects out of clusters is adopted in these clusters, also by a user
// who works in another namespace. To adopt the objects instead is an error.
func TestConflictsOfNamespaces(t *testing.T) {
	server := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 ConfigMap", "v1 Namespace")...)...)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, meta.RESTScopeNamespace)
	type fields = map[string]any
	server.Put(fields{"apiVersion": "v1", "kind": "Namespace", "metadata": fields{"name": "mesh", "uid": "n", "annotations": fields{v1alpha1.AdoptAnnotation: "north"}}})
	server.Put(fields{"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"namespace": "mesh", "name": "a", "uid": "a"}})
	var clusters []any
	for _, name := range []string{"west", "east"} {
		clusters = append(clusters, fields{"name": name, "health": "Unknown", "reason": "Conflict", "message": v1alpha1.NamespaceConflict("mesh") + name})
	}
	server.Put(fields{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding", "metadata": fields{"namespace": "mesh", "name": "configmap-a", "uid": "b"},
		"spec": fields{"resource": fields{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "a"}}, "status": fields{"clusters": clusters}})
	namespace, object := Name{namespaceKind, types.NamespacedName{Name: "mesh"}}, Name{schema.GroupKind{Kind: "ConfigMap"}, types.NamespacedName{Namespace: "mesh", Name: "a"}}
	if _, err := Conflicts(t.Context(), server.Dynamic(), mapper, ConflictFilter{Namespace: "mesh", Named: map[Name]bool{object: true}}); err == nil || !strings.Contains(err.Error(), "`atoll adopt namespace/mesh`") {
		t.Errorf("the object is adopted: %v", err)
	}
	for name, tt := range map[string]struct {
		filter ConflictFilter
		want   string
	}{
		"named":         {ConflictFilter{Namespace: "default", ClusterScoped: true, Named: map[Name]bool{namespace: true}}, "[east west]"},
		"all":           {ConflictFilter{}, "[east west]"},
		"of a cluster":  {ConflictFilter{Cluster: "west"}, "[west]"},
		"of a selector": {ConflictFilter{Selector: labels.Everything()}, ""},
	} {
		found, err := Conflicts(t.Context(), server.Dynamic(), mapper, tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(found) == 1 && found[0].Name == namespace {
			got = fmt.Sprint(found[0].Clusters)
		}
		if got != tt.want || len(found) > 1 {
			t.Errorf("%s: %+v", name, found)
		}
	}
	found, err := Conflicts(t.Context(), server.Dynamic(), mapper, ConflictFilter{Cluster: "west"})
	if err != nil {
		t.Fatal(err)
	}
	if err := found[0].Adopt(t.Context(), server.Dynamic(), nil); err != nil {
		t.Fatal(err)
	}
	if got := server.Get(namespaceResource, "", "mesh").GetAnnotations()[v1alpha1.AdoptAnnotation]; got != "north,west" {
		t.Errorf("it is adopted in %s", got)
	}
}
