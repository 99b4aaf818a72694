package cli_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/join"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// atollServer runs an `atoll server` until the test ends, and returns its kubeconfig.
func atollServer(t *testing.T) (config *rest.Config, kubeconfig string) {
	t.Helper()
	dir := t.TempDir()
	out, _ := start(t, "server", "--data-dir", dir, "--secure-port", "0")
	eventually(t, "the server is ready", func() bool { return strings.Contains(out.String(), "Atoll serves") })
	kubeconfig = filepath.Join(dir, "admin.kubeconfig")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fleet's CRDs are served", func() bool { return fleet.InstallCRDs(t.Context(), config) == nil })
	return config, kubeconfig
}

func newCluster(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": v1alpha1.SystemNamespace, "name": "none"}}}}
}

func TestWithServer(t *testing.T) {
	t.Parallel()
	config, kubeconfig := atollServer(t)
	t.Run("expose", func(t *testing.T) { exposeAtAServer(t, config, kubeconfig) })
	t.Run("explain and preview", func(t *testing.T) { explainAtAServer(t, config, kubeconfig) })
	t.Run("moves", func(t *testing.T) { moveAtAServer(t, config, kubeconfig) })
	t.Run("reserved names", func(t *testing.T) { reserveNames(t, config) })
}

// exposeAtAServer runs the commands against a real server with two clusters that do not
// respond.
func exposeAtAServer(t *testing.T, config *rest.Config, kubeconfig string) {
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"east", "west"} {
		if _, err := dyn.Resource(v1alpha1.ClusterResource).Create(t.Context(), newCluster(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "carts.shop.example.org"},
		"spec": map[string]any{"group": "shop.example.org", "scope": "Namespaced", "names": map[string]any{"kind": "Cart", "plural": "carts"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}}}}}
	if _, err := dyn.Resource(crdResource).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	const manifest = `apiVersion: fleet.atoll.dev/v1alpha1
kind: SharedAPI
metadata:
  name: shop.example.org
spec:
  clusters:
  - east
  groups:
  - shop.example.org
`
	for _, step := range []struct {
		line           string
		code           int
		stdout, stderr string // stderr must contain it
	}{
		{"expose shop.example.org --to east --dry-run=client -o yaml", 0, manifest, ""},
		{"expose shop.example.org --to east --dry-run=server -o name", 0, "sharedapi.fleet.atoll.dev/shop.example.org\n", ""},
		{"unexpose shop.example.org", 1, "", "shop.example.org is not exposed: no groups are exposed"},
		{"expose shop.example.org --to eats", 1, "", "(did you mean east?): the clusters are east, west"},
		{"expose shop.example.org --to east --wait=false", 0, "sharedapi/shop.example.org created\n", ""},
		{"expose shop.example.org --to west --dry-run=server", 0, "sharedapi/shop.example.org configured: also for west (server dry run)\n", ""},
		{"expose shop.example.org --to west --namespaces Require --authorization Member --wait=false", 0, "sharedapi/shop.example.org configured: also for west; namespaces: Require instead of Provide; authorization: Member instead of Atoll\n", ""},
		{"expose shop.example.org --to west --wait=false", 0, "sharedapi/shop.example.org unchanged\n", ""},
		{"expose shop.example.org --to east --timeout 1s", 1, "sharedapi/shop.example.org unchanged\n", "not all clusters serve it yet\n  east: "},
		{"expose shop.example.org,books.example.org --to east", 1, "", "SharedAPI shop.example.org already exposes shop.example.org to east"},
		{"expose books.example.org -l tier=prod", 0, "sharedapi/books.example.org created\n", "warning: no CustomResourceDefinition has group books.example.org"},
		{"unexpose books.example.org", 0, "sharedapi/books.example.org deleted\n", "the objects stay in Atoll"},
		{"unexpose shop.example.org --from east --wait=false", 0, "sharedapi/shop.example.org configured: no longer for east\n", ""},
		{"unexpose shop.example.org --dry-run=server", 0, "sharedapi/shop.example.org deleted (server dry run)\n", ""},
		{"unexpose shop.example.org --wait=false", 0, "sharedapi/shop.example.org deleted\n", ""},
	} {
		code, stdout, stderr := run(t, append(append([]string{"atoll"}, strings.Fields(step.line)...), "--atoll-kubeconfig", kubeconfig)...)
		if code != step.code || stdout != step.stdout || !strings.Contains(stderr, step.stderr) {
			t.Fatalf("atoll %s: exit code %d\n%s\n%s\nwant %d\n%s\n%s", step.line, code, stdout, stderr, step.code, step.stdout, step.stderr)
		}
	}
}

func reserveNames(t *testing.T, config *rest.Config) {
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	api := dyn.Resource(v1alpha1.ClusterResource)
	for _, name := range v1alpha1.ReservedClusterNames() {
		if _, err := api.Create(t.Context(), newCluster(name), metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the name is reserved") {
			t.Errorf("%s: %v", name, err)
		}
		if err := join.Push(t.Context(), config, join.Options{Name: name}); err == nil || !strings.Contains(err.Error(), "is reserved") {
			t.Errorf("join %s: %v", name, err)
		}
	}

	// A Cluster that was created before the rule existed can be changed and deleted.
	patch := []byte(`[{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"}]`)
	if _, err := dyn.Resource(crdResource).Patch(t.Context(), "clusters."+v1alpha1.Group, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rule is removed", func() bool {
		_, err := api.Create(t.Context(), newCluster("system"), metav1.CreateOptions{})
		return err == nil
	})
	if err := fleet.InstallCRDs(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rule is restored", func() bool {
		_, err := api.Create(t.Context(), newCluster("kubeadm"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err)
	})
	label := []byte(`{"metadata": {"labels": {"tier": "prod"}}, "spec": {"unschedulable": true}}`)
	if _, err := api.Patch(t.Context(), "system", types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := join.Leave(ctx, config, join.LeaveOptions{Name: "system", Cascade: v1alpha1.LeaveOrphan}); err != nil {
		t.Error(err)
	}
}
