package scheduler

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const pinnedWest = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p1}
spec: {selector: {names: [web]}, clusters: {names: [west]}, ON_DELETION overrides: [{env: [{name: REGION, value: w}]}]}
`

// TestKeepsWhenPolicyIsDeleted: the objects of a deleted policy with onDeletion: Keep stay where they are, with their
// overrides, until another policy decides. Those of other policies are placed by the default.
func TestKeepsWhenPolicyIsDeleted(t *testing.T) {
	for _, keep := range []string{"onDeletion: Keep,", ""} {
		c := begin(t, clusters+app+"\n---\n"+strings.Replace(pinnedWest, "ON_DELETION", keep, 1))
		sharesAre := func(want string) {
			t.Helper()
			fakeapi.Until(t, "web is in "+want, func() bool { return sharesOf(t, c, "shop", "deployment.apps-web") == want })
		}
		binding := func() *v1alpha1.ResourceBinding {
			return as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web"))
		}
		sharesAre("west 3")
		c.Delete(v1alpha1.PlacementResource, "shop", "web")
		if keep == "" {
			fakeapi.Until(t, "the default decides", func() bool { return binding().Spec.Policy.Kind == v1alpha1.PolicyDefault })
			if got := sharesOf(t, c, "shop", "deployment.apps-web"); got == "west 3" {
				t.Errorf("the default policy leaves web in %s", got)
			}
			continue
		}
		fakeapi.Until(t, "the binding says that the policy was deleted", func() bool { return strings.Contains(binding().Spec.Policy.Why, "was deleted") })
		sharesAre("west 3")
		if b := binding(); len(b.Spec.Overrides) != 1 || len(b.OverridesOf(b.Spec.Clusters[0])) != 1 {
			t.Errorf("overrides %v", b.Spec.Overrides)
		}
		agreesWithPreview(t, c)
		c.Merge(deployments, "shop", "web", `{"spec":{"replicas":5}}`)
		sharesAre("west 5")
		create(t, c, strings.NewReplacer("ON_DELETION", "", "[west]", "[east]", "p1", "p2").Replace(pinnedWest))
		sharesAre("east 5")
	}
}

// TestDependenciesStay: nothing goes along with an object whose policy says so.
func TestDependenciesStay(t *testing.T) {
	c := begin(t, clusters+app+`
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p1}
spec: {selector: {kinds: [Deployment]}, dependencies: Stay}
`)
	fakeapi.Until(t, "web is placed", func() bool { return sharesOf(t, c, "shop", "deployment.apps-web") != "" })
	c.Merge(v1alpha1.PlacementResource, "shop", "web", `{"spec":{"dependencies":null}}`)
	fakeapi.Until(t, "its ConfigMap follows", func() bool { return clustersOf(t, c, "shop", "configmap-conf") == "east west" })
	c.Merge(v1alpha1.PlacementResource, "shop", "web", `{"spec":{"dependencies":"Stay"}}`)
	fakeapi.Until(t, "nothing goes along", func() bool {
		return clustersOf(t, c, "shop", "configmap-conf") == "" && clustersOf(t, c, "shop", "service-web") == ""
	})
	if where := clustersOf(t, c, "shop", "deployment.apps-web"); where != "east west" {
		t.Errorf("web is in %s", where)
	}
	agreesWithPreview(t, c)
}
