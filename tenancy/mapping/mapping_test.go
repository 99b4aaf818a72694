package mapping_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/tenancy/mapping"
)

var team = mapping.Child{Name: "team", UID: "uid-of-team"}

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	out := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &out.Object); err != nil {
		t.Fatal(err)
	}
	for _, field := range [][]string{{"metadata", "generation"}, {"status", "observedGeneration"}} { // YAML has floats
		if f, ok, _ := unstructured.NestedFieldNoCopy(out.Object, field...); ok {
			if err := unstructured.SetNestedField(out.Object, int64(f.(float64)), field...); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

func kindOf(t *testing.T, u *unstructured.Unstructured) interpret.KindInfo {
	t.Helper()
	k, known := interpret.Find(u.GroupVersionKind().GroupKind())
	if !known {
		t.Fatalf("%s is not in the table", u.GetKind())
	}
	return k
}

// TestNamespaceNames: no two namespaces of any children get the same name, and each is a valid one.
func TestNamespaceNames(t *testing.T) {
	for want, of := range map[string][2]string{"team--shop": {"team", "shop"}, "team-a--default": {"team-a", "default"}, "a--kube-node-test": {"a", "kube-node-test"}} {
		if got := (mapping.Child{Name: of[0]}).Namespace(of[1]); got != want {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
	long := strings.Repeat("x", 63)
	names := []string{"a", "b", "a--b", "b--c", "c", "a-b", "b-c", long, long[:62], "a--" + long[:50], "x-" + long[:61]}
	seen := map[string]string{}
	for _, child := range names {
		for _, namespace := range names {
			name := mapping.Child{Name: child}.Namespace(namespace)
			if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
				t.Errorf("%s: %v", name, problems)
			}
			if other, twice := seen[name]; twice {
				t.Errorf("%s is the name for %s and for %s %s", name, other, child, namespace)
			}
			seen[name] = child + " " + namespace
		}
	}
}

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, uid: u1, generation: 4, resourceVersion: "9", finalizers: [x.example.com/y],
  ownerReferences: [{apiVersion: example.com/v1, kind: App, name: a, uid: o}], labels: {app: web, tenancy.atoll.dev/child: other},
  annotations: {note: text, kubectl.kubernetes.io/last-applied-configuration: "{}"}},
  spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}, status: {replicas: 1}}`

// TestCopy: a copy has the user's content, no identity of its source, and the marks of its workspace.
func TestCopy(t *testing.T) {
	source := object(t, deployment)
	copied, err := team.Copy(kindOf(t, source), source)
	if err != nil {
		t.Fatal(err)
	}
	if copied.GetNamespace() != "team--shop" || copied.GetUID() != "" || copied.GetResourceVersion() != "" || copied.GetFinalizers() != nil || copied.GetOwnerReferences() != nil || copied.Object["status"] != nil {
		t.Errorf("%v", copied.Object)
	}
	if name, uid := mapping.ChildOf(copied); name != "team" || uid != "uid-of-team" || copied.GetLabels()["app"] != "web" {
		t.Errorf("the labels are %v", copied.GetLabels())
	}
	annotations := copied.GetAnnotations()
	if annotations["note"] != "text" || len(annotations) != 4 || annotations[v1alpha1.SourceUIDAnnotation] != "u1" || annotations[v1alpha1.SourceGenerationAnnotation] != "4" {
		t.Errorf("the annotations are %v", annotations)
	}
	if n, _, _ := unstructured.NestedFieldNoCopy(copied.Object, "spec", "replicas"); fmt.Sprint(n) != "2" {
		t.Errorf("%v replicas", n)
	}
	// A new status or resource version changes no copy.
	source.SetResourceVersion("10")
	source.Object["status"] = map[string]any{"replicas": int64(2)}
	again, err := team.Copy(kindOf(t, source), source)
	if err != nil || again.GetAnnotations()[v1alpha1.SourceDigestAnnotation] != annotations[v1alpha1.SourceDigestAnnotation] {
		t.Errorf("%v %v", again.GetAnnotations(), err)
	}
}

// TestStatus: generations in a status are those of the source.
func TestStatus(t *testing.T) {
	source := object(t, deployment)
	found, err := team.Copy(kindOf(t, source), source)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ observed, want int64 }{"up to date": {12, 4}, "late": {11, 3}} {
		found.SetGeneration(12)
		found.Object["status"] = map[string]any{"replicas": int64(2), "observedGeneration": tt.observed, "conditions": []any{map[string]any{"type": "A", "observedGeneration": tt.observed}}}
		status := mapping.Status(source, found)
		inner := status["conditions"].([]any)[0].(map[string]any)["observedGeneration"]
		if status["observedGeneration"] != tt.want || inner != tt.want || status["replicas"] != int64(2) {
			t.Errorf("%s: %v", name, status)
		}
		if found.Object["status"].(map[string]any)["observedGeneration"] != tt.observed {
			t.Errorf("%s: the copy was changed", name)
		}
	}
	source.SetUID("another")
	if status := mapping.Status(source, found); status != nil {
		t.Errorf("the status of the copy of an earlier object: %v", status)
	}
}

// plan returns the actions for objects of one kind.
func plan(t *testing.T, sources, copies, namespaces, above []*unstructured.Unstructured) []string {
	t.Helper()
	var k interpret.KindInfo
	for _, u := range append(sources, copies...) {
		k = kindOf(t, u)
	}
	s := mapping.State{Child: team, Kinds: []interpret.KindInfo{k}, Sources: map[schema.GroupKind][]*unstructured.Unstructured{k.GroupKind(): sources},
		Copies:     map[schema.GroupKind][]*unstructured.Unstructured{k.GroupKind(): copies},
		Namespaces: map[string]*unstructured.Unstructured{}, ParentNamespaces: map[string]*unstructured.Unstructured{}}
	for _, ns := range namespaces {
		s.Namespaces[ns.GetName()] = ns
	}
	for _, ns := range above {
		s.ParentNamespaces[ns.GetName()] = ns
	}
	actions, err := mapping.Plan(s)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range actions {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", a.Verb, a.Object.GetNamespace(), a.Object.GetName(), a.Why)))
	}
	return out
}

// TestPlan: the actions for one object, in all states of its copy and its namespaces.
func TestPlan(t *testing.T) {
	source := object(t, deployment)
	current, err := team.Copy(kindOf(t, source), source)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(of *unstructured.Unstructured, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		out := of.DeepCopy()
		change(out)
		return out
	}
	annotate := func(key, value string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			annotations := u.GetAnnotations()
			annotations[key] = value
			u.SetAnnotations(annotations)
		}
	}
	shop := object(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop}}`)
	owned := object(t, `{apiVersion: v1, kind: Namespace, metadata: {name: team--shop, labels: {tenancy.atoll.dev/child: team, tenancy.atoll.dev/child-uid: uid-of-team}, annotations: {tenancy.atoll.dev/source-namespace: shop}}}`)
	foreign := object(t, `{apiVersion: v1, kind: Namespace, metadata: {name: team--shop}}`)
	deleted := edit(owned, func(u *unstructured.Unstructured) {
		u.Object["metadata"].(map[string]any)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	})
	all := func(some ...*unstructured.Unstructured) []*unstructured.Unstructured { return some }
	job := object(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: shop, uid: u2, generation: 1}, spec: {template: {spec: {containers: [{name: c, image: i}]}}}, status: {conditions: [{type: Complete, status: "True"}]}}`)
	for name, tt := range map[string]struct {
		sources, copies, namespaces, above []*unstructured.Unstructured
		want                               string
	}{
		"new":                       {sources: all(source), namespaces: all(shop), want: "apply namespace /team--shop, apply team--shop/web"},
		"current":                   {sources: all(source), copies: all(current), namespaces: all(shop), above: all(owned), want: "apply namespace /team--shop"},
		"changed":                   {sources: all(source), copies: all(edit(current, annotate(v1alpha1.SourceDigestAnnotation, "x"))), namespaces: all(shop), above: all(owned), want: "apply namespace /team--shop, apply team--shop/web"},
		"another source":            {sources: all(source), copies: all(edit(current, annotate(v1alpha1.SourceUIDAnnotation, "x"))), namespaces: all(shop), above: all(owned), want: "apply namespace /team--shop, delete team--shop/web"},
		"source deleted":            {copies: all(current), namespaces: all(shop), above: all(owned), want: "delete team--shop/web"},
		"namespace deleted":         {copies: all(current), above: all(owned), want: "delete team--shop/web, delete namespace /team--shop"},
		"foreign namespace":         {sources: all(source), namespaces: all(shop), above: all(foreign), want: "wait team--shop/web namespace team--shop exists in the workspace above and is not that of this workspace: ask an administrator there to remove it, or use another namespace here"},
		"foreign namespace, unused": {copies: all(current), above: all(foreign), want: "delete team--shop/web"},
		"terminating namespace":     {sources: all(source), namespaces: all(shop), above: all(deleted), want: "wait team--shop/web namespace team--shop of the workspace above is being deleted"},
		"status": {sources: all(source), copies: all(edit(current, func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"replicas": int64(2)} })), namespaces: all(shop), above: all(owned),
			want: "apply namespace /team--shop, write status shop/web"},
		"a finished Job": {sources: all(job), namespaces: all(shop), want: "apply namespace /team--shop"},
	} {
		if got := strings.Join(plan(t, tt.sources, tt.copies, tt.namespaces, tt.above), ", "); got != tt.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestKeptBack: objects that belong to the API of the workspace, or to no cluster, are not copied.
func TestKeptBack(t *testing.T) {
	for _, manifest := range []string{
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: shop}}`,
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: kube-system}}`,
		`{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: shop}}`,
		`{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: t, namespace: shop}}`,
		`{apiVersion: v1, kind: Secret, type: fleet.atoll.dev/kubeconfig, metadata: {name: k, namespace: shop}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: kubernetes, namespace: default}}`,
	} {
		if got := plan(t, []*unstructured.Unstructured{object(t, manifest)}, nil, nil, nil); len(got) > 0 {
			t.Errorf("%s: %v", manifest, got)
		}
	}
}
