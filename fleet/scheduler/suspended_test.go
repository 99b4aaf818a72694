package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestDeletedWhileSuspended: the copies of an object that was deleted while its policy suspended it go when
// the policy resumes or is deleted, and the name can be used again.
func TestDeletedWhileSuspended(t *testing.T) {
	const policies = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: p, namespace: shop, uid: p}
spec: {selector: {kinds: [Deployment]}, suspend: true}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: p, uid: cp}
spec: {selector: {kinds: [Deployment]}, suspend: true}
`
	const removed = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: other, namespace: shop, uid: other}
spec: {replicas: 1, template: {metadata: {labels: {app: other}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-web, namespace: shop, uid: b, finalizers: [fleet.atoll.dev/empty-members], deletionTimestamp: "2026-01-01T00:00:00Z"}
spec:
  resource: {apiVersion: apps/v1, kind: Deployment, name: web, uid: old, resource: deployments}
  clusters: [{name: west}]
  policy: {kind: KIND, name: p}
  suspend: true
status:
  clusters: [{name: west, uid: w, reason: Suspended}]
`
	for name, tt := range map[string]struct {
		kind    string
		happens func(c *control)
	}{
		"policy resumes": {"Placement", func(c *control) {
			c.Merge(v1alpha1.PlacementResource, "shop", "p", `{"spec":{"suspend":false}}`)
		}},
		"policy is deleted": {"Placement", func(c *control) { c.Delete(v1alpha1.PlacementResource, "shop", "p") }},
		"policy of all namespaces resumes": {"ClusterPlacement", func(c *control) {
			c.Merge(v1alpha1.ClusterPlacementResource, "", "p", `{"spec":{"suspend":false}}`)
		}},
		"policy of all namespaces is deleted": {"ClusterPlacement", func(c *control) {
			c.Delete(v1alpha1.ClusterPlacementResource, "", "p")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, clusters+policies+strings.Replace(removed, "KIND", tt.kind, 1))
			binding := func() *v1alpha1.ResourceBinding {
				u := c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")
				if u == nil {
					return nil
				}
				return as[v1alpha1.ResourceBinding](t, u)
			}
			fakeapi.Until(t, "the scheduler runs", func() bool { return clustersOf(t, c, "shop", "deployment.apps-other") != "" })
			if !binding().Spec.Suspend {
				t.Error("it is not suspended any more")
			}
			tt.happens(c)
			fakeapi.Until(t, "it is not suspended", func() bool { return !binding().Spec.Suspend })
			c.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", `{"status":{"clusters":[]}}`)
			fakeapi.Until(t, "the binding is gone", func() bool { return binding() == nil })
		})
	}
}
