package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// reportNodes sets the nodes of a cluster, with so much CPU each.
func reportNodes(c *control, cluster string, count int, cpu, free string) {
	c.Merge(v1alpha1.ClusterResource, "", cluster, fmt.Sprintf(`{"status":{"nodeShapes":{"shapes":[{"count":%d,"allocatable":{"cpu":"%s","pods":"110"},"free":{"cpu":"%s","pods":"110"}}]}}}`, count, cpu, free))
}

// requesting returns a Deployment in namespace shop whose pods request so much CPU.
func requesting(name string, replicas int, cpu string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop, uid: %[1]s}
spec: {replicas: %[2]d, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "%[3]s"}}}]}}}
`, name, replicas, cpu)
}

// scheduledOf returns the condition Scheduled of a Deployment in namespace shop, nil if it has none.
func scheduledOf(t *testing.T, c *control, name string) *metav1.Condition {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-"+name)
	if u == nil {
		return nil
	}
	return meta.FindStatusCondition(as[v1alpha1.ResourceBinding](t, u).Status.Conditions, v1alpha1.BindingScheduled)
}

// TestNoNodeFits: a cluster whose nodes could never run the pods is not chosen, and the binding says why. What runs
// there stays, and a cluster that gets such a node is chosen.
func TestNoNodeFits(t *testing.T) {
	c := newControl(t, clusters)
	nodes := func(cluster, cpu string) { reportNodes(c, cluster, 3, cpu, cpu) }
	deployment := func(name, cpu string) string { return requesting(name, 2, cpu) }
	scheduled := func(name string) *metav1.Condition { return scheduledOf(t, c, name) }
	in := func(name, want string) {
		t.Helper()
		fakeapi.Until(t, name+" is in "+want, func() bool { return clustersOf(t, c, "shop", "deployment.apps-"+name) == want })
	}
	nodes("east", "8")
	nodes("west", "16")
	c.start(t, Config{})
	create(t, c, deployment("small", "1"))
	in("small", "east west")
	create(t, c, deployment("large", "12"))
	in("large", "west")
	create(t, c, deployment("huge", "24"))
	fakeapi.Until(t, "the binding names the missing room", func() bool {
		s := scheduled("huge")
		return s != nil && s.Status == metav1.ConditionFalse && strings.Contains(s.Message, "no node is large enough: a pod requests 24 CPU, and the largest node has 8 CPU")
	})
	nodes("west", "4")
	n := 0
	fakeapi.Until(t, "the scheduler knows the new nodes", func() bool {
		n++
		name := fmt.Sprint("medium-", n)
		create(t, c, deployment(name, "6"))
		fakeapi.Until(t, "it is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-"+name) != "" })
		return clustersOf(t, c, "shop", "deployment.apps-"+name) == "east"
	})
	if where := clustersOf(t, c, "shop", "deployment.apps-large"); where != "west" {
		t.Errorf("what ran in west is now in %s", where)
	}
	c.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"elastic":true}}`)
	in("huge", "east")
	agreesWithPreview(t, c)
}
