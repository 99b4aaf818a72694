package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/atoll-dev/atoll/server"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// measured is a cluster with metrics-server.
func measured(t *testing.T) *fakeapi.Server {
	t.Helper()
	metrics := func(kind, plural string) fakeapi.Kind {
		return fakeapi.Kind{Group: metricsv1beta1.GroupName, Version: "v1beta1", Kind: kind, Plural: plural, ClusterScoped: plural == "nodes"}
	}
	member := fakeapi.New(t, append(fakeapi.BuiltIns("v1 Namespace", "v1 Node", "v1 Pod", "v1 Event", "v1 ConfigMap", "v1 Secret", "v1 Service", "v1 ServiceAccount",
		"apps/v1 Deployment", "apps/v1 ReplicaSet", "coordination.k8s.io/v1 Lease"), metrics("PodMetrics", "pods"), metrics("NodeMetrics", "nodes"))...)
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "kube-system"}})
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "reef"},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "4Gi", "pods": "110"}, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}})
	member.Put(map[string]any{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics", "metadata": map[string]any{"name": "reef"},
		"timestamp": "2026-01-02T03:04:05Z", "window": "20s", "usage": map[string]any{"cpu": "1", "memory": "1Gi"}})
	return member
}

// runPod creates a pod with metrics, of a ReplicaSet if it is not "".
func runPod(member *fakeapi.Server, namespace, name, replicaSet string) {
	metadata := map[string]any{"namespace": namespace, "name": name, "labels": map[string]any{"app": "web"}}
	if replicaSet != "" {
		set := member.Get(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}, namespace, replicaSet)
		metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replicaSet, "uid": string(set.GetUID()), "controller": true}}
	}
	member.Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": map[string]any{"nodeName": "reef", "containers": []any{map[string]any{"name": "main"}}}})
	usage := func(container, cpu string) map[string]any {
		return map[string]any{"name": container, "usage": map[string]any{"cpu": cpu, "memory": "32Mi"}}
	}
	member.Put(map[string]any{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": map[string]any{"namespace": namespace, "name": name},
		"timestamp": "2026-01-02T03:04:05Z", "window": "15s", "containers": []any{usage("main", "25m"), usage("proxy", "5m")}})
}

// TestMetricsAPI: `kubectl top` shows what pods of placed objects and nodes use, as the clusters' metrics-servers have it.
func TestMetricsAPI(t *testing.T) {
	a := newServer(t, server.Config{DataDir: filepath.Join(t.TempDir(), "data")}) // the shared one has no clusters
	t.Cleanup(func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	})
	member := measured(t)
	var silent atomic.Bool
	member.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if silent.Load() && r.Resource.Group == metricsv1beta1.GroupName {
			return &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "no endpoints"}
		}
		return nil
	})
	a.joinMember(t, "east", member.Member())
	ns := a.namespace(t)
	a.mustKubectl(t, "", "create", "deployment", "web", "--image=web", "-n", ns)
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	eventually(t, "the Deployment is in the cluster", func(context.Context) error {
		if member.Get(deployments, ns, "web") == nil {
			out, _ := a.kubectl(t, "", "get", "clusters,resourcebindings", "-n", ns, "-o", "yaml")
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	member.Put(map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": ns, "name": "web-1",
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": string(member.Get(deployments, ns, "web").GetUID()), "controller": true}}}})
	runPod(member, ns, "web-1-a", "web-1")
	runPod(member, ns, "foreign", "")

	check := func(want string, args ...string) {
		t.Helper()
		out, err := a.kubectl(t, "", args...)
		if got := strings.Join(strings.Fields(out), " "); err != nil || got != want {
			t.Errorf("kubectl %v: %v\n%s\nwant %s", args, err, got, want)
		}
	}
	served := func() {
		t.Helper()
		a.metricsDiscovery(t)
		check(ns+" web-1-a 30m 64Mi", "top", "pods", "-A", "-l", "fleet.atoll.dev/cluster=east", "--no-headers")
	}
	served()
	check("web-1-a main 25m 32Mi web-1-a proxy 5m 32Mi", "top", "pod", "web-1-a", "-n", ns, "--containers", "--no-headers")
	check("east.reef 1000m 25% 1024Mi 25%", "top", "nodes", "--no-headers")
	check("NAME CPU MEMORY WINDOW CLUSTER web-1-a 30m 64Mi 15s east", "get", "pods.metrics.k8s.io", "-n", ns, "-o", "wide")
	check("pod/web-1-a", "get", "pods", "-n", ns, "-o", "name")
	if out := a.mustKubectl(t, "", "explain", "pods.window", "--api-version=metrics.k8s.io/v1beta1"); !strings.Contains(out, "PodMetrics") {
		t.Error(out)
	}
	if out, err := a.kubectl(t, "", "top", "pod", "foreign", "-n", ns); err == nil || !strings.Contains(out, "NotFound") {
		t.Errorf("a pod that Atoll did not place: %v %s", err, out)
	}
	a.metricsAccess(t, ns)

	// A user places metrics-server in clusters. Its APIService does not lead to a Service here.
	for _, group := range []string{"metrics.k8s.io", "other.example.com"} {
		a.mustKubectl(t, `{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.`+group+`"}, "spec": {"group": "`+group+`", "version": "v1beta1",
			"service": {"name": "metrics-server", "namespace": "kube-system"}, "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100, "versionPriority": 100}}`, "apply", "-f", "-")
	}
	eventually(t, "the aggregating server has read the APIServices", func(context.Context) error {
		_, err := a.client(t).Discovery().ServerResourcesForGroupVersion("other.example.com/v1beta1")
		if apierrors.IsServiceUnavailable(err) {
			return nil
		}
		return fmt.Errorf("another group of a Service is answered with %w", err)
	})
	if n := strings.Count(a.raw(t, "/apis"), `"name":"metrics.k8s.io"`); n != 1 {
		t.Errorf("the group is listed %d times", n)
	}
	served()
	check("kube-system/metrics-server", "get", "apiservice", "v1beta1.metrics.k8s.io", "-o", "jsonpath={.spec.service.namespace}/{.spec.service.name}")
	a.mustKubectl(t, "", "delete", "apiservice", "v1beta1.metrics.k8s.io", "v1beta1.other.example.com")
	served()

	silent.Store(true)
	for _, args := range [][]string{{"top", "pods", "-n", ns}, {"top", "nodes"}} {
		if out, _ := a.kubectl(t, "", args...); !strings.Contains(out, "of cluster east are missing: look at `kubectl get apiservice v1beta1.metrics.k8s.io` there") {
			t.Errorf("kubectl %v: %s", args, out)
		}
	}
	silent.Store(false)

	// Nothing tries to delete metrics.
	a.mustKubectl(t, "", "delete", "namespace", ns, "--timeout=60s")
}

// metricsDiscovery checks both forms of discovery, and OpenAPI.
func (a atoll) metricsDiscovery(t *testing.T) {
	t.Helper()
	list, err := a.client(t).Discovery().ServerResourcesForGroupVersion("metrics.k8s.io/v1beta1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range list.APIResources {
		got = append(got, fmt.Sprint(r.Name, " ", r.Kind, " ", r.Namespaced, " ", r.Verbs))
	}
	if want := []string{"nodes NodeMetrics false [get list]", "pods PodMetrics true [get list]"}; !slices.Equal(got, want) {
		t.Errorf("resources %q", got)
	}
	groups, err := a.client(t).Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool {
		return g.Name == "metrics.k8s.io" && g.PreferredVersion.Version == "v1beta1"
	}) {
		t.Errorf("groups %v", groups.Groups)
	}
	if text := a.raw(t, "/apis"); !strings.Contains(text, `"name":"metrics.k8s.io"`) {
		t.Errorf("the list of groups: %s", text)
	}
	if text := a.raw(t, "/apis/metrics.k8s.io"); !strings.Contains(text, `"kind":"APIGroup"`) {
		t.Error(text)
	}
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal([]byte(a.raw(t, "/openapi/v3/apis/metrics.k8s.io/v1beta1")), &document); err != nil || document.Paths["/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"] == nil {
		t.Errorf("OpenAPI: %v %v", err, document.Paths)
	}
}

// raw returns the answer to a GET request.
func (a atoll) raw(t *testing.T, path string) string {
	t.Helper()
	text, err := a.client(t).RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context())
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return string(text)
}

// metricsAccess checks that Kubernetes' role view includes metrics, in a namespace and of nodes.
func (a atoll) metricsAccess(t *testing.T, ns string) {
	t.Helper()
	if out, err := a.kubectl(t, "", "top", "pods", "-n", ns, "--as=reader"); err == nil || !strings.Contains(out, `pods.metrics.k8s.io is forbidden`) {
		t.Errorf("a user without rights: %v %s", err, out)
	}
	if _, err := a.client(t).RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a user with the role view sees the metrics of the namespace", func(context.Context) error {
		out, err := a.kubectl(t, "", "top", "pods", "-n", ns, "--as=reader")
		if err == nil && !strings.Contains(out, "web-1-a") {
			err = fmt.Errorf("no pod: %s", out)
		}
		return err
	})
	for _, args := range [][]string{{"nodes"}, {"pods", "-n", "default"}} {
		if out, err := a.kubectl(t, "", append([]string{"top", "--as=reader"}, args...)...); err == nil || !strings.Contains(out, "forbidden") {
			t.Errorf("%v by a user of another namespace: %v %s", args, err, out)
		}
	}
}
