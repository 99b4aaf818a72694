package view

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// bindNamespace is the binding of namespace shop, which a policy places in the clusters with an override of a label.
func bindNamespace(in ...string) *unstructured.Unstructured {
	var clusters []any
	for _, name := range in {
		clusters = append(clusters, map[string]any{"name": name, "reason": "Scheduled", "overrides": []any{int64(0)}})
	}
	return object(apiVersion, "ClusterResourceBinding", "", "namespace-shop", map[string]any{"spec": map[string]any{
		"resource": map[string]any{"apiVersion": "v1", "kind": "Namespace", "name": "shop", "uid": "uid-shop", "resource": "namespaces"},
		"policy":   map[string]any{"kind": "ClusterPlacement", "name": "p"}, "clusters": clusters,
		"overrides": []any{map[string]any{"jsonPatch": []any{map[string]any{"op": "add", "path": "/metadata/labels/zone", "value": "e"}}}}}})
}

// TestNamespacesInView: a syncer sees the namespaces that are placed in its cluster, as the cluster should have them.
func TestNamespacesInView(t *testing.T) {
	s := newFixture(t, bindNamespace("east"))
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	key := types.NamespacedName{Name: "namespace-shop"}
	r := s.remote(0, 24*time.Hour)
	r.await(t)
	labels := func() map[string]string {
		b, ok := r.Binding(key)
		if !ok {
			return nil
		}
		desired, source, ok, err := r.Desired(t.Context(), b, nil)
		if err != nil || !ok || source.UID != "uid-shop" || desired.GetAnnotations()[v1alpha1.SourceUIDAnnotation] != "uid-shop" {
			return nil
		}
		return desired.GetLabels()
	}
	fakeapi.Until(t, "the namespace is in the view", func() bool { return labels()["zone"] == "e" })
	b, _ := r.Binding(key)
	if k, ok := r.KindOf(b); !ok || k.GVR() != namespaces || r.TypeVanished(b) {
		t.Errorf("kind %v, vanished %v", k, r.TypeVanished(b))
	}
	fakeapi.Until(t, "its labels in the control plane are", func() bool { ns, ok := r.Namespace("shop"); return ok && ns.GetUID() == "uid-shop" })
	s.control.Merge(namespaces, "", "shop", `{"metadata":{"labels":{"team":"a"}}}`)
	fakeapi.Until(t, "the label arrives", func() bool { return labels()["team"] == "a" && labels()["zone"] == "e" })
	if now, err := r.ConfirmRemoval(t.Context(), b); now.Binding != nil || err != nil {
		t.Errorf("it is to leave: %v %v", now, err)
	}
	for path, code := range map[string]int{"/apis/" + apiVersion + "/boundobjects/namespace-shop": 200, "/api/v1/namespaces/shop": 404} {
		if got, text := s.ask(syncerOf("east"), "GET", eastView+path, nil); got != code {
			t.Errorf("%s: %d %s", path, got, text)
		}
		if got, text := s.ask(syncerOf("west"), "GET", v1alpha1.ViewsPath+"west"+path, nil); got != 404 {
			t.Errorf("west: %s: %d %s", path, got, text)
		}
	}
	// The cluster still has it, so the binding stays in the view.
	if err := r.Report(t.Context(), b, &v1alpha1.ClusterState{Name: "east", UID: "there", Health: v1alpha1.Healthy}); err != nil {
		t.Fatal(err)
	}
	s.control.Merge(v1alpha1.ClusterResourceBindingResource, "", "namespace-shop", `{"spec":{"clusters":[]}}`)
	fakeapi.Until(t, "it is to leave", func() bool {
		now, err := r.ConfirmRemoval(t.Context(), b)
		return now.Binding != nil && now.Decided && err == nil
	})
	if err := r.Report(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	fakeapi.Until(t, "the view is empty", func() bool {
		_, bound := r.Binding(key)
		_, has := r.Namespace("shop")
		return !bound && !has
	})
}
