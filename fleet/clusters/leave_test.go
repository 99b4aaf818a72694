package clusters

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// noNamespaces is the RemoveNamespaces of tests whose clusters have none.
func noNamespaces(context.Context, *fleet.Session, string, *rest.Config) error { return nil }

// TestLeavingWaitsForNamespaces: a Cluster keeps its finalizer while the fleet's empty namespaces cannot be removed, unless
// its objects are to stay.
func TestLeavingWaitsForNamespaces(t *testing.T) {
	s := prepare(t, map[string]string{"east": ""})
	asked := 0
	c := newController(t.Context(), s.session(t.Context()), s.serve, func(context.Context, *fleet.Session, string, *rest.Config) error {
		asked++
		return errors.New("no permission")
	}, s.metrics)
	m := newMemberReconciler(c, "east", false)
	m.access = &fleet.Access{REST: &rest.Config{Host: "http://127.0.0.1:1"}}
	now := metav1.Now()
	cluster := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east", DeletionTimestamp: &now, Finalizers: []string{v1alpha1.ClusterFinalizer}},
		Status: v1alpha1.ClusterStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionTrue}}}}
	if err := c.finalize(t.Context(), cluster, m); err == nil || !strings.Contains(err.Error(), "no permission") || asked != 1 {
		t.Errorf("it leaves: %v (asked %d times)", err, asked)
	}
	cluster.Annotations = map[string]string{v1alpha1.LeaveAnnotation: v1alpha1.LeaveOrphan}
	if err := c.finalize(t.Context(), cluster, m); err != nil && strings.Contains(err.Error(), "no permission") || asked != 1 {
		t.Errorf("namespaces that are to stay are removed: %v (asked %d times)", err, asked)
	}
}

// TestLeavingNamesObjects: a cluster that cannot leave says because of which objects, and what to do.
func TestLeavingNamesObjects(t *testing.T) {
	cluster := &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "east"}}
	binding := func(kind, namespace, name, chosen string) *v1alpha1.ResourceBinding {
		b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		b.Spec.Resource.Kind, b.Spec.Resource.Name = kind, name
		b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: chosen}}
		return b
	}
	moved, role := binding("Service", "shop", "web", "west"), binding("ClusterRole", "", "operator", "west")
	stuck := binding("Deployment", "shop", "web", "east")
	many := []*v1alpha1.ResourceBinding{moved, role}
	for i := range 5 {
		many = append(many, binding("ConfigMap", "shop", fmt.Sprint("c", i), "west"))
	}
	for _, tt := range []struct {
		bound   []*v1alpha1.ResourceBinding
		answers bool
		want    string
	}{
		{[]*v1alpha1.ResourceBinding{moved, role}, true, "RemovingObjects: 2 objects are still being removed from the cluster (ClusterRole operator, Service shop/web)"},
		{[]*v1alpha1.ResourceBinding{moved, stuck}, true, "RemovingObjects: 2 objects are still bound to the cluster; of these, 1 have not moved to another cluster yet (Deployment shop/web)"},
		{many, false, "WaitingForCluster: 7 objects may still be in the cluster, which does not answer (ClusterRole operator, ConfigMap shop/c0, ConfigMap shop/c1, ConfigMap shop/c2, ConfigMap shop/c3 and 2 more): bring it back, or leave them there with `atoll leave east --cascade=orphan`"},
	} {
		c := leavingCondition(cluster, tt.bound, tt.answers)
		if got := c.Reason + ": " + c.Message; !strings.HasPrefix(got, tt.want) {
			t.Errorf("got %s\nwant %s", got, tt.want)
		}
	}
}

// TestLeftClustersAreRecorded: which cluster had a name is known after it left.
func TestLeftClustersAreRecorded(t *testing.T) {
	s := prepare(t, nil)
	c := newController(t.Context(), s.session(t.Context()), s.serve, noNamespaces, s.metrics)
	left := func(name, id string) {
		t.Helper()
		if err := c.recordLeft(t.Context(), &v1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ClusterStatus{ID: id}}); err != nil {
			t.Fatal(err)
		}
	}
	left("east", "one")
	left("west", "two")
	left("east", "three")
	left("north", "") // never answered
	u := s.control.Get(corev1.SchemeGroupVersion.WithResource("configmaps"), v1alpha1.SystemNamespace, v1alpha1.LeftClusters)
	if u == nil {
		t.Fatal("there is no record")
	}
	if data, _, _ := unstructured.NestedStringMap(u.Object, "data"); len(data) != 2 || data["east"] != "three" || data["west"] != "two" {
		t.Errorf("%v", data)
	}
}
