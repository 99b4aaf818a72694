package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
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
metadata: {name: unused, namespace: shop, uid: u}
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
func parse(t *testing.T, manifests string) (out []runtime.Object) {
	t.Helper()
	for _, doc := range strings.Split(manifests, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

// listKinds are the kinds that every scheduler watches, and widgets.
func listKinds() map[schema.GroupVersionResource]string {
	kinds := map[schema.GroupVersionResource]string{v1alpha1.ClusterResource: "ClusterList", v1alpha1.ResourceBindingResource: "ResourceBindingList",
		v1alpha1.PlacementResource: "PlacementList", v1alpha1.ClusterPlacementResource: "ClusterPlacementList",
		v1alpha1.ClusterResourceBindingResource: "ClusterResourceBindingList", {Version: "v1", Resource: "namespaces"}: "NamespaceList",
		v1alpha1.NegotiatedAPIResourceResource: "NegotiatedAPIResourceList", v1alpha1.APIResourceImportResource: "APIResourceImportList",
		v1alpha1.ResourceInterpretationResource:                                               "ResourceInterpretationList",
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "CustomResourceDefinitionList"}
	kinds[widgets()] = "WidgetList"
	for _, k := range interpret.Kinds() {
		kinds[k.GVR()] = k.Kind + "List"
	}
	return kinds
}

// begin starts a scheduler over a fake control plane with the manifests.
func begin(t *testing.T, manifests string) *dynamicfake.FakeDynamicClient {
	t.Helper()
	return beginWith(t, nil, manifests)
}

func beginWith(t *testing.T, fields Fields, manifests string) *dynamicfake.FakeDynamicClient {
	t.Helper()
	return beginManual(t, fields, nil, func(string, []byte) {}, manifests)
}

// beginManual is beginWith for a scheduler with objects that wait for plans. It reports each
// status that is applied to a binding.
func beginManual(t *testing.T, fields Fields, manual Manual, applied func(binding string, patch []byte), manifests string) *dynamicfake.FakeDynamicClient {
	t.Helper()
	return beginMeasured(t, fields, manual, nil, applied, manifests)
}

func beginMeasured(t *testing.T, fields Fields, manual Manual, metrics *Metrics, applied func(binding string, patch []byte), manifests string) *dynamicfake.FakeDynamicClient {
	t.Helper()
	initial := parse(t, manifests)
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), listKinds(), initial...)
	client.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p, ok := a.(clienttesting.PatchActionImpl)
		if !strings.HasSuffix(a.GetResource().Resource, "resourcebindings") {
			return false, nil, nil
		}
		if ok && p.PatchType == types.ApplyPatchType {
			// Conditions are applied to the status, which the fake does not support; these
			// tests need only the decision.
			applied(p.Name, p.Patch)
			return true, &unstructured.Unstructured{}, nil
		}
		return patchSpec(client, p)
	})
	client.PrependReactor("delete", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d, ok := a.(clienttesting.DeleteActionImpl)
		if !ok || !strings.HasSuffix(d.GetResource().Resource, "resourcebindings") {
			return false, nil, nil
		}
		return deleteFinalized(client, d)
	})
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSessionWithClients(ctx, fleet.Config{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)},
		kubefake.NewClientset(), client, nil, interpret.Kinds())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- NewController(fields, manual, metrics)(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return client
}

// patchSpec patches a binding as a server does, with generations. It ignores preconditions
// except the resourceVersion.
func patchSpec(client *dynamicfake.FakeDynamicClient, p clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	live, err := client.Tracker().Get(p.GetResource(), p.GetNamespace(), p.Name)
	if err != nil {
		return true, nil, err
	}
	b := live.(*unstructured.Unstructured).DeepCopy()
	patch := map[string]any{}
	if err := json.Unmarshal(p.Patch, &patch); err != nil {
		return true, nil, err
	}
	// As a server does: reject a decision that is based on an outdated binding.
	if from, found, _ := unstructured.NestedString(patch, "metadata", "resourceVersion"); found && from != b.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(p.GetResource().GroupResource(), p.Name, errors.New("it has changed"))
	}
	spec, _, _ := unstructured.NestedMap(patch, "spec")
	for field, value := range spec {
		if err := unstructured.SetNestedField(b.Object, value, "spec", field); err != nil {
			return true, nil, err
		}
	}
	if finalizers, found, _ := unstructured.NestedStringSlice(patch, "metadata", "finalizers"); found {
		b.SetFinalizers(finalizers)
		if len(finalizers) == 0 && b.GetDeletionTimestamp() != nil {
			return true, b, client.Tracker().Delete(p.GetResource(), p.GetNamespace(), p.Name)
		}
	}
	b.SetGeneration(b.GetGeneration() + 1)
	b.SetResourceVersion(strconv.FormatInt(b.GetGeneration(), 10))
	return true, b, client.Tracker().Update(p.GetResource(), b, p.GetNamespace())
}

// deleteFinalized deletes a binding as a server does: one with a finalizer is only marked.
func deleteFinalized(client *dynamicfake.FakeDynamicClient, d clienttesting.DeleteActionImpl) (bool, runtime.Object, error) {
	live, err := client.Tracker().Get(d.GetResource(), d.GetNamespace(), d.Name)
	if err != nil {
		return true, nil, err
	}
	b := live.(*unstructured.Unstructured).DeepCopy()
	if len(b.GetFinalizers()) == 0 {
		return false, nil, nil
	}
	if b.GetDeletionTimestamp() != nil {
		return true, b, nil
	}
	now := metav1.Now()
	b.SetDeletionTimestamp(&now)
	b.SetGeneration(b.GetGeneration() + 1)
	return true, b, client.Tracker().Update(d.GetResource(), b, d.GetNamespace())
}

// bindings returns all bindings, cluster-scoped ones first.
func bindings(t *testing.T, client *dynamicfake.FakeDynamicClient) []unstructured.Unstructured {
	t.Helper()
	var out []unstructured.Unstructured
	for _, gvr := range []schema.GroupVersionResource{v1alpha1.ClusterResourceBindingResource, v1alpha1.ResourceBindingResource} {
		list, err := client.Resource(gvr).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
		out = append(out, list.Items...)
	}
	return out
}

// decided waits until the bindings are as wanted, one per line: name, clusters with shares, and
// in brackets the users.
func decided(t *testing.T, client *dynamicfake.FakeDynamicClient, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = ""
		for _, item := range bindings(t, client) {
			b := &v1alpha1.ResourceBinding{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, b); err != nil {
				t.Fatal(err)
			}
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
		if got == strings.TrimLeft(want, "\n") {
			return
		}
	}
	t.Fatalf("decided\n%s\nwant%s", got, want)
}

const everything = `
configmap-conf: east, west [{ Deployment web}]
deployment.apps-web: east 2, west 1
service-web: east, west [{ Deployment web}]
`

func TestAppIsPlaced(t *testing.T) {
	decided(t, begin(t, clusters+app), everything)
}

func TestDependenciesFollow(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	deployments := client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("shop")
	// The Deployment now needs the other ConfigMap. The Service still selects its pods.
	patch := `{"spec":{"replicas":5,"template":{"spec":{"containers":[{"name":"c","image":"i","envFrom":[{"configMapRef":{"name":"unused"}}]}]}}}}`
	if _, err := deployments.Patch(context.Background(), "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	decided(t, client, `
configmap-unused: east, west [{ Deployment web}]
deployment.apps-web: east 3, west 2
service-web: east, west [{ Deployment web}]
`)
	if err := deployments.Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	decided(t, client, "\n")
	configMaps := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("shop")
	if _, err := configMaps.Get(context.Background(), "unused", metav1.GetOptions{}); apierrors.IsNotFound(err) {
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
rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get]}]
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
serviceaccount-operator: east, west [{ Deployment operator}]
`

// TestClusterScopedObjectsFollow: a service account brings its roles along, and these the types
// that they refer to, whichever object names the other.
func TestClusterScopedObjectsFollow(t *testing.T) {
	client := begin(t, clusters+operator)
	crd := "customresourcedefinition.apiextensions.k8s.io-widgets.example.com"
	decided(t, client, operates)
	deployments := client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("shop")
	if err := deployments.Delete(context.Background(), "operator", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	decided(t, client, `
`+crd+`: east, west
`)
}

func TestClusterLeaves(t *testing.T) {
	client := begin(t, clusters+app)
	decided(t, client, everything)
	api := client.Resource(v1alpha1.ClusterResource)
	patch := `{"metadata":{"deletionTimestamp":"2026-01-03T00:00:00Z","finalizers":["fleet.atoll.dev/leave"]}}`
	if _, err := api.Patch(context.Background(), "east", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	decided(t, client, `
configmap-conf: west [{ Deployment web}]
deployment.apps-web: west 3
service-web: west [{ Deployment web}]
`)
}

// TestConditionIsSetAfterBindingIsSeen: after a binding is created, nothing else is written to
// it until the scheduler sees it; then its condition is set.
func TestConditionIsSetAfterBindingIsSeen(t *testing.T) {
	kinds := map[schema.GroupVersionResource]string{v1alpha1.ResourceBindingResource: "ResourceBindingList"}
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.Unstructured{}, nil
	})
	s := &scheduler{Session: &fleet.Session{Dynamic: client, Clock: clock.RealClock{}, Events: record.NewFakeRecorder(10)}}
	k, _ := interpret.Find(schema.GroupKind{Group: "apps", Kind: "Deployment"})
	web := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "shop", "uid": "d"}}}
	p := bindingUpdate{shares: []v1alpha1.ClusterShare{{Name: "east", Reason: "Scheduled"}},
		condition: metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}}
	verbs := func() (out []string) {
		for _, a := range client.Actions() {
			out = append(out, a.GetVerb()+" "+a.GetSubresource())
		}
		return out
	}
	if err := s.write(t.Context(), k, web, nil, p); err != nil {
		t.Fatal(err)
	}
	if got := verbs(); !slices.Equal(got, []string{"create "}) {
		t.Fatalf("created with the requests %q", got)
	}
	b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "deployment.apps-web", UID: "b"}}
	b.Spec = v1alpha1.ResourceBindingSpec{Clusters: p.shares,
		Resource: v1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Resource: "deployments"}}
	if err := s.write(t.Context(), k, web, b, p); err != nil {
		t.Fatal(err)
	}
	if got := verbs(); !slices.Equal(got, []string{"create ", "patch status"}) {
		t.Errorf("after it was seen, the requests are %q", got)
	}
}
