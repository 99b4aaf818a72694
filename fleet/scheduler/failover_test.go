package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

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

// TestFailoverRequestsRemovals: where objects failed over, their removal is requested, and that of what only they
// used. The request stays until the object has left or is placed there again.
func TestFailoverRequestsRemovals(t *testing.T) {
	c := newControl(t, clusters+app+inOne)
	fails := func(t *testing.T) {
		placedAt(t, c, "east")
		fakeapi.Until(t, "the others are there, too", func() bool { return len(c.bindings(t)) == 3 })
		report(t, c)
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
	// The Service has left.
	for _, b := range c.bindings(t) {
		if b.Name == "service-web" {
			c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
				b.Status.Clusters = slices.DeleteFunc(b.Status.Clusters, func(s v1alpha1.ClusterState) bool { return s.Name == "east" })
				b.Spec.Suspend = true // the scheduler corrects that
			})
		}
	}
	waitForRequests(t, c, "configmap-conf: east Replaced\ndeployment.apps-web: east Replaced\n")
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	placedAt(t, c, "east")
	waitForRequests(t, c, "\n"[1:])
}

// TestDeletedAfterFailover: an object that is deleted after it failed over leaves the cluster because of that.
func TestDeletedAfterFailover(t *testing.T) {
	c := begin(t, clusters+app+inOne)
	placedAt(t, c, "east")
	fakeapi.Until(t, "the others are there, too", func() bool { return len(c.bindings(t)) == 3 })
	report(t, c)
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
	report(t, c)
	c.Merge(deployments, "shop", "web", toWest)
	placedAt(t, c, "west")
	c.Merge(v1alpha1.ClusterResource, "", "east", fails)
	caughtUp(t, c)
	waitForRequests(t, c, "")
}
