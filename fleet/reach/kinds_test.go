package reach

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// event creates an event in a cluster about an object of it.
func (f *fixture) event(cluster, name, apiVersion, kind, about string, uid types.UID) {
	f.t.Helper()
	f.members[cluster].Put(map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"namespace": "shop", "name": name},
		"involvedObject": map[string]any{"apiVersion": apiVersion, "kind": kind, "namespace": "shop", "name": about, "uid": string(uid)}, "reason": name})
}

// TestEvents: events about pods of bound objects are shown, and those about copies as if they were about the objects in the
// control plane.
func TestEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east")
	f.bind("shop", "web", "east")
	f.pod("east", "shop", "a", "web-1")
	f.pod("east", "shop", "foreign", "")
	east := f.members["east"]
	f.event("east", "pulled", "v1", "Pod", "a", east.Get(resource("", Pods), "shop", "a").GetUID())
	f.event("east", "hidden", "v1", "Pod", "foreign", east.Get(resource("", Pods), "shop", "foreign").GetUID())
	f.event("east", "scaled", "apps/v1", "Deployment", "web", east.Get(resource("apps", "deployments"), "shop", "web").GetUID())
	f.event("east", "forged", "apps/v1", "Deployment", "web", "another")
	f.control.Put(map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"namespace": "shop", "name": "placed"}, "reason": "placed"})

	for selector, want := range map[string]string{"": "placed pulled scaled", "involvedObject.uid=source-shop-web": "scaled"} {
		list, warnings, err := f.reach.List(t.Context(), Events, "shop", stored{f.client, Events}, metav1.ListOptions{FieldSelector: selector})
		if err != nil || warnings != nil {
			t.Fatal(warnings, err)
		}
		var names []string
		for _, e := range list.(*corev1.EventList).Items {
			names = append(names, e.Name)
			if cluster := e.Labels[v1alpha1.ClusterLabel]; (cluster == "east") != (e.Name != "placed") {
				t.Errorf("event %s is of cluster %q", e.Name, cluster)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("with selector %q: %s, want %s", selector, got, want)
		}
	}
	if _, _, err := f.reach.Get(t.Context(), Events, "shop", "hidden"); !apierrors.IsNotFound(err) {
		t.Errorf("an event about a foreign pod: %v", err)
	}
}

// TestNodes: nodes have the names of their clusters, and only the cluster in a name is asked for it.
func TestNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "east", "west")
	for _, cluster := range []string{"east", "west"} {
		f.members[cluster].Put(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-1", "labels": map[string]any{"zone": cluster + "-a"}}})
	}
	for selectors, want := range map[[2]string]string{
		{"", ""}:                                     "east.node-1 west.node-1",
		{"zone=west-a", ""}:                          "west.node-1",
		{"", "metadata.name=east.node-1"}:            "east.node-1",
		{"", "metadata.name=node-1"}:                 "",
		{"fleet.atoll.dev/cluster notin (east)", ""}: "west.node-1",
	} {
		list, _, err := f.reach.List(t.Context(), Nodes, "", stored{f.client, Nodes}, metav1.ListOptions{LabelSelector: selectors[0], FieldSelector: selectors[1]})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, node := range list.(*corev1.NodeList).Items {
			names = append(names, node.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%v: %s, want %s", selectors, got, want)
		}
	}
	var asked atomic.Bool
	f.members["east"].OnRequest(func(fakeapi.Request) *metav1.Status { asked.Store(true); return nil })
	if obj, _, err := f.reach.Get(t.Context(), Nodes, "", "west.node-1"); err != nil || obj.(*corev1.Node).Labels[v1alpha1.ClusterLabel] != "west" {
		t.Errorf("%v %v", obj, err)
	}
	if _, _, err := f.reach.Get(t.Context(), Nodes, "", "west.none"); !apierrors.IsNotFound(err) {
		t.Errorf("a node that does not exist: %v", err)
	}
	if asked.Load() {
		t.Error("east is asked for a node of west")
	}

	w, err := f.reach.Watch(t.Context(), Nodes, "", stored{f.client, Nodes}, metav1.ListOptions{FieldSelector: "metadata.name=west.node-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range 2 {
		select {
		case e := <-w.ResultChan():
			if node, is := e.Object.(*corev1.Node); !is || node.Name != "west.node-1" {
				t.Errorf("%s %v", e.Type, e.Object)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no event came")
		}
		f.members["west"].Merge(resource("", Nodes), "", "node-1", `{"metadata":{"labels":{"x":"y"}}}`)
	}
}
