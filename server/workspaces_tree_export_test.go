package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// TestWorkspaceTreeExport: a watch over a tree notices that an exporter withdraws a resource, and that it exports the resource again, also if it deletes the export. The
// objects of the exporter itself stay.
func TestWorkspaceTreeExport(t *testing.T) {
	s := viewStageOf(t, ownServer(t, server.Config{}), "")
	bound := s.consumer("bound")
	for _, in := range []*rest.Config{s.exporter, bound} {
		s.mustKubectl(t, `{apiVersion: example.com/v1, kind: Widget, metadata: {name: w, namespace: default}, spec: {size: 3}}`, "--server="+in.Host, "create", "-f", "-")
	}
	all := clientsOf(t, s.workspace(t, "*")).Resource(sharedWidgets)
	informer := cache.NewSharedIndexInformer(byWorkspace(all), &unstructured.Unstructured{}, 0, nil)
	go informer.RunWithContext(t.Context())
	has := func(what string, keys ...string) {
		t.Helper()
		eventually(t, what, func(context.Context) error {
			got := informer.GetStore().ListKeys()
			if slices.Sort(got); !slices.Equal(got, keys) {
				return fmt.Errorf("the informer has %v, want %v", got, keys)
			}
			return nil
		})
	}
	exports := clientsOf(t, s.exporter).Resource(tenancy.APIExportResource)
	provide := func(resource string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"resources":[{"group":"example.com","resource":%q}]}}`, resource)
		if _, err := exports.Patch(t.Context(), "widgets", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	has("both have it", "bound|default/w", "exporter|default/w")
	provide("gadgets")
	has("it is withdrawn", "exporter|default/w")
	provide("widgets")
	has("it is exported again", "bound|default/w", "exporter|default/w")
	if err := exports.Delete(t.Context(), "widgets", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("the export is deleted", "exporter|default/w")
	if _, err := exports.Create(t.Context(), export("widgets"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("it is created again", "bound|default/w", "exporter|default/w")
}
