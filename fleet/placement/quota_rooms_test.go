package placement

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// limited are some amounts of a quota.
func limited(name string, free string, scopes ...corev1.ScopedResourceSelectorRequirement) v1alpha1.NamespaceQuota {
	list := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(free)}
	return v1alpha1.NamespaceQuota{Namespace: "shop", Name: "team", Scopes: scopes, Hard: list, Free: list}
}

// TestQuotasOfClustersBound: a cluster gets no more than the ResourceQuotas of the object's namespace there have room
// for, with the pods of recent decisions.
func TestQuotasOfClustersBound(t *testing.T) {
	fleet := func(quota v1alpha1.NamespaceQuota) []Cluster {
		return []Cluster{
			{Name: "east", Ready: true, Joined: start, Quotas: []v1alpha1.NamespaceQuota{quota}},
			{Name: "west", Ready: true, Joined: start.Add(time.Minute)},
		}
	}
	object := func(key string, replicas int32) Object {
		return Object{Key: key, Namespace: "shop", Mode: divided, Divisible: true, Replicas: replicas, Needs: Resources{CPU: 2000, Pods: 1},
			Pods: []Pods{{Count: 1, Spec: map[string]any{"priorityClassName": "high", "containers": []any{map[string]any{"name": "c", "resources": map[string]any{"requests": map[string]any{"cpu": "2"}}}}}}}}
	}
	high := corev1.ScopedResourceSelectorRequirement{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}}
	other := high
	other.Values = []string{"low"}
	for name, tt := range map[string]struct {
		quota     v1alpha1.NamespaceQuota
		east      int32
		whole     bool // a whole object of three replicas may go there
		namespace string
		known     bool // the nodes of east are known
	}{
		"CPU":                        {quota: limited("requests.cpu", "5"), east: 2},
		"its nodes have more room":   {quota: limited("requests.cpu", "5"), east: 2, known: true},
		"pods":                       {quota: limited("pods", "1"), east: 1},
		"number of pods":             {quota: limited("count/pods", "1"), east: 1},
		"nothing left":               {quota: limited("cpu", "1"), east: 0},
		"enough":                     {quota: limited("cpu", "100"), east: 3, whole: true},
		"another namespace":          {quota: limited("cpu", "0"), east: 3, whole: true, namespace: "other"},
		"a scope that has the pods":  {quota: limited("cpu", "5", high), east: 2},
		"a scope without the pods":   {quota: limited("cpu", "0", other), east: 3, whole: true},
		"resources it does not have": {quota: limited("requests.example.com/gpu", "0"), east: 3, whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			rooms, clusters := NewRooms(), fleet(tt.quota)
			if tt.known {
				clusters[0].Nodes = capacity.Prepare(&v1alpha1.NodeShapes{Shapes: []v1alpha1.NodeShape{{Count: 9, Allocatable: corev1.ResourceList{"cpu": resource.MustParse("64"), "pods": resource.MustParse("110")}, Free: corev1.ResourceList{"cpu": resource.MustParse("64"), "pods": resource.MustParse("110")}}}})
			}
			for i := range clusters {
				rooms.Report(clusters[i].Name, clusters[i].Nodes, start)
				rooms.ReportQuotas(clusters[i].Name, clusters[i].Quotas)
			}
			f := NewFleet(clusters)
			decide := func(o Object, cluster string) Decision {
				t.Helper()
				if tt.namespace != "" {
					o.Namespace = tt.namespace
				}
				policy, err := Compile(&v1alpha1.PlacementSpec{Clusters: &v1alpha1.ClusterSelector{Names: []string{cluster}}})
				if err != nil {
					t.Fatal(err)
				}
				r := Request{Object: o, Fleet: f, Policy: policy, Now: start, Allocations: NewAllocations()}
				r.Room = rooms.For(f, &r.Object, nil, nil)
				d, _ := Explain(r)
				rooms.Grant(&r.Object, nil, d.Shares(), start)
				return d
			}
			o := object("whole", 3)
			o.Mode = v1alpha1.ModeSingle
			whole := decide(o, "east")
			if is := len(whole.Chosen) == 1; is != tt.whole {
				t.Errorf("a whole object: %s", whole.Message)
			}
			rooms.Withdraw("whole")
			d := decide(object("first", 3), "east")
			if n := 3 - d.Unplaced; n != tt.east {
				t.Errorf("east gets %d, want %d: %s", n, tt.east, d.Message)
			}
			if tt.east < 3 && (!d.Waits || !strings.Contains(d.Message, "its ResourceQuota team has room for") && !strings.Contains(d.Message, "its ResourceQuota team has no room for")) {
				t.Errorf("waits %v: %s", d.Waits, d.Message)
			}
			if second := decide(object("second", 1), "east"); tt.east < 3 && len(second.Shares()) > 0 {
				t.Errorf("the quota was used up, and east gets another replica: %s", second.Message)
			}
			if d := decide(object("elsewhere", 3), "west"); d.Unplaced > 0 {
				t.Errorf("west has no quotas: %s", d.Message)
			}
			rooms.ReportQuotas("east", nil)
			if d := decide(object("later", 3), "east"); d.Unplaced > 0 {
				t.Errorf("the quota is gone: %s", d.Message)
			}
		})
	}
}
