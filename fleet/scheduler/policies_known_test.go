package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const second = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: second, namespace: shop, uid: d2}
spec: {replicas: 3, template: {metadata: {labels: {app: second}}, spec: {containers: [{name: c, image: i}]}}}
`

const elsewhere = `
---
apiVersion: v1
kind: Namespace
metadata: {name: other, uid: other}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: first, namespace: other, uid: d3}
spec: {replicas: 3, template: {metadata: {labels: {app: first}}, spec: {containers: [{name: c, image: i}]}}}
`

// TestPolicyBeforeItsObject: an object that arrives before the policy that was created first waits for it. Others do not.
func TestPolicyBeforeItsObject(t *testing.T) {
	for name, policy := range map[string]string{
		"Placement":        inWest,
		"ClusterPlacement": strings.Replace(strings.Replace(inWest, "kind: Placement", "kind: ClusterPlacement", 1), "namespace: shop, ", "", 1),
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters)
			resource := expectedKinds()[name]
			release := c.Hold(resource)
			for _, u := range parse(t, policy+second+elsewhere) {
				c.Put(u)
			}
			if name == "Placement" { // a ClusterPlacement might select it
				decided(t, c, `
deployment.apps-first: east 1, west 2
`)
			}
			release()
			want := `
deployment.apps-second: west 3 by ` + name + ` web +1
`
			if name == "Placement" {
				want = "\ndeployment.apps-first: east 1, west 2" + want
			} else {
				want = "\ndeployment.apps-first: west 3 by " + name + " web +1" + want
			}
			decided(t, c, want)
			wantFirstPlacement(t, c, "deployment.apps-second", "west 3")
		})
	}
}

// TestPolicyDeletedBeforeItArrives: nothing waits for a policy that exists no more.
func TestPolicyDeletedBeforeItArrives(t *testing.T) {
	c := begin(t, clusters)
	release := c.Hold(v1alpha1.PlacementResource)
	defer release()
	for _, u := range parse(t, inWest+second) {
		c.Put(u)
	}
	c.Delete(v1alpha1.PlacementResource, "shop", "web")
	decided(t, c, `
deployment.apps-second: east 2, west 1
`)
}
