package fleet

import (
	"context"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"

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
		"metadata": map[string]any{"namespace": key.Namespace, "name": key.Name, "uid": "u1", "resourceVersion": "1"},
		"data":     map[string]any{"colour": "blue"}}}
	binding := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding",
		"metadata": map[string]any{"namespace": key.Namespace, "name": v1alpha1.BindingName(configMaps.GroupKind(), key.Name), "uid": "b1"},
		"spec":     map[string]any{"clusters": []any{map[string]any{"name": "east"}}}}}
	metadataOf := func(version string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "u1", ResourceVersion: version,
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}}
	}

	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	meta := metadatafake.NewSimpleMetadataClient(scheme, metadataOf("1"))
	session := sessionOver(t, meta, configMaps, whole, binding)

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
	if err := meta.Tracker().Update(configMaps.GVR(), metadataOf("2"), key.Namespace); err != nil {
		t.Fatal(err)
	}
	select {
	case b := <-heard:
		if b.Name != binding.GetName() {
			t.Errorf("notified of %v", b)
		}
	case <-time.After(10 * time.Second):
		t.Error("no notification of a change to fields outside the cache")
	}
}

// sessionOver starts a session in which the control plane serves one kind.
func sessionOver(t *testing.T, meta metadata.Interface, kind interpret.KindInfo, objects ...runtime.Object) *Session {
	t.Helper()
	dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", {Version: "v1", Resource: "namespaces"}: "NamespaceList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		v1alpha1.ResourceInterpretationResource:                                               "ResourceInterpretationList",
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "CustomResourceDefinitionList", kind.GVR(): kind.Kind + "List",
	}, objects...)
	ctx, stop := context.WithCancel(t.Context())
	session, err := NewSessionWithClients(ctx, Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)},
		kubefake.NewClientset(), dyn, meta, []interpret.KindInfo{kind})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); session.Wait() })
	return session
}
