package scheduler

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func deployments() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func widgets() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
}

func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// report adds entries to the bindings as if every cluster had its objects.
func report(t *testing.T, client *dynamicfake.FakeDynamicClient) {
	t.Helper()
	for _, b := range bindings(t, client) {
		var states []any
		shares, _, _ := unstructured.NestedSlice(b.Object, "spec", "clusters")
		for _, share := range shares {
			states = append(states, map[string]any{"name": share.(map[string]any)["name"], "uid": "there", "health": "Healthy", "lastUpdateTime": "2026-01-01T00:00:00Z"})
		}
		if err := unstructured.SetNestedSlice(b.Object, states, "status", "clusters"); err != nil {
			t.Fatal(err)
		}
		if err := client.Tracker().Update(v1alpha1.BindingResource(b.GetNamespace()), &b, b.GetNamespace()); err != nil {
			t.Fatal(err)
		}
	}
}

// requests returns the last written requested removals of each binding.
func requests(t *testing.T, client *dynamicfake.FakeDynamicClient) string {
	t.Helper()
	last := map[string]string{}
	for _, action := range client.Actions() {
		p, ok := action.(clienttesting.PatchActionImpl)
		if !ok || !strings.HasSuffix(p.GetResource().Resource, "resourcebindings") || p.PatchType == types.ApplyPatchType {
			continue
		}
		var b struct {
			Spec *struct {
				RequestedRemovals []v1alpha1.RequestedRemoval `json:"requestedRemovals"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(p.Patch, &b); err != nil {
			t.Fatal(err)
		}
		if b.Spec == nil {
			continue
		}
		delete(last, p.Name)
		for _, r := range b.Spec.RequestedRemovals {
			last[p.Name] += " " + r.Name + " " + r.Reason
		}
	}
	out := ""
	for _, name := range slices.Sorted(maps.Keys(last)) {
		out += name + ":" + last[name] + "\n"
	}
	return out
}

// waitForRequests waits until the requested removals are as wanted.
func waitForRequests(t *testing.T, client *dynamicfake.FakeDynamicClient, want string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("asked for are\n%s", requests(t, client))
		}
	})
	until(t, "asked for are\n"+want, func() bool { return requests(t, client) == want })
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

func remove(t *testing.T, client *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	if err := client.Tracker().Delete(gvr, namespace, name); err != nil {
		t.Fatal(err)
	}
}

func patch(t *testing.T, client *dynamicfake.FakeDynamicClient, gvr schema.GroupVersionResource, namespace, name, patch string) {
	t.Helper()
	if _, err := client.Resource(gvr).Namespace(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// caughtUp waits until the scheduler has processed the previous writes to bindings: it makes
// the scheduler correct another one.
func caughtUp(t *testing.T, client *dynamicfake.FakeDynamicClient) {
	t.Helper()
	b := bindings(t, client)[0]
	suspended := func() bool { v, _, _ := unstructured.NestedBool(b.Object, "spec", "suspend"); return v }
	if err := unstructured.SetNestedField(b.Object, true, "spec", "suspend"); err != nil {
		t.Fatal(err)
	}
	b.SetGeneration(b.GetGeneration() + 1)
	if err := client.Tracker().Update(v1alpha1.ResourceBindingResource, &b, b.GetNamespace()); err != nil {
		t.Fatal(err)
	}
	until(t, "the scheduler puts it right", func() bool { b = bindings(t, client)[0]; return !suspended() })
}

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
	type stage = dynamicfake.FakeDynamicClient
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	for _, tt := range []struct {
		name, manifests string
		placed          string // the initial bindings
		happens         func(*testing.T, *stage)
		then            string // the resulting bindings
		want            string
	}{
		{"its user is deleted", app, everything, func(t *testing.T, s *stage) { remove(t, s, deployments(), "shop", "web") }, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: no cluster
`, `
configmap-conf: east UsersDeleted west UsersDeleted
service-web: east UsersDeleted west UsersDeleted
`},
		{"its user is moved", app, everything, func(t *testing.T, s *stage) { patch(t, s, deployments(), "shop", "web", toWest) }, `
configmap-conf: west [{ Deployment web}]
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`, "\n"},
		{"its user no longer needs it", app, everything, func(t *testing.T, s *stage) {
			patch(t, s, deployments(), "shop", "web", `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
		}, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, "\n"},
		{"a user is deleted where another was moved away", app + another, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, func(t *testing.T, s *stage) {
			patch(t, s, deployments(), "shop", "web", toWest)
			decided(t, s, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`)
			remove(t, s, deployments(), "shop", "another")
		}, `
configmap-conf: west [{ Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`, "\n"},
		{"a user is deleted where another never was", app + another, `
configmap-conf: east, west [{ Deployment another} { Deployment web}]
deployment.apps-another: east 1
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`, func(t *testing.T, s *stage) {
			patch(t, s, deployments(), "shop", "another", toWest)
			remove(t, s, deployments(), "shop", "web")
		}, `
configmap-conf: west [{ Deployment another}]
deployment.apps-another: west 1
deployment.apps-web: east 2, west 1
service-web: no cluster
`, `
service-web: east UsersDeleted west UsersDeleted
`},
		{"its user is deleted and its copies are orphaned", app, everything, func(t *testing.T, s *stage) {
			b := bindings(t, s)[1]
			b.SetOwnerReferences(nil) // as the garbage collector does
			if err := s.Tracker().Update(v1alpha1.ResourceBindingResource, &b, "shop"); err != nil {
				t.Fatal(err)
			}
			caughtUp(t, s)
			remove(t, s, deployments(), "shop", "web")
		}, `
configmap-conf: no cluster
deployment.apps-web: east 2, west 1
service-web: no cluster
`, "\n"},
		{"a chain of users ends", operator, operates, func(t *testing.T, s *stage) { remove(t, s, deployments(), "shop", "operator") }, `
clusterrole.rbac.authorization.k8s.io-operator: no cluster
clusterrolebinding.rbac.authorization.k8s.io-operator: no cluster
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east, west
deployment.apps-operator: east 1, west 1
horizontalpodautoscaler.autoscaling-operator: no cluster
serviceaccount-operator: no cluster
`, `
clusterrole.rbac.authorization.k8s.io-operator: east UsersDeleted west UsersDeleted
clusterrolebinding.rbac.authorization.k8s.io-operator: east UsersDeleted west UsersDeleted
horizontalpodautoscaler.autoscaling-operator: east UsersDeleted west UsersDeleted
serviceaccount-operator: east UsersDeleted west UsersDeleted
`},
		{"its own label changes", "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf, namespace: shop, uid: c, labels: {fleet.atoll.dev/cluster: east}}\n", `
configmap-conf: east
`, func(t *testing.T, s *stage) { patch(t, s, configMaps, "shop", "conf", toWest) }, `
configmap-conf: west
`, "\n"},
		{"it is deleted after it was moved", app, everything, func(t *testing.T, s *stage) {
			patch(t, s, deployments(), "shop", "web", toWest)
			decided(t, s, `
configmap-conf: west [{ Deployment web}]
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`)
			caughtUp(t, s)
			remove(t, s, deployments(), "shop", "web")
		}, `
configmap-conf: no cluster
deployment.apps-web: west 3
service-web: no cluster
`, `
configmap-conf: west UsersDeleted
deployment.apps-web: east ObjectDeleted
service-web: west UsersDeleted
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := begin(t, clusters+tt.manifests)
			decided(t, client, tt.placed)
			report(t, client)
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
				patch(t, client, definitions(), "", "widgets.example.com", `{"metadata":{"deletionTimestamp":"2026-01-03T00:00:00Z","finalizers":["x"]}}`)
				remove(t, client, widgets(), "shop", "one")
			} else {
				client.Lock() // the scheduler is running, and PrependReactor does not lock
				client.PrependReactor("get", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewNotFound(widgets().GroupResource(), "one")
				})
				client.Unlock()
			}
			remove(t, client, definitions(), "", "widgets.example.com")
			until(t, "the binding is deleted", func() bool { return bindings(t, client)[0].GetDeletionTimestamp() != nil })
			waitForRequests(t, client, tt.want)
		})
	}
}
