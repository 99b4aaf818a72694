package clusters

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

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
