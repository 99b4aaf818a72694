package scheduler

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// sharesOf describes the shares of a binding.
func sharesOf(t *testing.T, c *control, namespace, binding string) string {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, namespace, binding)
	if u == nil {
		return ""
	}
	var out []string
	for _, share := range as[v1alpha1.ResourceBinding](t, u).Spec.Clusters {
		out = append(out, fmt.Sprintf("%s %d", share.Name, *share.Replicas))
	}
	return strings.Join(out, ", ")
}

// awaitNodes waits until the scheduler knows that no node has room for a pod that requests so many CPUs.
func awaitNodes(t *testing.T, c *control, cpu string) {
	t.Helper()
	n := 0
	fakeapi.Until(t, "the scheduler knows the nodes", func() bool {
		n++
		name := strings.Repeat("x", n)
		create(t, c, requesting(name, 1, cpu))
		fakeapi.Until(t, "it is decided", func() bool { return scheduledOf(t, c, name) != nil })
		return strings.Contains(scheduledOf(t, c, name).Message, "no room for another pod")
	})
}

// TestWaitsForRoom: replicas for which no cluster has room wait with the reason, and go to the cluster that gets
// some. What runs elsewhere stays there.
func TestWaitsForRoom(t *testing.T) {
	c := begin(t, clusters)
	reportNodes(c, "east", 1, "4", "4")
	reportNodes(c, "west", 1, "8", "1")
	awaitNodes(t, c, "6")
	create(t, c, requesting("web", 8, "1"))
	sharesAre := func(want string) {
		t.Helper()
		fakeapi.Until(t, "web is in "+want, func() bool { return sharesOf(t, c, "shop", "deployment.apps-web") == want })
	}
	sharesAre("east 4, west 1")
	fakeapi.Until(t, "the decision is reported", func() bool { return scheduledOf(t, c, "web") != nil })
	if s := scheduledOf(t, c, "web"); s.Status != metav1.ConditionFalse || s.Reason != "ReplicasUnplaced" ||
		!strings.HasPrefix(s.Message, "3 of 8 replicas have no cluster: east: its nodes have no room for more than 4; west: its nodes have no room for more than 1") {
		t.Errorf("the condition is %+v", s)
	}
	agreesWithPreview(t, c)
	// The reports have the new pods, and others left the west.
	reportNodes(c, "east", 1, "4", "0")
	reportNodes(c, "west", 1, "8", "5")
	sharesAre("east 4, west 4")
	fakeapi.Until(t, "everything is placed", func() bool { return scheduledOf(t, c, "web").Status == metav1.ConditionTrue })
	agreesWithPreview(t, c)
}

// TestPriorityWaitsFirst: room goes to the waiting object whose pods have the highest priority, although another one
// waits longer.
func TestPriorityWaitsFirst(t *testing.T) {
	c := begin(t, clusters+"---\n{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high, uid: h}, value: 1000}\n")
	reportNodes(c, "east", 1, "4", "0")
	reportNodes(c, "west", 1, "4", "0")
	waits := func(name string) {
		t.Helper()
		fakeapi.Until(t, name+" waits for room", func() bool {
			s := scheduledOf(t, c, name)
			return s != nil && strings.Contains(s.Message, "no room for another pod")
		})
	}
	awaitNodes(t, c, "1")
	create(t, c, requesting("low", 3, "1"))
	waits("low")
	create(t, c, strings.ReplaceAll(requesting("high", 3, "1"), "spec: {containers", "spec: {priorityClassName: high, containers"))
	waits("high")
	caughtUp(t, c) // no earlier event decides about low when there is room
	reportNodes(c, "east", 1, "4", "3")
	fakeapi.Until(t, "high has the room", func() bool { return sharesOf(t, c, "shop", "deployment.apps-high") == "east 3" })
	if is := sharesOf(t, c, "shop", "deployment.apps-low"); is != "" {
		t.Errorf("low is in %s", is)
	}
}
