package status

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// TestBindingIsWrittenLast: a client that reads in a binding that all is well finds the same in
// the object's status. If writing the object's status fails, the binding is written all the
// same.
func TestBindingIsWrittenLast(t *testing.T) {
	deployment, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	web := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "u-1", "generation": int64(1)},
		"spec": map[string]any{"replicas": int64(1)},
	}}
	bound := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding", "metadata": map[string]any{"namespace": "shop", "name": "deployment.apps-web", "uid": "u-2"},
		"spec": map[string]any{
			"resource": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u-1"},
			"clusters": []any{map[string]any{"name": "east", "replicas": int64(1)}},
		},
		"status": map[string]any{"clusters": []any{map[string]any{
			"name": "east", "uid": "u-3", "generation": int64(1), "replicas": int64(1), "health": "Healthy",
			"status": map[string]any{"replicas": int64(1), "readyReplicas": int64(1)},
		}}},
	}}
	east := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster", "metadata": map[string]any{"name": "east"}}}
	lists := map[schema.GroupVersionResource]string{
		v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList", v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList", v1alpha1.ResourceInterpretationResource: "ResourceInterpretationList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "CustomResourceDefinitionList",
		{Version: "v1", Resource: "namespaces"}:                                               "NamespaceList", deployment.GVR(): "DeploymentList",
	}
	for _, refused := range []bool{false, true} {
		dyn := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, web, bound, east)
		var written []string
		dyn.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			what := action.GetResource().Resource
			written = append(written, what+"/"+action.GetSubresource())
			if refused && what == "deployments" {
				return true, nil, errors.New("no")
			}
			return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
		})
		session, err := fleet.NewSessionWithClients(t.Context(), fleet.Config{Clock: testingclock.NewFakeClock(time.Unix(1000, 0)), Log: slog.New(slog.DiscardHandler)},
			kubefake.NewClientset(), dyn, nil, []interpret.KindInfo{deployment})
		if err != nil {
			t.Fatal(err)
		}
		c := &controller{Session: session, progressing: map[types.NamespacedName]time.Time{}}
		if err := c.reconcile(t.Context(), types.NamespacedName{Namespace: "shop", Name: "deployment.apps-web"}); (err != nil) != refused {
			t.Errorf("refused %t: %v", refused, err)
		}
		if want := []string{"deployments/status", "resourcebindings/status"}; !slices.Equal(written, want) {
			t.Errorf("refused %t: written are %v, want %v", refused, written, want)
		}
	}
}
