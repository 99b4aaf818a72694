package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestOverridesMoveNothing: policies of overrides alone change what clusters get, of workloads and of what
// follows them, and not where they run.
func TestOverridesMoveNothing(t *testing.T) {
	const policies = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: where, namespace: shop, uid: where}
spec: {selector: {kinds: [Deployment]}, clusters: {names: [west]}, overrides: [{env: [{name: A, value: "1"}]}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: for-all, uid: for-all}
spec: {selector: {kinds: [Deployment, ConfigMap]}, overrides: [{kinds: [Deployment], env: [{name: B, value: "2"}]}, {kinds: [ConfigMap], jsonPatch: [{op: add, path: /data/c, value: "3"}]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: shop, uid: conf}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: web}
spec: {replicas: 2, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: conf}}]}]}}}
`
	c := begin(t, clusters+policies)
	// is returns where an object runs, and its overrides there.
	is := func(binding string) string {
		u := c.Get(v1alpha1.ResourceBindingResource, "shop", binding)
		if u == nil {
			return ""
		}
		b := as[v1alpha1.ResourceBinding](t, u)
		var out []string
		for _, share := range b.Spec.Clusters {
			what := share.Name
			for _, i := range share.Overrides {
				for _, env := range b.Spec.Overrides[i].Env {
					what += fmt.Sprintf(" %s=%s", env.Name, env.Value)
				}
				for _, patch := range b.Spec.Overrides[i].JSONPatch {
					what += " " + patch.Path
				}
			}
			out = append(out, what)
		}
		return strings.Join(out, ", ")
	}
	expect := func(web, conf string) {
		t.Helper()
		fakeapi.Eventually(t, "the overrides", func() error {
			if a, b := is("deployment.apps-web"), is("configmap-conf"); a != web || b != conf {
				return fmt.Errorf("the Deployment is in %q, the ConfigMap in %q", a, b)
			}
			return nil
		})
	}
	expect("west B=2 A=1", "west /data/c")
	agreesWithPreview(t, c)
	c.Merge(v1alpha1.ClusterPlacementResource, "", "for-all", `{"spec":{"selector":{"kinds":["ConfigMap"]}}}`)
	expect("west A=1", "west /data/c")
	c.Delete(v1alpha1.ClusterPlacementResource, "", "for-all")
	expect("west A=1", "west")
	agreesWithPreview(t, c)
}
