package fleet

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestOpaqueKinds: the cache holds only the metadata of a ConfigMap, and yet its clusters are
// notified of every change and can read it in full.
func TestOpaqueKinds(t *testing.T) {
	configMaps, known := interpret.Find(schema.GroupKind{Kind: "ConfigMap"})
	if !known || !configMaps.Opaque {
		t.Fatal("ConfigMaps are not opaque: this test checks nothing")
	}
	key := types.NamespacedName{Namespace: "default", Name: "settings"}
	whole := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name, "uid": "u1",
			"managedFields": []any{map[string]any{"manager": "kubectl"}}},
		"data": map[string]any{"colour": "blue"}}}
	binding := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding",
		"metadata": map[string]any{"namespace": key.Namespace, "name": v1alpha1.BindingName(configMaps.GroupKind(), key.Name), "uid": "b1"},
		"spec":     map[string]any{"clusters": []any{map[string]any{"name": "east"}}}}}
	session, control := openSession(t, []string{"v1 ConfigMap"}, whole, binding)

	obj, ok := session.Objects.Get(configMaps.GroupKind(), key)
	if !ok || obj.GetKind() != "ConfigMap" || obj.GetUID() != "u1" || obj.Object["data"] != nil || obj.GetManagedFields() != nil {
		t.Fatalf("the cache has %v", obj)
	}
	got, ok, err := session.Objects.Complete(t.Context(), configMaps, obj)
	if colour, _, _ := unstructured.NestedString(got.Object, "data", "colour"); err != nil || !ok || colour != "blue" {
		t.Errorf("full object: %v, %v, %v", got, ok, err)
	}
	other := obj.DeepCopy()
	other.SetUID("u0")
	if _, ok, err := session.Objects.Complete(t.Context(), configMaps, other); ok || err != nil {
		t.Errorf("returned the successor of a replaced object: %v, %v", ok, err)
	}
	other.SetName("gone")
	if _, ok, err := session.Objects.Complete(t.Context(), configMaps, other); ok || err != nil {
		t.Errorf("returned a deleted object: %v, %v", ok, err)
	}

	heard := make(chan types.NamespacedName, 10)
	defer session.Subscribe("east", func(key types.NamespacedName) { heard <- key })()
	<-heard // the initial notification
	control.Merge(configMaps.GVR(), key.Namespace, key.Name, `{"data":{"colour":"red"}}`)
	select {
	case b := <-heard:
		if b.Name != binding.GetName() {
			t.Errorf("notified of %v", b)
		}
	case <-time.After(10 * time.Second):
		t.Error("no notification of a change to fields outside the cache")
	}
}
