package interpret

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestServiceImport: a ServiceImport follows its derived Service, and has the addresses of each cluster there.
func TestServiceImport(t *testing.T) {
	k, _ := Find(schema.GroupKind{Group: "multicluster.x-k8s.io", Kind: "ServiceImport"})
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
		"metadata": map[string]any{"namespace": "shop", "name": "web", "annotations": map[string]any{derivedAnnotation: "derived-x", "fleet.atoll.dev/cluster-ips": `{"east":["10.96.0.7"]}`}},
		"spec":     map[string]any{"type": "ClusterSetIP"}, "status": map[string]any{"clusters": []any{}}}}
	follows, err := k.Follows(obj)
	if err != nil || len(follows) != 1 || follows[0].To.Name != "derived-x" || follows[0].To.Kind != "Service" {
		t.Errorf("follows %+v, %v", follows, err)
	}
	for cluster, want := range map[string]string{"east": "10.96.0.7", "west": ""} {
		got := k.PrepareShare(obj, Share{Cluster: cluster})
		ips, _, _ := unstructured.NestedStringSlice(got.Object, "spec", "ips")
		if want == "" && len(ips) > 0 || want != "" && (len(ips) != 1 || ips[0] != want) {
			t.Errorf("%s has %v", cluster, ips)
		}
		if got.GetAnnotations()["fleet.atoll.dev/cluster-ips"] != "" || got.Object["status"] != nil {
			t.Errorf("%s gets %v", cluster, got.Object)
		}
	}
}

// TestServiceExportStaysHome: Atoll exports Services itself, unless a label leaves it to the clusters, and installs no types
// for that in clusters.
func TestServiceExportStaysHome(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": map[string]any{"namespace": "shop", "name": "web"}}}
	if why := StaysHome(obj); why != "the control plane itself exports Services: clusters import them" {
		t.Error(why)
	}
	crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "serviceimports.multicluster.x-k8s.io"}, "spec": map[string]any{"group": "multicluster.x-k8s.io"}}}
	if why := StaysHome(crd); why != "the control plane exports Services itself; a cluster that is to have ServiceImports serves their type already" {
		t.Error(why)
	}
	obj.SetLabels(map[string]string{"fleet.atoll.dev/home": "Members"})
	if why := StaysHome(obj); why != "" {
		t.Error(why)
	}
}
