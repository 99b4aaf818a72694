package cli_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// moveAtAServer runs the commands against a real server, whose API validates the requests.
func moveAtAServer(t *testing.T, config *rest.Config, kubeconfig string) {
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	clusters := dyn.Resource(v1alpha1.ClusterResource)
	for _, name := range []string{"moves-a", "moves-b"} {
		if _, err := clusters.Create(t.Context(), newCluster(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	namespaces := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	if _, err := namespaces.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "moves"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	web := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "namespace": "moves"},
		"spec": map[string]any{"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": "web:1"}}}}}}}
	if _, err := dyn.Resource(deploymentResource).Namespace("moves").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		line string
		code int
		out  string // stdout and stderr must contain it
	}{
		{"cordon moves-a moves-b --dry-run=server", 0, "cluster/moves-b cordoned (server dry run)\n"},
		{"cordon moves-a", 0, "cluster/moves-a cordoned\n"},
		{"cordon moves-a", 0, "cluster/moves-a already cordoned\n"},
		{"drain moves-a --rate 2 --dry-run", 0, "cluster/moves-a is drained (server dry run)\n"},
		{"drain moves-a --rate 2 --wait=false", 0, "cluster/moves-a is drained\n"},
		{"drain moves-a --pause", 0, "cluster/moves-a drain paused\n"},
		{"drain moves-a", 1, "is paused"},
		{"drain moves-a --resume --wait=false", 0, "cluster/moves-a drain resumed\n"},
		{"move deploy/web -n moves --to moves-a", 1, "cluster moves-a is drained"},
		{"uncordon moves-a", 0, "cluster/moves-a uncordoned, its drain is ended\n"},
		{"uncordon moves-a", 0, "cluster/moves-a already uncordoned\n"},
		{"move deploy/web -n moves --to moves-b", 1, "cluster moves-b "}, // it does not answer
		{"move deploy web -n moves --to moves-b --force --wait=false", 0, "deployments.apps/web is labelled for moves-b\n"},
		{"move ns/moves --to moves-b --force --dry-run", 0, "namespaces/moves is labelled for moves-b (server dry run)\n"},
		{"move deploy/web -n moves --anywhere --wait=false", 0, "deployments.apps/web runs where its policy says\n"},
		{"pause deploy/web -n moves", 0, "deployments.apps/web paused\n"},
		{"resume deploy/web -n moves", 0, "deployments.apps/web resumed\n"},
		{"abort deploy/web -n moves", 1, ""},
		{"retry deploy/web -n moves", 0, "deployments.apps/web avoids no clusters\n"},
		{"transitions -n moves", 0, "No objects are in transition in namespace moves.\n"},
		{"leave moves-a --dry-run", 0, "cluster/moves-a leaves without a drain, because it "},
	} {
		code, stdout, stderr := run(t, append(append([]string{"atoll"}, strings.Fields(step.line)...), "--atoll-kubeconfig", kubeconfig)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.out) {
			t.Errorf("atoll %s: exit code %d\n%s%s\nwant %d\n%s", step.line, code, stdout, stderr, step.code, step.out)
		}
	}
	if u, err := clusters.Get(t.Context(), "moves-a", metav1.GetOptions{}); err != nil || u.Object["spec"].(map[string]any)["drain"] != nil {
		t.Errorf("moves-a: %v, %v", u, err)
	}
	for _, name := range []string{"moves-a", "moves-b"} { // the other tests have their own clusters
		if err := dyn.Resource(v1alpha1.ClusterResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the clusters have left", func() bool {
		list, err := clusters.List(t.Context(), metav1.ListOptions{})
		return err == nil && !strings.Contains(strings.Join(namesOfObjects(list), " "), "moves-")
	})
	if err := namespaces.Delete(t.Context(), "moves", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func namesOfObjects(list *unstructured.UnstructuredList) (names []string) {
	for _, u := range list.Items {
		names = append(names, u.GetName())
	}
	return names
}
