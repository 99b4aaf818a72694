package scheduler

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const shopInEast = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: team-a, uid: b, generation: 1}
spec: {namespaceSelector: {matchLabels: {team: a}}, bounds: {names: [east]}, drift: Correct}
`

// TestBoundsHold: objects leave clusters when bounds exclude them, with what follows them, and no label leads back.
// Without the bounds they return.
func TestBoundsHold(t *testing.T) {
	c := begin(t, clusters+shops+app)
	decided(t, c, everything)
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
	fakeapi.Until(t, "it is in west", func() bool { return sharesOfWeb(t, c) == "west" })
	create(t, c, shopInEast)
	fakeapi.Until(t, "the binding says why it is nowhere", func() bool {
		b := webOf(t, c)
		scheduled := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		return len(b.Spec.Clusters) == 0 && scheduled != nil && strings.Contains(scheduled.Message, "west: the cluster is out of the bounds of ClusterPlacement team-a: its name is not listed")
	})
	agreesWithPreview(t, c)
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":null}}}`)
	decided(t, c, `
configmap-conf: east [{ Deployment web} { Namespace shop}]
deployment.apps-web: east 3
service-web: east [{ Deployment web} { Namespace shop}]
`)
	agreesWithPreview(t, c)

	// A namespace that loses the label has no bounds.
	c.Merge(namespaceResource, "", "shop", `{"metadata":{"labels":{"team":"b"}}}`)
	c.Merge(deployments, "shop", "web", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`)
	fakeapi.Until(t, "it goes to west", func() bool { return sharesOfWeb(t, c) == "west" })
}

func sharesOfWeb(t *testing.T, c *control) string {
	t.Helper()
	return strings.Join(clusterNames(webOf(t, c).Spec.Clusters), " ")
}

const robot = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: robot, namespace: other, uid: r}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: robot, namespace: other, uid: rd}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: robot}}
    spec: {serviceAccountName: robot, containers: [{name: c, image: i}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: robot, namespace: shop, uid: rb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: robot, namespace: other}]
`

// TestFollowersStayInBounds: an object does not follow one of another namespace out of the bounds of its own.
func TestFollowersStayInBounds(t *testing.T) {
	c := begin(t, clusters+shops+robot+"\n---\n"+strings.TrimPrefix(shopInEast, "\n"))
	fakeapi.Until(t, "the permission stays in bounds", func() bool {
		b := bindingIn(t, c, "rolebinding.rbac.authorization.k8s.io-robot")
		scheduled := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		return strings.Join(clusterNames(b.Spec.Clusters), " ") == "east" && scheduled != nil && scheduled.Reason == placement.ReasonOutOfBounds &&
			strings.Contains(scheduled.Message, "its users run without it in west")
	})
	c.Merge(namespaceResource, "", "shop", `{"metadata":{"labels":{"team":"b"}}}`)
	fakeapi.Until(t, "it is with the account", func() bool {
		return len(bindingIn(t, c, "rolebinding.rbac.authorization.k8s.io-robot").Spec.Clusters) == 2
	})
}
