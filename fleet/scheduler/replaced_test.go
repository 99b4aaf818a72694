package scheduler

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestReplacedObjectNamesItsPredecessor: an object that is deleted and made again waits for the one before it,
// and the binding says so with the new UID and what holds the old one. Then it is placed.
func TestReplacedObjectNamesItsPredecessor(t *testing.T) {
	c := begin(t, clusters+`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: new}
spec: {replicas: 1, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-web, namespace: shop, uid: b, finalizers: [fleet.atoll.dev/empty-members], deletionTimestamp: "2026-01-01T00:00:00Z"}
spec:
  resource: {apiVersion: apps/v1, kind: Deployment, name: web, uid: old, resource: deployments}
  clusters: [{name: west}]
status:
  clusters: [{name: west, uid: w, reason: Removing, message: "it stays until these finalizers are removed there: example.com/hold"}]
`)
	fakeapi.Until(t, "the binding names both", func() bool {
		b := as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web"))
		s := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		return s != nil && s.Reason == ReasonReplaced && strings.Contains(s.Message, "UID new waits until the one before it (UID old) is gone from west; in west, it stays until these finalizers")
	})
	c.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", `{"status":{"clusters":[]}}`)
	fakeapi.Until(t, "it is placed", func() bool {
		u := c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web")
		return u != nil && as[v1alpha1.ResourceBinding](t, u).Spec.Resource.UID == "new"
	})
}
