package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

const shops = `
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: ns-shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: empty, uid: ns-empty, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: default, uid: ns-default, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other, uid: ns-other}
`

// namespaceBindings returns the bindings of Namespaces, with the overrides of each cluster.
func namespaceBindings(t *testing.T, c *control) string {
	t.Helper()
	var out []string
	for _, b := range c.bindings(t) {
		if b.Spec.Resource.Kind != "Namespace" {
			continue
		}
		line := b.Spec.Resource.Name + ":"
		for _, share := range b.Spec.Clusters {
			line += " " + share.Name
			if share.Reason == ReasonNamespaceObjects {
				line += " by objects"
			}
			for _, i := range share.Overrides {
				for _, patch := range b.Spec.Overrides[i].JSONPatch {
					line += " " + patch.Path[strings.LastIndex(patch.Path, "/")+1:]
				}
			}
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func expectNamespaces(t *testing.T, c *control, want ...string) {
	t.Helper()
	fakeapi.Eventually(t, "the bindings of Namespaces", func() error {
		if got := namespaceBindings(t, c); got != strings.Join(want, "\n") {
			return fmt.Errorf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
		return nil
	})
	agreesWithPreview(t, c)
}

const placedNamespaces = `apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: namespaces, uid: cp}
spec:
  selector: {kinds: [Namespace]}
  namespaceSelector: {matchLabels: {team: a}}
  clusters: {names: [east]}
  overrides: [{clusters: {names: [west]}, jsonPatch: [{op: add, path: /metadata/labels/zone, value: w}]}]`

// TestNamespacesArePlaced: a ClusterPlacement that names the kind places Namespaces, empty ones too, and its overrides
// apply wherever they are.
func TestNamespacesArePlaced(t *testing.T) {
	c := begin(t, clusters+shops+"\n---\n"+placedNamespaces)
	expectNamespaces(t, c, "empty: east", "shop: east")
	create(t, c, strings.TrimPrefix(app, "\n---\n"))
	expectNamespaces(t, c, "empty: east", "shop: east west by objects zone")

	// A Cluster that joins gets them, if it matches.
	c.Merge(v1alpha1.ClusterPlacementResource, "", "namespaces", `{"spec":{"clusters":null,"mode":"Duplicated"}}`)
	expectNamespaces(t, c, "empty: east west zone", "shop: east west zone")
	create(t, c, north)
	expectNamespaces(t, c, "empty: east west zone north", "shop: east west zone north")

	// Labels choose the Namespaces, and one that is not selected any more has no binding.
	c.Merge(namespaceResource, "", "other", `{"metadata":{"labels":{"team":"a"}}}`)
	c.Merge(namespaceResource, "", "empty", `{"metadata":{"labels":{"team":"b"}}}`)
	expectNamespaces(t, c, "other: east west zone north", "shop: east west zone north")

	// So has a Namespace that is deleted.
	c.Delete(namespaceResource, "", "other")
	expectNamespaces(t, c, "shop: east west zone north")
	c.Delete(v1alpha1.ClusterPlacementResource, "", "namespaces")
	expectNamespaces(t, c)
}

// TestNamespacesAreOverridden: policies of overrides alone write bindings for the clusters with objects of a Namespace.
func TestNamespacesAreOverridden(t *testing.T) {
	c := begin(t, clusters+shops+app+`
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: all-clusters, uid: all, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {selector: {kinds: [Namespace]}, overrides: [{clusters: {names: [east]}, jsonPatch: [{op: add, path: /metadata/labels/wide, value: x}]}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: shop, uid: one}
spec: {selector: {kinds: [Namespace], names: [shop]}, overrides: [{clusters: {names: [east]}, jsonPatch: [{op: add, path: /metadata/labels/narrow, value: x}]}]}
---
`+webInWest)
	// The objects are in west, where nothing is overridden.
	fakeapi.Until(t, "the objects are in west", func() bool { return placed(t, c)["shop/Deployment web west"] == "3" })
	expectNamespaces(t, c)
	c.Merge(v1alpha1.PlacementResource, "shop", "web", `{"spec":{"clusters":{"names":["east"]}}}`)
	expectNamespaces(t, c, "shop: east by objects wide narrow")
	c.Delete(v1alpha1.ClusterPlacementResource, "", "all-clusters")
	expectNamespaces(t, c, "shop: east by objects narrow")
	c.Merge(v1alpha1.PlacementResource, "shop", "web", `{"spec":{"clusters":{"names":["west"]}}}`)
	expectNamespaces(t, c)
}

// TestNamespaceKeepsPlacement: with onDeletion Keep, a Namespace stays where a deleted policy placed it.
func TestNamespaceKeepsPlacement(t *testing.T) {
	c := begin(t, clusters+shops+"\n---\n"+strings.Replace(placedNamespaces, "clusters: {names: [east]}", "clusters: {names: [west]}\n  onDeletion: Keep", 1))
	expectNamespaces(t, c, "empty: west zone", "shop: west zone")
	c.Delete(v1alpha1.ClusterPlacementResource, "", "namespaces")
	fakeapi.Eventually(t, "the binding knows that the policy is gone", func() error {
		b := &v1alpha1.ResourceBinding{}
		c.Read(v1alpha1.ClusterResourceBindingResource, "", "namespace-empty", b)
		if b.Spec.Policy == nil || !strings.Contains(b.Spec.Policy.Why, "deleted") {
			return fmt.Errorf("%+v", b.Spec.Policy)
		}
		return nil
	})
	expectNamespaces(t, c, "empty: west zone", "shop: west zone")
}

// TestNamespaceIsReleased: while clusters have a Namespace, the binding of a deleted one stays, without its policy.
func TestNamespaceIsReleased(t *testing.T) {
	c := begin(t, clusters+shops+"\n---\n"+placedNamespaces)
	expectNamespaces(t, c, "empty: east", "shop: east")
	b := &v1alpha1.ResourceBinding{}
	c.Read(v1alpha1.ClusterResourceBindingResource, "", "namespace-empty", b)
	report := func(edit func(*v1alpha1.ResourceBinding)) { c.changeBinding(t, b, edit) }
	report(func(b *v1alpha1.ResourceBinding) {
		b.Status.Clusters = []v1alpha1.ClusterState{{Name: "east", UID: "u", Health: v1alpha1.Healthy, LastUpdateTime: metav1.Now()}}
	})
	c.Delete(namespaceResource, "", "empty")
	fakeapi.Until(t, "the binding is deleted", func() bool {
		b := &v1alpha1.ResourceBinding{}
		c.Read(v1alpha1.ClusterResourceBindingResource, "", "namespace-empty", b)
		return b.DeletionTimestamp != nil && len(b.Spec.Clusters) == 1
	})
	report(func(b *v1alpha1.ResourceBinding) { b.Status.Clusters = nil })
	expectNamespaces(t, c, "shop: east")
}

// TestPoliciesOfNamespaces: what a policy of Namespaces cannot do is in its condition.
func TestPoliciesOfNamespaces(t *testing.T) {
	for name, tt := range map[string]struct {
		spec, status, words string
	}{
		"placed":         {`{selector: {kinds: [Namespace], names: [shop]}}`, "True", "in effect"},
		"all":            {`{selector: {kinds: [Namespace]}}`, "True", "the Namespaces of Kubernetes and Atoll are not placed"},
		"kube-system":    {`{selector: {kinds: [Namespace], names: [kube-system]}}`, "False", "Namespace kube-system is not placed"},
		"some of them":   {`{selector: {kinds: [Namespace], names: [default, shop]}}`, "True", "but Namespace default is not placed"},
		"of Atoll":       {`{selector: {kinds: [Namespace], names: [atoll-system]}}`, "False", "Namespace atoll-system is not placed"},
		"an image":       {`{selector: {kinds: [Namespace]}, overrides: [{images: [{registry: r}]}]}`, "False", "spec.overrides[0].images"},
		"the spec":       {`{selector: {kinds: [Namespace, Deployment]}, overrides: [{jsonPatch: [{op: add, path: /spec/x, value: 1}]}]}`, "False", "spec.overrides[0].jsonPatch[0].path"},
		"of Deployments": {`{selector: {kinds: [Namespace, Deployment]}, overrides: [{kinds: [Deployment], jsonPatch: [{op: add, path: /spec/x, value: 1}]}, {images: [{registry: r}]}]}`, "True", "in effect"},
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters+shops+"\n---\n"+"apiVersion: fleet.atoll.dev/v1alpha1\nkind: ClusterPlacement\nmetadata: {name: p, uid: p}\nspec: "+tt.spec)
			fakeapi.Eventually(t, "the condition", func() error {
				p := &v1alpha1.ClusterPlacement{}
				c.Read(v1alpha1.ClusterPlacementResource, "", "p", p)
				a := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
				if a == nil || string(a.Status) != tt.status || !strings.Contains(a.Message, tt.words) {
					return fmt.Errorf("%+v", a)
				}
				return nil
			})
		})
	}
}

// TestPreviewOfNamespaces: a preview shows the Namespaces that appear and go.
func TestPreviewOfNamespaces(t *testing.T) {
	c := begin(t, clusters+shops+"\n---\n"+placedNamespaces)
	expectNamespaces(t, c, "empty: east", "shop: east")
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.ClusterPlacements[0].Spec.Clusters.Names = []string{"west"}
	moves := s.Moves(s.Snapshot())
	var got []string
	for _, m := range moves {
		got = append(got, fmt.Sprintf("%s %s %s %s>%s", m.Kind, m.Name, m.Cluster, m.Before, m.After))
		if m.After == NoShare && !strings.Contains(m.Why, "it is deleted there if Atoll created it and it is empty") {
			t.Errorf("%+v", m)
		}
	}
	want := []string{"Namespace empty east whole>-", "Namespace empty west ->whole (1 override)", "Namespace shop east whole>-", "Namespace shop west ->whole (1 override)"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNamespaceClusters compares the counts with a recount after each of many changes.
func TestNamespaceClusters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	n, now := newNamespaceClusters(), map[types.NamespacedName][]string{}
	recount := func(namespace string) (out []string) {
		for key, clusters := range now {
			if key.Namespace == namespace {
				out = append(out, clusters...)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	for range 5000 {
		key := types.NamespacedName{Namespace: fmt.Sprint("n", r.IntN(3)), Name: fmt.Sprint(r.IntN(4))}
		var clusters []string
		for _, name := range []string{"a", "b", "c"} {
			if r.IntN(3) == 0 {
				clusters = append(clusters, name)
			}
		}
		before := recount(key.Namespace)
		now[key] = clusters
		changed := n.set(key, clusters)
		after := recount(key.Namespace)
		if changed != !slices.Equal(before, after) || !slices.Equal(n.of(key.Namespace), after) {
			t.Fatalf("%v: %v to %v: changed %v, and %v", key, before, after, changed, n.of(key.Namespace))
		}
	}
}
