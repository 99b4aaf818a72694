package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// inOne places web in one cluster, and conf and the Service with it.
const inOne = "\n---\n" + `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Placement, metadata: {namespace: shop, name: one, uid: one, creationTimestamp: "2026-01-01T00:00:00Z"}, spec: {mode: Single}}`

// readyAt makes a cluster Ready since a time.
func readyAt(at time.Time) string {
	return `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"ClusterReady","message":"","lastTransitionTime":"` + at.UTC().Format(time.RFC3339) + `"}]}}`
}

// placedAt waits until web is in a cluster.
func placedAt(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "web is in "+want, func() error {
		for _, b := range c.bindings(t) {
			if is := describe(b.Spec.Clusters); b.Name == "deployment.apps-web" && is == want {
				return nil
			} else if b.Name == "deployment.apps-web" {
				return errors.New("it is in " + is)
			}
		}
		return errors.New("it has no binding")
	})
}

const allReplaced = `configmap-conf: east Replaced
deployment.apps-web: east Replaced
service-web: east Replaced
`

// TestFailoverRequestsRemovals: where objects failed over, their removal is requested, and that of objects that
// only they used. The request stays until the object has left or is placed there again.
func TestFailoverRequestsRemovals(t *testing.T) {
	c := newControl(t, clusters+app+inOne)
	fails := func(t *testing.T) {
		placedAt(t, c, "east")
		fakeapi.Until(t, "the others are there, too", func() bool { return len(c.bindings(t)) == 3 })
		members(t, c, true)
		reported(t, c)
		c.Merge(v1alpha1.ClusterResource, "", "east", fails)
		placedAt(t, c, "west")
		waitForRequests(t, c, allReplaced)
	}
	t.Run("one leader", func(t *testing.T) {
		c.start(t, Config{})
		fails(t)
		c.Merge(v1alpha1.ClusterResource, "", "east", readyAt(time.Now()))
		c.Merge(deployments, "shop", "web", `{"spec":{"replicas":5,"template":{"metadata":{"labels":{"version":"2"}}}}}`)
		caughtUp(t, c)
		waitForRequests(t, c, allReplaced)
	})
	c.start(t, Config{}) // another leader
	caughtUp(t, c)
	waitForRequests(t, c, allReplaced)
	// It has left, and the objects that it used leave after it.
	members(t, c, true)
	leave(t, c, "deployment.apps-web", "east")
	waitForRequests(t, c, "configmap-conf: east Replaced\nservice-web: east Replaced\n")
	fakeapi.Until(t, "its Service is not to be there", func() bool { return describe(bindingIn(t, c, "service-web").Spec.Clusters) == "west" })
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	placedAt(t, c, "east")
	waitForRequests(t, c, "\n"[1:])
}

// TestDeletedAfterFailover: an object that is deleted after it failed over leaves the cluster because of that.
func TestDeletedAfterFailover(t *testing.T) {
	c := begin(t, clusters+app+inOne)
	placedAt(t, c, "east")
	fakeapi.Until(t, "the others are there, too", func() bool { return len(c.bindings(t)) == 3 })
	members(t, c, true)
	reported(t, c)
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	waitForRequests(t, c, allReplaced)
	c.Delete(deployments, "shop", "web")
	waitForRequests(t, c, `configmap-conf: east UsersDeleted west UsersDeleted
deployment.apps-web: east ObjectDeleted
service-web: east UsersDeleted west UsersDeleted
`)
}

// TestMovedByPolicyIsNotReplaced: an object that a policy moves away from an unreachable cluster has not failed over.
func TestMovedByPolicyIsNotReplaced(t *testing.T) {
	c := begin(t, clusters+app+inOne)
	placedAt(t, c, "east")
	fakeapi.Until(t, "the others are there, too", func() bool { return len(c.bindings(t)) == 3 })
	members(t, c, true)
	reported(t, c)
	c.Merge(deployments, "shop", "web", toWest)
	placedAt(t, c, "west")
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	caughtUp(t, c)
	waitForRequests(t, c, "")
}

// failoversOf returns the failovers of web as text, latest first.
func failoversOf(t *testing.T, c *control) (out []string) {
	t.Helper()
	for _, r := range as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")).Status.Failovers {
		out = append(out, r.Cluster+" "+r.Reason+": "+r.To)
	}
	return out
}

// TestFailoverHistory: a binding has the last failovers of its object, whatever else changes in its status, and the
// object has an event for each.
func TestFailoverHistory(t *testing.T) {
	c := newControl(t, clusters+app+inOne)
	recovers := readyAt(time.Now().Add(-time.Hour))
	want := func(t *testing.T, want ...string) {
		t.Helper()
		fakeapi.Eventually(t, fmt.Sprint("failovers ", want), func() error {
			if got := failoversOf(t, c); !slices.Equal(got, want) {
				return fmt.Errorf("they are %q", got)
			}
			return nil
		})
	}
	t.Run("one leader", func(t *testing.T) {
		c.start(t, Config{})
		placedAt(t, c, "east")
		c.Merge(v1alpha1.ClusterResource, "", "east", fails)
		want(t, "east ClusterUnreachable: west")
		c.Merge(v1alpha1.ClusterResource, "", "east", recovers)
		c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`) // another condition
		fakeapi.Until(t, "the label decides", func() bool {
			return strings.Contains(as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")).Spec.Policy.Why, "label")
		})
		c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":null}}}`)
		want(t, "east ClusterUnreachable: west")
	})
	t.Run("another leader", func(t *testing.T) {
		c.start(t, Config{})
		c.Merge(v1alpha1.ClusterResource, "", "west", fails)
		want(t, "west ClusterUnreachable: east", "east ClusterUnreachable: west")
		fakeapi.Until(t, "an event says it", func() bool {
			list, err := c.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("shop").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(list.Items, func(e unstructured.Unstructured) bool {
				return e.Object["reason"] == ReasonFailedOver && e.Object["message"] == "Left west (ClusterUnreachable since 2026-01-05T00:00:00Z), runs in east"
			})
		})
	})
}

// TestMergeFailovers: the latest records stay, each once.
func TestMergeFailovers(t *testing.T) {
	at := func(minutes int, cluster string) v1alpha1.FailoverRecord {
		return v1alpha1.FailoverRecord{Time: metav1.NewTime(time.Unix(int64(minutes)*60, 0)), Cluster: cluster}
	}
	stored := []v1alpha1.FailoverRecord{at(7, "a"), at(5, "b"), at(4, "a"), at(3, "b"), at(2, "a")}
	got := mergeFailovers([]v1alpha1.FailoverRecord{at(8, "b"), at(7, "a")}, stored)
	if want := []v1alpha1.FailoverRecord{at(8, "b"), at(7, "a"), at(5, "b"), at(4, "a"), at(3, "b")}; !slices.Equal(got, want) {
		t.Errorf("merged to %v", got)
	}
	var f failovers
	start := time.Unix(0, 0)
	f.add("x", []v1alpha1.FailoverRecord{at(0, "a")}, start)
	f.add("y", []v1alpha1.FailoverRecord{at(11, "a")}, start.Add(11*time.Minute))
	if b := (&v1alpha1.ResourceBinding{}); len(f.of) != 1 || len(f.with(b)) != 0 {
		t.Errorf("it remembers %v", f.of)
	}
}
