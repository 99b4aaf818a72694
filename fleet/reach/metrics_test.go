package reach

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// measure has a cluster serve metrics.
func (f *fixture) measure(cluster string) {
	f.t.Helper()
	gv := metricsv1beta1.SchemeGroupVersion
	f.members[cluster].Serve(
		fakeapi.Kind{Group: gv.Group, Version: gv.Version, Kind: "PodMetrics", Plural: Pods},
		fakeapi.Kind{Group: gv.Group, Version: gv.Version, Kind: "NodeMetrics", Plural: Nodes, ClusterScoped: true})
}

// uses stores the metrics of a pod.
func (f *fixture) uses(cluster, namespace, pod, cpu string) {
	f.t.Helper()
	f.members[cluster].Put(map[string]any{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics",
		"metadata":  map[string]any{"namespace": namespace, "name": pod, "labels": map[string]any{"app": pod, "forged": "yes"}, "annotations": map[string]any{"a": "b"}},
		"timestamp": "2026-01-02T03:04:05Z", "window": "15s",
		"containers": []any{map[string]any{"name": "main", "usage": map[string]any{"cpu": cpu, "memory": "64Mi"}}}})
}

// metrics returns the metrics of pods as NAMESPACE/NAME@CLUSTER=CPU, and of nodes as NAME@CLUSTER=CPU.
func (f *fixture) metrics(resource, namespace string, o metav1.ListOptions) (all string, warnings []string) {
	f.t.Helper()
	list, warnings, err := f.reach.Metrics(f.t.Context(), resource, namespace, o)
	if err != nil {
		f.t.Fatal(err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, item := range items {
		out = append(out, textOf(item))
	}
	return strings.Join(out, " "), warnings
}

func textOf(item runtime.Object) string {
	switch of := item.(type) {
	case *metricsv1beta1.PodMetrics:
		return fmt.Sprintf("%s/%s@%s=%s", of.Namespace, of.Name, of.Labels[v1alpha1.ClusterLabel], of.Containers[0].Usage.Cpu())
	case *metricsv1beta1.NodeMetrics:
		return fmt.Sprintf("%s@%s=%s", of.Name, of.Labels[v1alpha1.ClusterLabel], of.Usage.Cpu())
	}
	return fmt.Sprintf("%T", item)
}

// TestMetricsOfPods: metrics are those of the pods that are shown, with the pods' labels and nothing else of the cluster.
func TestMetricsOfPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	for cluster, pod := range map[string]string{"east": "a", "west": "b"} {
		f.measure(cluster)
		f.pod(cluster, "shop", pod, "web-1")
		f.uses(cluster, "shop", pod, "10m")
	}
	f.pod("east", "shop", "foreign", "")
	f.uses("east", "shop", "foreign", "1")
	f.uses("east", "shop", "none", "1") // no pod has this name
	f.uses("east", "other", "a", "1")
	for _, tt := range []struct{ namespace, labels, fields, want string }{
		{"shop", "", "", "shop/a@east=10m shop/b@west=10m"},
		{"", "", "", "shop/a@east=10m shop/b@west=10m"},
		{"other", "", "", ""},
		{"shop", "app=b", "", "shop/b@west=10m"},
		{"shop", "forged", "", ""},
		{"shop", "fleet.atoll.dev/cluster=east", "", "shop/a@east=10m"},
		{"", "", "metadata.name=b,metadata.namespace=shop", "shop/b@west=10m"},
	} {
		got, warnings := f.metrics(Pods, tt.namespace, metav1.ListOptions{LabelSelector: tt.labels, FieldSelector: tt.fields})
		if got != tt.want || warnings != nil {
			t.Errorf("%+v: %s, warnings %v", tt, got, warnings)
		}
	}
	obj, warnings, err := f.reach.MetricsOf(t.Context(), Pods, "shop", "a")
	if err != nil || warnings != nil {
		t.Fatal(warnings, err)
	}
	of := obj.(*metricsv1beta1.PodMetrics)
	if of.UID != "" || of.ResourceVersion != "" || of.Annotations != nil || of.Labels["forged"] != "" || of.Window.Seconds() != 15 || of.Timestamp.IsZero() || of.Containers[0].Name != "main" {
		t.Errorf("%+v", of)
	}
	for _, hidden := range []string{"foreign", "none"} {
		if _, _, err := f.reach.MetricsOf(t.Context(), Pods, "shop", hidden); !apierrors.IsNotFound(err) {
			t.Errorf("pod %s: %v", hidden, err)
		}
	}
	f.pod("west", "shop", "new", "web-1")
	if _, _, err := f.reach.MetricsOf(t.Context(), Pods, "shop", "new"); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "cluster west has no metrics of it yet") {
		t.Errorf("a pod without metrics: %v", err)
	}
	// Of two pods with one name, the newest is meant, and a list has both.
	f.pod("west", "shop", "a", "web-1")
	f.uses("west", "shop", "a", "20m")
	if _, warnings, err := f.reach.MetricsOf(t.Context(), Pods, "shop", "a"); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "east, west") {
		t.Errorf("%v %v", warnings, err)
	}
	if got, _ := f.metrics(Pods, "shop", metav1.ListOptions{}); got != "shop/a@east=10m shop/a@west=20m shop/b@west=10m" {
		t.Error(got)
	}
}

// TestMetricsOfStoredPods: the metrics of a pod that the control plane stores are those of its copy.
func TestMetricsOfStoredPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.measure("east")
	f.control.Put(map[string]any{"apiVersion": v1alpha1.Group + "/v1alpha1", "kind": "ResourceBinding",
		"metadata": map[string]any{"namespace": "shop", "name": v1alpha1.BindingName(podKind, "single")},
		"spec":     map[string]any{"resource": map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "single", "uid": "source"}, "clusters": []any{map[string]any{"name": "east"}}}})
	f.members["east"].Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "shop", "name": "single",
		"labels": map[string]any{v1alpha1.ManagedLabel: "true"}, "annotations": map[string]any{v1alpha1.ClusterAnnotation: "east", v1alpha1.SourceUIDAnnotation: "source"}}})
	f.uses("east", "shop", "single", "5m")
	if got, warnings := f.metrics(Pods, "shop", metav1.ListOptions{}); got != "shop/single@east=5m" || warnings != nil {
		t.Errorf("%s %v", got, warnings)
	}
	if _, _, err := f.reach.MetricsOf(t.Context(), Pods, "shop", "single"); err != nil {
		t.Error(err)
	}
}

// TestMetricsOfNodes: the metrics of nodes have the names that nodes are shown with.
func TestMetricsOfNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	for _, cluster := range []string{"east", "west"} {
		f.measure(cluster)
		f.members[cluster].Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1", "labels": map[string]any{"zone": cluster + "-a"}}})
		for _, name := range []string{"node-1", "none"} {
			f.members[cluster].Put(map[string]any{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics", "metadata": map[string]any{"name": name, "labels": map[string]any{"zone": cluster + "-a"}},
				"usage": map[string]any{"cpu": "1500m", "memory": "1Gi", "negative": "-1", "not a name": "1"}})
		}
	}
	for selectors, want := range map[[2]string]string{
		{"", ""}:                          "east.node-1@east=1500m west.node-1@west=1500m",
		{"zone=west-a", ""}:               "west.node-1@west=1500m",
		{"", "metadata.name=east.node-1"}: "east.node-1@east=1500m",
		{"", "metadata.name=node-1"}:      "",
		{"", "metadata.namespace=shop"}:   "",
	} {
		if got, warnings := f.metrics(Nodes, "", metav1.ListOptions{LabelSelector: selectors[0], FieldSelector: selectors[1]}); got != want || warnings != nil {
			t.Errorf("%v: %s, warnings %v", selectors, got, warnings)
		}
	}
	obj, _, err := f.reach.MetricsOf(t.Context(), Nodes, "", "west.node-1")
	if err != nil || textOf(obj) != "west.node-1@west=1500m" || len(obj.(*metricsv1beta1.NodeMetrics).Usage) != 2 {
		t.Errorf("%v %v", obj, err)
	}
	if _, _, err := f.reach.MetricsOf(t.Context(), Nodes, "", "west.none"); !apierrors.IsNotFound(err) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

// TestMissingMetrics: a cluster without an answer is named with the remedy, and the others are shown. One without pods that are
// shown is not asked.
func TestMissingMetrics(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west", "north")
	f.bind("shop", "web", "east", "west")
	f.measure("east")
	f.pod("east", "shop", "a", "web-1")
	f.uses("east", "shop", "a", "10m")
	f.pod("west", "shop", "b", "web-1")
	missing := func(why string) {
		t.Helper()
		got, warnings := f.metrics(Pods, "shop", metav1.ListOptions{})
		if got != "shop/a@east=10m" || len(warnings) != 1 || !strings.Contains(warnings[0], "the metrics of pods of cluster west are missing: "+why) {
			t.Errorf("%s, warnings %v, want %s", got, warnings, why)
		}
		if _, _, err := f.reach.MetricsOf(t.Context(), Pods, "shop", "b"); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "cluster west: "+why) {
			t.Errorf("%v, want %s", err, why)
		}
	}
	missing("it does not serve metrics.k8s.io/v1beta1: install metrics-server there")
	f.measure("west")
	f.members["west"].OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Group == metricsv1beta1.GroupName {
			return &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "no endpoints"}
		}
		return nil
	})
	missing("look at `kubectl get apiservice v1beta1.metrics.k8s.io` there")
	if _, _, err := f.reach.Metrics(t.Context(), Events, "shop", metav1.ListOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("metrics of events: %v", err)
	}
	if _, _, err := f.reach.Metrics(t.Context(), Pods, "shop", metav1.ListOptions{LabelSelector: "!!"}); !apierrors.IsBadRequest(err) {
		t.Errorf("an invalid selector: %v", err)
	}
}

// TestClustersThatLieAboutMetrics: a cluster that ignores namespace and selectors shows nothing of other pods, and no pod twice.
func TestClustersThatLieAboutMetrics(t *testing.T) {
	t.Parallel()
	pod := func(namespace, name string) object {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1alpha1.ClusterLabel: "east"}}}
	}
	metrics := func(namespace, name string, containers ...string) object {
		of := &metricsv1beta1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{"x"}}}
		for _, c := range containers {
			of.Containers = append(of.Containers, metricsv1beta1.ContainerMetrics{Name: c})
		}
		return of
	}
	got := join(usages()[Pods], "east", []object{pod("shop", "a"), pod("shop", "b")},
		[]object{metrics("shop", "a", "main", "Not a name\x1b[2J"), metrics("shop", "a"), metrics("other", "b"), metrics("shop", "c")})
	if len(got) != 1 || got[0].GetName() != "a" || got[0].GetFinalizers() != nil || len(got[0].(*metricsv1beta1.PodMetrics).Containers) != 1 {
		t.Errorf("%+v", got)
	}
}
