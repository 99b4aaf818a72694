package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const inWest = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  selector: {kinds: [Deployment]}
  clusters: {names: [west]}
  overrides: [{clusters: {names: [west]}, env: [{name: REGION, value: west}]}]
`

// create puts objects into the control plane of a running scheduler, which knows each policy before the next object.
func create(t *testing.T, c *control, manifests string) {
	t.Helper()
	for _, u := range parse(t, manifests) {
		c.putKnown(t, u)
	}
}

// putKnown puts an object. It waits until the scheduler knows it if it is a policy: objects that follow are never placed
// without the policy.
func (c *control) putKnown(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	stored := c.Put(u)
	if !isPolicy(u) {
		return
	}
	fakeapi.Until(t, "the scheduler knows policy "+u.GetName(), func() bool {
		p := as[v1alpha1.Placement](t, c.Get(expectedKinds()[u.GetKind()], u.GetNamespace(), u.GetName()))
		is := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
		return is != nil && is.ObservedGeneration == stored.GetGeneration()
	})
}

func isPolicy(u *unstructured.Unstructured) bool {
	return u.GetKind() == "Placement" || u.GetKind() == "ClusterPlacement"
}

func TestPolicyDecides(t *testing.T) {
	client := begin(t, clusters+app+inWest)
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3 by Placement web +1
service-web: west [{ Deployment web} { Namespace shop}]
`)
}

func TestPolicyAddedAndRemoved(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	create(t, client, inWest[5:])
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3 by Placement web +1
service-web: west [{ Deployment web} { Namespace shop}]
`)
	client.Delete(v1alpha1.PlacementResource, "shop", "web")
	decided(t, client, `
configmap-conf: east, west [{ Deployment web} { Namespace shop}]
deployment.apps-web: east 1, west 2
service-web: east, west [{ Deployment web} { Namespace shop}]
`)
}

func TestLabelDecides(t *testing.T) {
	client := begin(t, clusters+app+inWest)
	client.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"east"}}}`)
	decided(t, client, `
configmap-conf: east [{ Deployment web} { Namespace shop}]
deployment.apps-web: east 3 by Placement web
service-web: east [{ Deployment web} { Namespace shop}]
`)
}

func TestTaintMovesAffectedObjects(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	client.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"taints":[{"key":"broken","effect":"NoExecute"}]}}`)
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3
service-web: west [{ Deployment web} { Namespace shop}]
`)
}

// TestTolerationStartsWhenTaintIsSeen: if the taint has no timeAdded, its toleration time
// starts when it is first seen.
func TestTolerationStartsWhenTaintIsSeen(t *testing.T) {
	client := begin(t, clusters+app+`
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1}
spec:
  selector: {kinds: [Deployment]}
  tolerations: [{key: broken, operator: Exists, effect: NoExecute, tolerationSeconds: 3600}]
`)
	const both = "\nconfigmap-conf: east, west [{ Deployment web} { Namespace shop}]\ndeployment.apps-web: east 2, west 1 by Placement web\nservice-web: east, west [{ Deployment web} { Namespace shop}]\n"
	decided(t, client, both)
	client.Merge(v1alpha1.ClusterResource, "", "east", `{"spec":{"taints":[{"key":"broken","effect":"NoExecute"}]}}`)
	waitForShare(t, client, "deployment.apps-web", "east", "KeptWhileTainted: has the taint broken:NoExecute without timeAdded; keeps its share until that time is known")
	seen := func(ago time.Duration) string {
		return fmt.Sprintf(`{"status":{"taints":[{"key":"broken","effect":"NoExecute","since":%q}]}}`, time.Now().Add(-ago).UTC().Format(time.RFC3339))
	}
	client.Merge(v1alpha1.ClusterResource, "", "east", seen(2*time.Hour))
	decided(t, client, "\nconfigmap-conf: west [{ Deployment web} { Namespace shop}]\ndeployment.apps-web: west 3 by Placement web\nservice-web: west [{ Deployment web} { Namespace shop}]\n")
}

// TestInvalidPolicyMovesNothing: the objects that an invalid policy selects stay.
func TestInvalidPolicyMovesNothing(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	create(t, client, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1}
spec: {clusters: {expression: "cluster.nonsense("}}
`)
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":9}}`)
	client.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"unschedulable":true}}`)
	decided(t, client, everything)
}

// TestPolicyNamesNoCluster: the binding says that the policy is not met, although the object stays. The
// policy says which Cluster does not exist, until it joins.
func TestPolicyNamesNoCluster(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	create(t, client, strings.Replace(inWest[5:], "clusters: {names: [west]}\n", "clusters: {names: [wst]}\n", 1))
	accepted := func() string {
		p := &v1alpha1.Placement{}
		client.Read(v1alpha1.PlacementResource, "shop", "web", p)
		if c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted); c != nil {
			return c.Message
		}
		return ""
	}
	fakeapi.Until(t, "the policy names the Cluster", func() bool { return strings.Contains(accepted(), "no Cluster wst exists (did you mean west?)") })
	fakeapi.Until(t, "the binding is not scheduled", func() bool {
		b := &v1alpha1.ResourceBinding{}
		client.Read(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", b)
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		return len(b.Spec.Clusters) == 2 && c != nil && c.Status == metav1.ConditionFalse && c.Reason == "PolicyUnsatisfied"
	})
	client.Put(parse(t, strings.ReplaceAll(clusters, "west", "wst"))[1])
	fakeapi.Until(t, "the Cluster has joined", func() bool { return accepted() == "the policy is in effect" })
}
