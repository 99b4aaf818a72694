package scheduler

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// report adds entries to the bindings as if every cluster had its objects.
func report(t *testing.T, c *control) {
	t.Helper()
	for _, b := range c.bindings(t) {
		c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
			for _, share := range b.Spec.Clusters {
				b.Status.Clusters = append(b.Status.Clusters, v1alpha1.ClusterState{Name: share.Name, UID: "there", Health: v1alpha1.Healthy})
			}
		})
	}
}

// waitForRequests waits until the requested removals of each binding are as wanted.
func waitForRequests(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "asked for are\n"+want, func() error {
		got := ""
		for _, b := range c.bindings(t) {
			if len(b.Spec.RequestedRemovals) == 0 {
				continue
			}
			got += b.Name + ":"
			for _, r := range b.Spec.RequestedRemovals {
				got += " " + r.Name + " " + r.Reason
			}
			got += "\n"
		}
		if got != want {
			return errors.New("asked for are\n" + got)
		}
		return nil
	})
}

// caughtUp waits until the scheduler has processed the previous writes to bindings: it makes
// the scheduler correct another one.
func caughtUp(t *testing.T, c *control) {
	t.Helper()
	c.changeBinding(t, c.bindings(t)[0], func(b *v1alpha1.ResourceBinding) { b.Spec.Suspend = true })
	fakeapi.Until(t, "the scheduler corrects it", func() bool { return !c.bindings(t)[0].Spec.Suspend })
}

// withUser is where the objects of app are while web has left east by decision and its copy there is not gone: the
// objects that it needs stay.
const withUser = `
configmap-conf: west, east [{ Deployment web}]
deployment.apps-web: west 3
service-web: west, east [{ Deployment web}]
`

const toWest = `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"west"}}}`

// another is a second user of the same ConfigMap, in east alone.
const another = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: another, namespace: shop, uid: d2, labels: {fleet.atoll.dev/cluster: east}}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: another}}
    spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: conf}}]}]}
`

// TestRequestedRemovals: the removal of a follower is requested if its users were deleted, and
// not if it is removed for another reason.
func TestRequestedRemovals(t *testing.T) {
	for _, tt := range []struct {
		name, manifests string
		placed          string // the initial bindings
		happens         func(*testing.T, *control)
		then            string // the resulting bindings
		want            string
	}{
		{"its user is deleted", app, everything, func(t *testing.T, s *control) { s.Delete(deployments, "shop", "web") }, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: no cluster
`, `
configmap-conf: east UsersDeleted west UsersDeleted
service-web: east UsersDeleted west UsersDeleted
`},
		{"its user is moved", app, everything, func(t *testing.T, s *control) {
			s.Merge(deployments, "shop", "web", toWest)
			decided(t, s, withUser)
			leave(t, s, "deployment.apps-web", "east")
		}, `
configmap-conf: west [{ Deployment web}]
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`, "\n"},
		{"its user no longer needs it", app, everything, func(t *testing.T, s *control) {
			s.Merge(deployments, "shop", "web", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
		}, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, "\n"},
		{"a user is deleted where another has not left yet", app + another, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, func(t *testing.T, s *control) {
			s.Merge(deployments, "shop", "web", toWest)
			decided(t, s, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: west 3
service-web: west, east [{ Deployment web}]
`)
			s.Delete(deployments, "shop", "another")
		}, `
configmap-conf: west, east [{ Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: west 3
service-web: west, east [{ Deployment web}]
`, "\n"},
		{"a user is deleted where another has left", app + another, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, func(t *testing.T, s *control) {
			s.Merge(deployments, "shop", "another", toWest)
			decided(t, s, `
configmap-conf: west, east [{ Deployment another} { Deployment web}]
deployment.apps-another: west 1
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`)
			leave(t, s, "deployment.apps-another", "east")
			caughtUp(t, s)
			s.Delete(deployments, "shop", "web")
		}, `
configmap-conf: west [{ Deployment another}]
deployment.apps-another: west 1
deployment.apps-web: east 2, west 1
service-web: no cluster
`, `
configmap-conf: east UsersDeleted
service-web: east UsersDeleted west UsersDeleted
`},
		{"its user is deleted and its copies are orphaned", app, everything, func(t *testing.T, s *control) {
			// As the garbage collector does.
			s.changeBinding(t, s.bindings(t)[1], func(b *v1alpha1.ResourceBinding) { b.OwnerReferences = nil })
			caughtUp(t, s)
			s.Delete(deployments, "shop", "web")
		}, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: no cluster
`, "\n"},
		{"a chain of users ends", operator, operates, func(t *testing.T, s *control) { s.Delete(deployments, "shop", "operator") }, `
clusterrole.rbac.authorization.k8s.io-operator: no cluster
clusterrolebinding.rbac.authorization.k8s.io-operator: no cluster
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: no cluster
deployment.apps-operator: east 1, west 1
horizontalpodautoscaler.autoscaling-operator: no cluster
serviceaccount-operator: no cluster
`, `
clusterrole.rbac.authorization.k8s.io-operator: east UsersDeleted west UsersDeleted
clusterrolebinding.rbac.authorization.k8s.io-operator: east UsersDeleted west UsersDeleted
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east UsersDeleted west UsersDeleted
horizontalpodautoscaler.autoscaling-operator: east UsersDeleted west UsersDeleted
serviceaccount-operator: east UsersDeleted west UsersDeleted
`},
		{"its own label changes", "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf, namespace: shop, uid: c, labels: {fleet.atoll.dev/cluster: east}}\n", `
configmap-conf: east
`, func(t *testing.T, s *control) { s.Merge(configMaps, "shop", "conf", toWest) }, `
configmap-conf: west
`, "\n"},
		{"it is deleted after it was moved", app, everything, func(t *testing.T, s *control) {
			s.Merge(deployments, "shop", "web", toWest)
			decided(t, s, withUser)
			caughtUp(t, s)
			s.Delete(deployments, "shop", "web")
		}, `
configmap-conf: no cluster
deployment.apps-web: west 3
service-web: no cluster
`, `
configmap-conf: west UsersDeleted east UsersDeleted
deployment.apps-web: east ObjectDeleted
service-web: west UsersDeleted east UsersDeleted
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := begin(t, clusters+strings.Replace(shop, "uid: n", "uid: n, labels: {fleet.atoll.dev/configuration: WhereNeeded}", 1)+tt.manifests)
			decided(t, client, strings.ReplaceAll(tt.placed, " { Namespace shop}", ""))
			report(t, client)
			members(t, client, true)
			tt.happens(t, client)
			decided(t, client, tt.then)
			want := strings.TrimLeft(tt.want, "\n")
			waitForRequests(t, client, want)
		})
	}
}

const custom = `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com, uid: crd}
spec: {group: example.com, scope: Namespaced, names: {plural: widgets, kind: Widget}, versions: [{name: v1, served: true, storage: true}]}
status: {conditions: [{type: Established, status: "True"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: NegotiatedAPIResource
metadata: {name: widgets.v1.example.com}
spec: {groupVersion: {group: example.com, version: v1}, plural: widgets, kind: Widget, scope: Namespaced}
status: {conditions: [{type: Enforced, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: APIResourceImport
metadata: {name: widgets.east.v1.example.com}
spec: {location: east, groupVersion: {group: example.com, version: v1}, plural: widgets, kind: Widget, scope: Namespaced}
status:
  conditions:
  - {type: Available, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
  - {type: Compatible, status: "True", reason: R, message: m, lastTransitionTime: "2026-01-01T00:00:00Z"}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: one, namespace: shop, uid: w1}
`

// TestTypeRemoved: deleting a type requests the removal of its objects. For a type that is only
// missing, no request is known.
func TestTypeRemoved(t *testing.T) {
	for name, tt := range map[string]struct {
		deleted bool
		want    string
	}{
		"deleted":  {true, "widget.example.com-one: east TypeDeleted\n"},
		"vanished": {false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := begin(t, clusters+custom)
			decided(t, client, "\nwidget.example.com-one: east\n")
			report(t, client)
			if tt.deleted {
				client.Merge(definitions, "", "widgets.example.com", `{"metadata":{"finalizers":["x"]}}`)
				client.Delete(definitions, "", "widgets.example.com")
				client.Delete(widgets, "shop", "one")
				client.Merge(definitions, "", "widgets.example.com", `{"metadata":{"finalizers":null}}`)
			} else {
				client.OnRequest(func(r fakeapi.Request) *metav1.Status {
					if r.Verb == "get" && r.Resource == widgets {
						return &apierrors.NewNotFound(widgets.GroupResource(), "one").ErrStatus
					}
					return nil
				})
				client.Delete(definitions, "", "widgets.example.com")
			}
			fakeapi.Until(t, "the binding is deleted", func() bool { return client.bindings(t)[0].DeletionTimestamp != nil })
			waitForRequests(t, client, tt.want)
		})
	}
}
