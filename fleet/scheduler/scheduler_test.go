package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	widgets     = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	autoscalers = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
)

const clusters = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: east, uid: e, creationTimestamp: "2026-01-01T00:00:00Z"}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: west, uid: w, creationTimestamp: "2026-01-02T00:00:00Z"}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`

const app = `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: shop, uid: c}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: unused, namespace: shop, uid: u, labels: {fleet.atoll.dev/configuration: WhereNeeded}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: s}
spec: {selector: {app: web}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: conf}}]}]}
`

// parse decodes manifests.
func parse(t *testing.T, manifests string) (out []*unstructured.Unstructured) {
	t.Helper()
	for _, doc := range strings.Split(manifests, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if u.Object != nil {
			out = append(out, u)
		}
	}
	return out
}

// control is a control plane. It remembers the bindings as they were created.
type control struct {
	*fakeapi.Server
	mu      sync.Mutex
	created []map[string]any
}

// newControl starts a control plane with the manifests.
func newControl(t *testing.T, manifests string) *control {
	t.Helper()
	kinds := append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.Custom("Widget", widgets), fakeapi.Custom("Gateway", gateways), fakeapi.Custom("ReferenceGrant", grantsOf))
	c := &control{Server: fakeapi.New(t, append(kinds, fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 ConfigMap", "v1 Service", "v1 ServiceAccount", "apps/v1 Deployment",
		"apps/v1 StatefulSet", "apps/v1 ReplicaSet", "discovery.k8s.io/v1 EndpointSlice", "autoscaling/v2 HorizontalPodAutoscaler", "apiextensions.k8s.io/v1 CustomResourceDefinition",
		"rbac.authorization.k8s.io/v1 ClusterRole", "rbac.authorization.k8s.io/v1 ClusterRoleBinding",
		"rbac.authorization.k8s.io/v1 Role", "rbac.authorization.k8s.io/v1 RoleBinding", "v1 Secret", "networking.k8s.io/v1 Ingress", "v1 Pod", "v1 PersistentVolumeClaim", "policy/v1 PodDisruptionBudget", "scheduling.k8s.io/v1 PriorityClass", "batch/v1 Job",
		"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding")...)...)}
	c.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "create" && strings.HasSuffix(r.Resource.Resource, "resourcebindings") {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.created = append(c.created, r.Object)
		}
		return nil
	})
	for _, u := range parse(t, manifests) {
		c.Put(u)
	}
	return c
}

// begin starts a scheduler over a control plane with the manifests.
func begin(t *testing.T, manifests string) *control {
	t.Helper()
	return beginWith(t, Config{}, manifests)
}

func beginWith(t *testing.T, config Config, manifests string) *control {
	t.Helper()
	c := newControl(t, manifests)
	c.start(t, config)
	return c
}

// start starts a scheduler over the control plane.
func (c *control) start(t *testing.T, config Config) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: c.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- NewController(config)(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// bindings returns all bindings by name, cluster-scoped ones first.
func (c *control) bindings(t *testing.T) (out []*v1alpha1.ResourceBinding) {
	t.Helper()
	for _, u := range slices.Concat(c.List(v1alpha1.ClusterResourceBindingResource), c.List(v1alpha1.ResourceBindingResource)) {
		out = append(out, as[v1alpha1.ResourceBinding](t, u))
	}
	return out
}

// changeBinding edits a binding as another user would.
func (c *control) changeBinding(t *testing.T, b *v1alpha1.ResourceBinding, edit func(*v1alpha1.ResourceBinding)) {
	t.Helper()
	c.Change(v1alpha1.BindingResource(b.Namespace), b.Namespace, b.Name, func(u *unstructured.Unstructured) {
		live := as[v1alpha1.ResourceBinding](t, u)
		edit(live)
		next, err := toUnstructured(live)
		if err != nil {
			t.Fatal(err)
		}
		u.Object = next.Object
	})
}

// decided waits until the bindings are as wanted, one per line: name, clusters with shares, and
// in brackets the users.
func decided(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "decided"+want, func() error {
		got := ""
		for _, b := range c.bindings(t) {
			got += b.Name + ": " + describe(b.Spec.Clusters)
			if len(b.Spec.RequiredBy) > 0 {
				got += fmt.Sprint(" ", b.Spec.RequiredBy)
			}
			if p := b.Spec.Policy; p != nil && p.Kind != v1alpha1.PolicyDefault {
				got += " by " + p.Kind + " " + p.Name
			}
			if n := len(b.Spec.Overrides); n > 0 {
				got += fmt.Sprint(" +", n)
			}
			got += "\n"
		}
		if got != strings.TrimLeft(want, "\n") {
			return errors.New("decided\n" + got)
		}
		return nil
	})
}

const everything = `
configmap-conf: east, west [{ Deployment web} { Namespace shop}]
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web} { Namespace shop}]
`

func TestAppIsPlaced(t *testing.T) {
	decided(t, begin(t, clusters+app), everything)
}

func TestDependenciesFollow(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	// The Deployment now needs the other ConfigMap. The Service still selects its pods.
	client.Merge(deployments, "shop", "web", `{"spec":{"replicas":5,"template":{"spec":{"containers":[{"name":"c","image":"i","envFrom":[{"configMapRef":{"name":"unused"}}]}]}}}}`)
	decided(t, client, `
configmap-conf: east, west [{ Namespace shop}]
configmap-unused: east, west [{ Deployment web}]
deployment.apps-web: east 3, west 2
service-web: east, west [{ Deployment web} { Namespace shop}]
`)
	client.Delete(deployments, "shop", "web")
	decided(t, client, "\n")
	if client.Get(configMaps, "shop", "unused") == nil {
		t.Error("the object that is no longer needed was deleted from the control plane")
	}
}

const operator = `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: shop, uid: sa}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operator, uid: cr}
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: unused, uid: cu}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator, uid: crb}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: operator}
subjects: [{kind: ServiceAccount, name: operator, namespace: shop}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com, uid: crd}
spec: {group: example.com, scope: Namespaced, names: {plural: widgets, kind: Widget}, versions: [{name: v1, served: true, storage: true}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator, namespace: shop, uid: op}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: operator}}
    spec: {serviceAccountName: operator, containers: [{name: c, image: i}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: operator, namespace: shop, uid: h}
spec: {maxReplicas: 10, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: operator}}
`

const operates = `
clusterrole.rbac.authorization.k8s.io-operator: east, west [{ ClusterRoleBinding operator}]
clusterrolebinding.rbac.authorization.k8s.io-operator: east, west [{shop ServiceAccount operator}]
customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east, west [{ ClusterRole operator}]
deployment.apps-operator: east 1, west 1
horizontalpodautoscaler.autoscaling-operator: east 1, west 1 [{ Deployment operator}]
serviceaccount-operator: east, west [{ Deployment operator} { Namespace shop}]
`

// TestClusterScopedObjectsFollow: a service account brings its roles along, and these the types
// that they refer to, whichever object names the other.
func TestClusterScopedObjectsFollow(t *testing.T) {
	client := begin(t, clusters+operator)
	decided(t, client, operates)
	client.Delete(deployments, "shop", "operator")
	decided(t, client, "\n")
}

func TestClusterLeaves(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	client.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"finalizers":["fleet.atoll.dev/leave"]}}`)
	client.Delete(v1alpha1.ClusterResource, "", "east")
	decided(t, client, `
configmap-conf: west [{ Deployment web} { Namespace shop}]
deployment.apps-web: west 3
service-web: west [{ Deployment web} { Namespace shop}]
`)
}

// noBindings is a cache without any.
type noBindings struct{}

func (noBindings) Get(types.NamespacedName) (*v1alpha1.ResourceBinding, bool) { return nil, false }
func (noBindings) In(string) []*v1alpha1.ResourceBinding                      { return nil }
func (noBindings) All() []*v1alpha1.ResourceBinding                           { return nil }

// TestConditionIsSetAfterBindingIsSeen: after a binding is created, nothing else is written to
// it until the scheduler sees it; then its condition is set.
func TestConditionIsSetAfterBindingIsSeen(t *testing.T) {
	c := newControl(t, "")
	s := &scheduler{Session: &fleet.Session{Dynamic: c.Dynamic(), Clock: clock.RealClock{}, Events: record.NewFakeRecorder(10)}, assumed: newAssumed(noBindings{})}
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	web := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "shop", "uid": "d"}}}
	p := bindingUpdate{shares: []v1alpha1.ClusterShare{{Name: "east", Reason: "Scheduled"}},
		condition: metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}}
	if err := s.write(t.Context(), k, web, nil, p); err != nil {
		t.Fatal(err)
	}
	created := "create resourcebindings shop/deployment.apps-web"
	if got := c.Writes(); !slices.Equal(got, []string{created}) {
		t.Fatalf("created with the requests %q", got)
	}
	if err := s.write(t.Context(), k, web, c.bindings(t)[0], p); err != nil {
		t.Fatal(err)
	}
	if got := c.Writes(); !slices.Equal(got, []string{created, "apply resourcebindings/status shop/deployment.apps-web"}) {
		t.Errorf("after it was seen, the requests are %q", got)
	}
}
