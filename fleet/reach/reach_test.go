package reach

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestOnlyPodsOfBoundObjects: a pod is shown if its owners lead to a copy of an object that is bound to the cluster.
func TestOnlyPodsOfBoundObjects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "ours", "web-1")
	f.pod("east", "shop", "foreign", "")
	// A user of west forges the marks: the object is not bound there.
	f.copyOf("west", "shop", "web", "source-shop-web")
	f.pod("west", "shop", "forged", "web-1")
	// A user of east forges them on an object of another name.
	f.copyOf("east", "shop", "other", "source-shop-web")
	f.pod("east", "shop", "renamed", "other-1")
	// The copy of an earlier object of the name.
	f.copyOf("east", "shop", "former", "source-before")
	f.bind("shop", "former")
	f.pod("east", "shop", "earlier", "former-1")

	names, _, warnings := f.list("shop", metav1.ListOptions{})
	if !slices.Equal(names, []string{"shop/ours@east.node-1"}) || warnings != nil {
		t.Errorf("%v, warnings %v", names, warnings)
	}
	for _, hidden := range []string{"foreign", "forged", "renamed", "earlier", "none"} {
		if _, _, err := f.reach.Get(t.Context(), Pods, "shop", hidden); !apierrors.IsNotFound(err) {
			t.Errorf("pod %s: %v", hidden, err)
		}
		if _, err := f.reach.DeletePod(t.Context(), "shop", hidden, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("delete pod %s: %v", hidden, err)
		}
	}
	pod, _, err := f.reach.Get(t.Context(), Pods, "shop", "ours")
	if err != nil || pod.(*corev1.Pod).Labels[v1alpha1.ClusterLabel] != "east" {
		t.Errorf("%v, %v", pod, err)
	}
}

// TestSelectors: the cluster and the node of a pod can be selected as Atoll shows them.
func TestSelectors(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "a", "web-1")
	f.pod("west", "shop", "b", "web-1")
	f.control.Put(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "shop", "name": "stored"}})
	for _, tt := range []struct {
		labels, fields string
		want           string
	}{
		{"", "", "shop/a@east.node-1 shop/b@west.node-1 shop/stored@"},
		{"fleet.atoll.dev/cluster=east", "", "shop/a@east.node-1"},
		{"fleet.atoll.dev/cluster in (west),app=b", "", "shop/b@west.node-1"},
		{"fleet.atoll.dev/cluster!=west,app=a", "", "shop/a@east.node-1"},
		{"app=b", "", "shop/b@west.node-1"},
		{"", "spec.nodeName=east.node-1", "shop/a@east.node-1"},
		{"app", "spec.nodeName!=east.node-1", "shop/b@west.node-1"},
		{"", "spec.nodeName=node-1", ""},
		{"", "metadata.name=b", "shop/b@west.node-1"},
	} {
		names, _, _ := f.list("shop", metav1.ListOptions{LabelSelector: tt.labels, FieldSelector: tt.fields})
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("labels %q, fields %q: %s", tt.labels, tt.fields, got)
		}
	}
}

// TestSilentClusters: an answer without the pods of a cluster has a warning, and a pod that may be there is not reported as missing.
func TestSilentClusters(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "a", "web-1")
	f.members["west"].OnRequest(func(fakeapi.Request) *metav1.Status {
		return &metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "starting"}
	})
	names, _, warnings := f.list("shop", metav1.ListOptions{})
	if !slices.Equal(names, []string{"shop/a@east.node-1"}) || len(warnings) != 1 || !strings.Contains(warnings[0], "the pods of cluster west are missing") {
		t.Errorf("%v, warnings %v", names, warnings)
	}
	if _, _, err := f.reach.Get(t.Context(), Pods, "shop", "b"); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "west") {
		t.Errorf("a pod that may be in west: %v", err)
	}
	if _, _, err := f.reach.Get(t.Context(), Pods, "shop", "a"); err != nil {
		t.Error(err)
	}

	// A cluster that is known to be unreachable, or that pulls, is not asked.
	asked := false
	f.members["west"].OnRequest(func(fakeapi.Request) *metav1.Status { asked = true; return nil })
	for _, tt := range []struct {
		why     string
		missing func(error) bool
		change  func(cluster *unstructured.Unstructured)
	}{
		{"it is unreachable", apierrors.IsServiceUnavailable, func(cluster *unstructured.Unstructured) {
			cluster.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "ClusterUnreachable"}}}
		}},
		{"it is in mode Pull, and its syncer has no tunnel to Atoll", apierrors.IsNotFound, func(cluster *unstructured.Unstructured) {
			cluster.Object["spec"] = map[string]any{"mode": "Pull"}
		}},
	} {
		f.control.Change(v1alpha1.ClusterResource, "", "west", tt.change)
		fakeapi.Eventually(t, tt.why, func() error {
			if _, _, warnings := f.list("shop", metav1.ListOptions{}); len(warnings) != 1 || !strings.Contains(warnings[0], "west are missing: "+tt.why) {
				return fmt.Errorf("warnings %v", warnings)
			}
			asked = false
			return nil
		})
		if _, _, err := f.reach.Get(t.Context(), Pods, "shop", "b"); !tt.missing(err) || !strings.Contains(err.Error(), "west: "+tt.why) {
			t.Errorf("a pod that may be in west: %v", err)
		}
		if asked {
			t.Errorf("west is asked, although %s", tt.why)
		}
	}
}

// TestTunnels: a cluster in mode Pull is reached through the tunnel of its syncer, like any other.
func TestTunnels(t *testing.T) {
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "a", "web-1")
	f.pod("west", "shop", "b", "web-1")
	f.streams = func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.Path, " as ", r.Header.Get("Authorization"))
	}
	f.pull("west")
	fakeapi.Eventually(t, "the pods of the cluster that pulls are shown", func() error {
		if names, _, warnings := f.list("shop", metav1.ListOptions{}); !slices.Equal(names, []string{"shop/a@east.node-1", "shop/b@west.node-1"}) || len(warnings) > 0 {
			return fmt.Errorf("%v, warnings %v", names, warnings)
		}
		return nil
	})
	logs, err := f.reach.PodLogs(t.Context(), "shop", "b", &corev1.PodLogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	if text, err := io.ReadAll(logs); err != nil || string(text) != "/api/v1/namespaces/shop/pods/b/log as Bearer t" {
		t.Errorf("the log is %q, %v", text, err)
	}
}

// TestSameName: of pods with one name, the newest is meant, with a warning.
func TestSameName(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	f.bind("shop", "web", "east", "west")
	f.pod("east", "shop", "web-0", "web-1")
	f.pod("west", "shop", "web-0", "web-1")
	pod, warnings, err := f.reach.Get(t.Context(), Pods, "shop", "web-0")
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "east, west") || !strings.Contains(warnings[0], pod.(*corev1.Pod).Labels[v1alpha1.ClusterLabel]) {
		t.Errorf("%v %v", warnings, err)
	}
}

// TestChanges: an update through Atoll conflicts as in the cluster, and cannot change the cluster. A deletion is only of
// the pod that was found.
func TestChanges(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	obj, _, err := f.reach.Get(t.Context(), Pods, "shop", "a")
	if err != nil {
		t.Fatal(err)
	}
	pod := obj.(*corev1.Pod)
	label := func(version, key, value string) error {
		_, err := f.reach.UpdatePod(t.Context(), "shop", "a", "", func(before *corev1.Pod) (*corev1.Pod, error) {
			before.ResourceVersion = version
			before.Labels[key] = value
			return before, nil
		}, metav1.UpdateOptions{})
		return err
	}
	if err := label(pod.ResourceVersion, "x", "y"); err != nil {
		t.Fatal(err)
	}
	got := f.members["east"].Get(resource("", "pods"), "shop", "a")
	if _, shown := got.GetLabels()[v1alpha1.ClusterLabel]; shown || got.GetLabels()["x"] != "y" {
		t.Errorf("labels in the cluster: %v", got.GetLabels())
	}
	if node := got.Object["spec"].(map[string]any)["nodeName"]; node != "node-1" {
		t.Errorf("the node in the cluster is %v", node)
	}
	if err := label(pod.ResourceVersion, "x", "z"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "cluster east") {
		t.Errorf("with an old version: %v", err)
	}
	if err := label("", v1alpha1.ClusterLabel, "west"); !apierrors.IsBadRequest(err) {
		t.Errorf("to another cluster: %v", err)
	}
	other := types.UID("other")
	if _, err := f.reach.DeletePod(t.Context(), "shop", "a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("with another UID: %v", err)
	}
	if _, err := f.reach.DeletePod(t.Context(), "shop", "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if names, _, _ := f.list("shop", metav1.ListOptions{}); names != nil {
		t.Errorf("after the deletion: %v", names)
	}
}

// TestOtherNamespaces: a cluster that answers with objects of another namespace than the one that was asked for is not believed.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.bind("bank", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	f.pod("east", "bank", "b", "web-1")
	f.lies["east"] = strings.NewReplacer("/namespaces/shop/pods", "/pods")
	if names, _, _ := f.list("shop", metav1.ListOptions{}); len(names) != 1 || !strings.HasPrefix(names[0], "shop/a@") {
		t.Error(names)
	}
	w, err := f.reach.Watch(t.Context(), Pods, "shop", f.here, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	f.pod("east", "bank", "c", "web-1")
	f.pod("east", "shop", "d", "web-1")
	for _, want := range []string{"a", "d"} {
		select {
		case e := <-w.ResultChan():
			if pod, is := e.Object.(*corev1.Pod); !is || pod.Name != want {
				t.Errorf("%s %v, want pod %s", e.Type, e.Object, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no event came")
		}
	}
}
