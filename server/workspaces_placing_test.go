package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	tenancy "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// placedWorkspace returns a Workspace whose objects its parent places.
func placedWorkspace(name string) *unstructured.Unstructured {
	w := newWorkspace(name)
	w.Object["spec"] = map[string]any{"placement": map[string]any{"from": "Parent", "namespaceLabels": map[string]any{"pod-security.kubernetes.io/enforce": "baseline"}}}
	return w
}

// createPlaced creates a workspace in the API of a, and returns that of the workspace.
func (a atoll) createPlaced(t *testing.T, name string) atoll {
	t.Helper()
	if _, err := a.dynamic(t).Resource(tenancy.WorkspaceResource).Create(t.Context(), placedWorkspace(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if parent := strings.TrimPrefix(a.path, "/clusters/"); parent != "" {
		return a.in(parent + ":" + name)
	}
	return a.in(name)
}

// awaitOutput waits until kubectl prints a text.
func (a atoll) awaitOutput(t *testing.T, want string, args ...string) {
	t.Helper()
	eventually(t, want, func(context.Context) error {
		if out, err := a.kubectl(t, "", args...); err != nil || !strings.Contains(out, want) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// as returns a client of the API of a that acts as a user.
func (a atoll) as(t *testing.T, user string) *dynamic.DynamicClient {
	t.Helper()
	config := a.config(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestPlacedWorkspace: the objects of a workspace, and of one in it, run in the cluster of the root, and their status comes back with the generations
// of their own objects. Copies that are lost are written again. A deleted object is removed from the cluster, and the copies go with the workspace.
func TestPlacedWorkspace(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceIdle: time.Second})
	t.Cleanup(func() { _ = s.stop() })
	member := measured(t)
	s.joinMember(t, "east", member.Member())
	team := s.createPlaced(t, "team")
	inner := team.createPlaced(t, "inner")

	team.mustKubectl(t, "", "create", "namespace", "shop")
	team.mustKubectl(t, "", "create", "configmap", "settings", "-n", "shop", "--from-literal=a=b")
	team.mustKubectl(t, "", "create", "deployment", "web", "--image=web", "-n", "shop")
	inner.mustKubectl(t, "", "create", "deployment", "deep", "--image=web")
	s.awaitPlaced(t, member, "team--shop", "web")
	deep := hashed(t, s, "inner--default")
	s.awaitPlaced(t, member, deep, "deep")
	if out := s.mustKubectl(t, "", "get", "namespace", "team--shop", "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`); out != "baseline" {
		t.Error(out)
	}

	team.mustKubectl(t, "", "scale", "deployment", "web", "-n", "shop", "--replicas=3")
	eventually(t, "the change is in the cluster", func(context.Context) error {
		if n, _, _ := unstructured.NestedInt64(member.Get(deployments, "team--shop", "web").Object, "spec", "replicas"); n != 3 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
	generation := member.Get(deployments, "team--shop", "web").GetGeneration()
	member.Merge(deployments, "team--shop", "web", fmt.Sprintf(`{"status":{"observedGeneration":%d,"replicas":3,"readyReplicas":3,"updatedReplicas":3,"availableReplicas":3}}`, generation))
	team.mustKubectl(t, "", "rollout", "status", "deployment/web", "-n", "shop", "--timeout=30s")
	team.awaitOutput(t, "3 2", "get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas} {.status.observedGeneration}")
	s.awaitOutput(t, "True Copied", "get", "workspace", "team", "-o", `jsonpath={.status.conditions[?(@.type=="Placed")].status} {.status.conditions[?(@.type=="Placed")].reason}`)

	team.mustKubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {name: all, namespace: shop}, spec: {selector: {kinds: [Deployment]}, mode: Duplicated}}", "create", "-f", "-")
	s.awaitOutput(t, "Duplicated", "get", "placement.fleet.atoll.dev", "all", "-n", "team--shop", "-o", "jsonpath={.spec.mode}", "--ignore-not-found")
	within(t, time.Minute, "both sleep when nothing changes", func(context.Context) error {
		if awake := s.Awake(); len(awake) > 0 {
			return fmt.Errorf("%v are awake", awake)
		}
		return nil
	})

	s.mustKubectl(t, "", "delete", "deployment", "web", "-n", "team--shop")
	s.awaitOutput(t, "deployment.apps/web", "get", "deployment", "web", "-n", "team--shop", "-o", "name", "--ignore-not-found")

	team.mustKubectl(t, "", "delete", "deployment", "web", "-n", "shop")
	awaitGone(t, member, deployments, "team--shop", "web")
	inner.mustKubectl(t, "", "delete", "deployment", "deep")
	inner.mustKubectl(t, "", "create", "deployment", "last", "--image=web")
	team.mustKubectl(t, "", "create", "deployment", "last", "--image=web", "-n", "shop")
	s.awaitPlaced(t, member, "team--shop", "last")
	team.mustKubectl(t, "", "delete", "namespace", "shop", "--timeout=60s")
	awaitGone(t, member, deployments, "team--shop", "last")
	s.awaitPlaced(t, member, deep, "last")
	s.mustKubectl(t, "", "delete", "workspace", "team", "--timeout=90s")
	if out := s.mustKubectl(t, "", "get", "namespaces", "-l", tenancy.ChildLabel, "-o", "name"); out != "" {
		t.Errorf("%s are left in the root", out)
	}
	awaitGone(t, member, deployments, deep, "last")
}

func awaitGone(t *testing.T, member *fakeapi.Server, resource schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	fakeapi.Until(t, name+" is gone from the cluster", func() bool { return member.Get(resource, namespace, name) == nil })
}

// TestPlacedWorkspaceAttacks: only a user with the right lets a workspace use clusters. The workspace gets no namespace that exists already, no marks of
// its users count, no roles reach the parent, and the parent's policies bind its user.
func TestPlacedWorkspaceAttacks(t *testing.T) {
	s := startFleets(t, server.Config{DataDir: t.TempDir(), WorkspaceIdle: time.Second})
	t.Cleanup(func() { _ = s.stop() })
	member := measured(t)
	s.joinMember(t, "east", member.Member())
	s.grant(t, "mallory", rbacv1.PolicyRule{Verbs: []string{"create", "update", "get"}, APIGroups: []string{tenancy.WorkspaceResource.Group}, Resources: []string{"workspaces"}},
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{tenancy.WorkspaceResource.Group}, Resources: []string{"workspacetypes"}})
	mallory := s.as(t, "mallory").Resource(tenancy.WorkspaceResource)
	if _, err := mallory.Create(t.Context(), placedWorkspace("hers"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "lacks the verb bind for clusters.fleet.atoll.dev") {
		t.Errorf("a placement without the right: %v", err)
	}
	made, err := mallory.Create(t.Context(), newWorkspace("hers"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Object["spec"].(map[string]any)["placement"] = map[string]any{"from": "Parent"}
	if _, err := mallory.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a placement without the right, later: %v", err)
	}

	// A type may have a placement, if its author has the right.
	ofType := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.atoll.dev/v1alpha1", "kind": "WorkspaceType", "metadata": map[string]any{"name": "placed"},
		"spec": map[string]any{"placement": map[string]any{"from": "Parent"}}}}
	if _, err := s.as(t, "mallory").Resource(tenancy.WorkspaceTypeResource).Create(t.Context(), ofType, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a type with a placement, without the right: %v", err)
	}
	if _, err := s.dynamic(t).Resource(tenancy.WorkspaceTypeResource).Create(t.Context(), ofType, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	typed := newWorkspace("typed")
	typed.Object["spec"] = map[string]any{"type": "placed"}
	typed, err = mallory.Create(t.Context(), typed, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if from, _, _ := unstructured.NestedString(typed.Object, "spec", "placement", "from"); from != "Parent" {
		t.Errorf("the placement of the type is %q", from)
	}
	other := placedWorkspace("other-labels")
	other.Object["spec"].(map[string]any)["type"] = "placed"
	if _, err := mallory.Create(t.Context(), other, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another placement than that of the type: %v", err)
	}

	team := s.createPlaced(t, "team")
	if out, err := s.kubectl(t, "", "patch", "workspace", "team", "--type=json", `-p=[{"op":"remove","path":"/spec/placement"}]`); err == nil || !strings.Contains(out, "placement cannot be removed") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := s.kubectl(t, "", "patch", "workspace", "team", "--type=merge", `-p={"spec":{"placement":{"namespaceLabels":{"tenancy.atoll.dev/child-uid":"x"}}}}`); err == nil || !strings.Contains(out, "the server sets this label") {
		t.Errorf("%v %s", err, out)
	}
	if out, err := team.kubectl(t, "{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: own}, spec: {kubeconfigSecretRef: {namespace: default, name: own}}}", "create", "-f", "-"); err == nil ||
		!strings.Contains(out, "run in the clusters of the workspace above") {
		t.Errorf("a Cluster of its own: %v %s", err, out)
	}

	// A namespace of the root that has the name.
	s.mustKubectl(t, "", "create", "namespace", "team--taken")
	s.mustKubectl(t, "", "create", "configmap", "mine", "-n", "team--taken", "--from-literal=a=root")
	team.mustKubectl(t, "", "create", "namespace", "taken")
	team.mustKubectl(t, "", "create", "configmap", "mine", "-n", "taken", "--from-literal=a=team")
	team.awaitOutput(t, "namespace team--taken exists in the workspace above", "get", "events", "-n", "taken")
	s.awaitOutput(t, "configmaps taken/mine", "get", "workspace", "team", "-o", `jsonpath={.status.conditions[?(@.type=="Placed")].message}`)
	if out := s.mustKubectl(t, "", "get", "configmap", "mine", "-n", "team--taken", "-o", "jsonpath={.data.a}"); out != "root" {
		t.Errorf("the workspace has changed a namespace of the root: %s", out)
	}
	s.mustKubectl(t, "", "delete", "namespace", "team--taken")
	s.awaitOutput(t, "team", "get", "configmap", "mine", "-n", "team--taken", "-o", "jsonpath={.data.a}", "--ignore-not-found")

	// Marks of another workspace, and roles.
	s.createPlaced(t, "other")
	uid := s.mustKubectl(t, "", "get", "workspace", "other", "-o", "jsonpath={.metadata.uid}")
	team.mustKubectl(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: marked, labels: {tenancy.atoll.dev/child: other, tenancy.atoll.dev/child-uid: "+uid+"}, annotations: {tenancy.atoll.dev/source-uid: x}}}", "create", "-f", "-")
	s.awaitOutput(t, "team", "get", "configmap", "marked", "-n", "team--default", "-o", `jsonpath={.metadata.labels.tenancy\.atoll\.dev/child}`, "--ignore-not-found")
	team.mustKubectl(t, "", "create", "rolebinding", "all", "--clusterrole=cluster-admin", "--user=mallory")
	team.mustKubectl(t, "", "create", "configmap", "after", "--from-literal=a=b")
	s.awaitOutput(t, "after", "get", "configmap", "after", "-n", "team--default", "-o", "name", "--ignore-not-found")
	if out := s.mustKubectl(t, "", "get", "rolebindings", "-n", "team--default", "-o", "name"); strings.TrimSpace(out) != "rolebinding.rbac.authorization.k8s.io/atoll:workspace-placement" {
		t.Errorf("the root has %s", out)
	}
	user := s.as(t, "system:workspace:team")
	for _, namespace := range []string{"default", "kube-system", "other--default"} {
		if _, err := user.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("the user of the workspace lists the Secrets of %s: %v", namespace, err)
		}
	}

	// Limits of the root bind the copies.
	s.mustKubectl(t, "", "create", "quota", "few", "--hard=count/deployments.apps=1", "-n", "team--default")
	team.mustKubectl(t, "", "create", "deployment", "one", "--image=web")
	s.awaitPlaced(t, member, "team--default", "one")
	team.mustKubectl(t, "", "create", "deployment", "two", "--image=web")
	team.awaitOutput(t, "exceeded quota: few", "get", "events")
	if member.Get(deployments, "team--default", "two") != nil {
		t.Error(errors.New("a Deployment beyond the quota runs"))
	}
}

// hashed returns the name of the namespace of the root that has the objects of a namespace of the workspace team.
func hashed(t *testing.T, s atoll, source string) (name string) {
	t.Helper()
	eventually(t, "the root has a namespace for "+source, func(ctx context.Context) error {
		all, err := s.client(t).CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: tenancy.ChildLabel + "=team"})
		if err != nil {
			return err
		}
		for _, ns := range all.Items {
			if ns.Annotations[tenancy.SourceNamespaceAnnotation] == source {
				name = ns.Name
				return nil
			}
		}
		return fmt.Errorf("%d namespaces", len(all.Items))
	})
	return name
}
