package status

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestHistoryIsRecorded: the controller keeps a ReplicaSet of a Deployment's template and a
// ControllerRevision of a StatefulSet's, restores them, and writes the Deployment's revision.
func TestHistoryIsRecorded(t *testing.T) {
	control := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "apps/v1 Deployment", "apps/v1 ReplicaSet",
		"apps/v1 StatefulSet", "apps/v1 ControllerRevision", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	template := map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "one"}}}}
	for kind, name := range map[string]string{"Deployment": "web", "StatefulSet": "db"} {
		control.Put(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": kind, "metadata": map[string]any{"namespace": "shop", "name": name, "uid": "u-" + name, "generation": int64(1)},
			"spec": map[string]any{"replicas": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}, "template": template},
		}})
		control.Put(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding",
			"metadata": map[string]any{"namespace": "shop", "name": v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: kind}, name), "uid": "b-" + name},
			"spec": map[string]any{
				"resource": map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u-" + name},
				"clusters": []any{map[string]any{"name": "east", "replicas": int64(1)}},
			},
			"status": map[string]any{"clusters": []any{map[string]any{
				"name": "east", "uid": "m-" + name, "generation": int64(1), "replicas": int64(1), "health": "Healthy",
				"status": map[string]any{"observedGeneration": int64(1), "replicas": int64(1), "updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1)},
			}}},
		}})
	}
	control.Put(&unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster", "metadata": map[string]any{"name": "east"}}})
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: control.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, session) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	sets, revisions, deployments := apps.WithResource("replicasets"), apps.WithResource("controllerrevisions"), apps.WithResource("deployments")
	await(t, "a ReplicaSet whose replica is ready", func() bool {
		return slices.ContainsFunc(control.List(sets), func(s *unstructured.Unstructured) bool {
			ready, _, _ := unstructured.NestedInt64(s.Object, "status", "readyReplicas")
			observed, _, _ := unstructured.NestedInt64(s.Object, "status", "observedGeneration")
			return ready == 1 && observed == s.GetGeneration() && metav1.GetControllerOf(s) != nil
		})
	})
	await(t, "the Deployment's revision", func() bool {
		return control.Get(deployments, "shop", "web").GetAnnotations()["deployment.kubernetes.io/revision"] == "1"
	})
	for _, resource := range []schema.GroupVersionResource{sets, revisions} {
		await(t, "one object of "+resource.Resource, func() bool { return len(control.List(resource)) == 1 })
		name := control.List(resource)[0].GetName()
		control.Delete(resource, "shop", name)
		await(t, resource.Resource+" to be restored", func() bool { return control.Get(resource, "shop", name) != nil })
	}
	control.Merge(sets, "shop", control.List(sets)[0].GetName(), `{"spec":{"replicas":9}}`)
	await(t, "the replicas of the ReplicaSet to be restored", func() bool {
		n, _, _ := unstructured.NestedInt64(control.List(sets)[0].Object, "spec", "replicas")
		return n == 1
	})
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
