package status

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestBindingIsWrittenLast: a client that reads in a binding that all is well finds the same in
// the object's status. If writing the object's status fails, the binding is written all the
// same.
func TestBindingIsWrittenLast(t *testing.T) {
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
	for _, refused := range []bool{false, true} {
		control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "apps/v1 Deployment",
			"apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
		for _, o := range []*unstructured.Unstructured{web, bound, east} {
			control.Put(o)
		}
		var mu sync.Mutex
		var written []string
		control.OnRequest(func(r fakeapi.Request) *metav1.Status {
			if r.Verb != "apply" {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			written = append(written, r.Resource.Resource+"/"+r.Subresource)
			if refused && r.Resource.Resource == "deployments" {
				return &apierrors.NewInternalError(errors.New("no")).ErrStatus
			}
			return nil
		})
		session, err := fleet.NewSession(t.Context(), fleet.Config{REST: control.Config(), Clock: testingclock.NewFakeClock(time.Unix(1000, 0)), Log: slog.New(slog.DiscardHandler)})
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
