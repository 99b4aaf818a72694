package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// expectedStep is a change, and the bindings that the scheduler then has: some of them, one per line.
type expectedStep struct {
	put    string // manifests
	merge  string // KIND NAMESPACE/NAME PATCH
	delete string // KIND NAMESPACE/NAME
	want   string
}

// expectedKinds are the kinds of the steps.
func expectedKinds() map[string]schema.GroupVersionResource {
	return map[string]schema.GroupVersionResource{
		"Cluster": v1alpha1.ClusterResource, "Placement": v1alpha1.PlacementResource, "ClusterPlacement": v1alpha1.ClusterPlacementResource,
		"Deployment": deployments, "ConfigMap": configMaps, "Job": {Group: "batch", Version: "v1", Resource: "jobs"},
	}
}

// threeClusters are east and west in the EU, and south.
const threeClusters = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: east, uid: e, creationTimestamp: "2026-01-01T00:00:00Z", labels: {tier: gold, topology.kubernetes.io/region: eu}}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: west, uid: w, creationTimestamp: "2026-01-02T00:00:00Z", labels: {tier: gold, topology.kubernetes.io/region: eu}}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: south, uid: s, creationTimestamp: "2026-01-03T00:00:00Z", labels: {tier: iron, topology.kubernetes.io/region: us}}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`

const (
	webOfThree = `
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, uid: web, labels: {app: web}}, spec: {replicas: 3, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}}
`
	roleOfAll = `
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader, uid: cr}, rules: []}
`
	// fails makes a cluster fail long ago.
	fails = `{"spec":{"evictAfter":"1s"},"status":{"conditions":[{"type":"Ready","status":"False","reason":"ClusterUnreachable","message":"","lastTransitionTime":"2026-01-05T00:00:00Z"}],"lastProbeTime":"2099-01-01T00:00:00Z"}}`
)

// clusterPolicy returns a ClusterPlacement.
func clusterPolicy(name, spec string) string {
	return fmt.Sprintf("---\n{apiVersion: fleet.atoll.dev/v1alpha1, kind: ClusterPlacement, metadata: {name: %[1]s, uid: %[1]s, creationTimestamp: \"2026-01-01T00:00:00Z\"}, spec: {%[2]s}}\n", name, spec)
}

// policyOf returns a Placement in namespace shop.
func policyOf(name, spec string) string {
	return strings.Replace(strings.Replace(clusterPolicy(name, spec), "ClusterPlacement", "Placement", 1), "name: "+name, "namespace: shop, name: "+name, 1)
}

// TestExpected has scenarios that users of other fleets expect, as docs/scenarios.md lists them.
func TestExpected(t *testing.T) {
	const web, role = "shop/deployment.apps-web: ", "clusterrole.rbac.authorization.k8s.io-reader: "
	gold := `selector: {kinds: [Deployment, ClusterRole]}, clusters: {labelSelector: {matchLabels: {tier: gold}}}`
	groups := `selector: {kinds: [Deployment, ClusterRole]}, mode: Single, clusterGroups: [{name: first, clusters: {labelSelector: {matchLabels: {tier: gold}}}}, {name: second, clusters: {names: [south]}}]`
	long := strings.Repeat("long-name-", 12) + "end"
	for name, steps := range map[string][]expectedStep{
		"a cluster loses the label that a policy requires": {
			{put: clusterPolicy("gold", gold) + webOfThree + roleOfAll, want: web + "east 2, west 1; " + role + "east, west"},
			{merge: `Cluster /west {"metadata":{"labels":{"tier":"iron"}}}`, want: web + "east 3; " + role + "east"},
			{merge: `Cluster /south {"metadata":{"labels":{"tier":"gold"}}}`, want: web + "east 2, south 1; " + role + "east, south"},
		},
		"the cluster of the first group no longer matches": {
			// A decision made before the scheduler knows the labels uses the request up. conf follows the label, so it shows when they are known.
			{put: clusterPolicy("groups", groups) + webOfThree + clusterPolicy("seen", `selector: {kinds: [ConfigMap]}, clusters: {labelSelector: {matchLabels: {seen: gold}}}`) +
				"---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: shop, uid: c}}\n",
				merge: `Cluster /west {"metadata":{"labels":{"tier":"iron"}}}`, want: web + "east"},
			{merge: `Cluster /east {"metadata":{"labels":{"tier":"iron"}}}`, want: web + "south"},
			{merge: `Cluster /east {"metadata":{"labels":{"tier":"gold","seen":"gold"}}}`, want: web + "south; shop/configmap-conf: east"},
			{merge: `Deployment shop/web {"metadata":{"annotations":{"fleet.atoll.dev/rebalance":"now"}}}`, want: web + "east"},
		},
		"a set of clusters becomes an order of groups, and back": {
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, mode: Single, clusters: {names: [south]}`) + webOfThree + roleOfAll, want: web + "south; " + role + "south"},
			{put: clusterPolicy("p", strings.ReplaceAll(groups, "names: [south]", "names: [north]")), want: web + "east; " + role + "west"},
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, mode: Single, clusters: {names: [south]}`), want: web + "south; " + role + "south"},
		},
		"a cluster of the first group fails": {
			{put: clusterPolicy("groups", groups) + webOfThree, merge: `Cluster /west {"metadata":{"labels":{"tier":"iron"}}}`, want: web + "east"},
			{merge: "Cluster /east " + fails, want: web + "south"},
		},
		"a limited number of clusters, for a type and a Job": {
			{put: clusterPolicy("two", `selector: {kinds: [CustomResourceDefinition, Job]}, mode: Duplicated, clusterCount: {max: 2}`) + `
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com, uid: crd}, spec: {group: example.com, scope: Namespaced, names: {plural: widgets, kind: Widget}, versions: [{name: v1, served: true, storage: true}]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: sum, namespace: shop, uid: j}, spec: {parallelism: 1, completions: 1, template: {spec: {containers: [{name: c, image: i}]}}}}
`, want: "customresourcedefinition.apiextensions.k8s.io-widgets.example.com: east, south; shop/job.batch-sum: east, south"},
			{merge: `Job shop/sum {"spec":{"parallelism":5,"completions":5}}`, want: "shop/job.batch-sum: east, south"},
		},
		"a policy is edited to allow fewer regions": {
			{put: policyOf("regions", `spread: [{topologyKey: region}]`) + webOfThree, want: web + "east 1, west 1, south 1"},
			{put: policyOf("regions", `spread: [{topologyKey: region, maxGroups: 1}]`), want: web + "east 2, west 1"},
		},
		"whole copies stay when the number of replicas changes": {
			{put: policyOf("all", `mode: Duplicated`) + webOfThree, want: web + "east, west, south"},
			{merge: `Deployment shop/web {"spec":{"replicas":5}}`, want: web + "east, west, south"},
		},
		"labels before everything, among policies of all namespaces": {
			{put: clusterPolicy("all", `clusters: {names: [west]}`) + webOfThree, want: web + "west 3"},
			{put: clusterPolicy("labelled", `selector: {labelSelector: {matchLabels: {app: web}}}, clusters: {names: [east]}`), want: web + "east 3"},
			{put: clusterPolicy("all", `priority: 1, clusters: {names: [west]}`), want: web + "west 3"},
			{put: clusterPolicy("late", `priority: 2, clusters: {names: [south]}`), want: web + "south 3"},
			{put: clusterPolicy("late", `priority: -1, clusters: {names: [south]}`), want: web + "west 3"},
			{delete: "ClusterPlacement /all", want: web + "east 3"},
		},
		"labels before everything, in a namespace": {
			{put: policyOf("all", `clusters: {names: [west]}`) + webOfThree, want: web + "west 3"},
			{put: policyOf("labelled", `selector: {labelSelector: {matchLabels: {app: web}}}, clusters: {names: [east]}`), want: web + "east 3"},
			{put: policyOf("all", `priority: 1, clusters: {names: [west]}`), want: web + "west 3"},
			{put: policyOf("all", `clusters: {names: [west]}`), want: web + "east 3"},
			{delete: "Placement shop/labelled", want: web + "west 3"},
		},
		"a policy with a long name": {
			{put: policyOf(long, `clusters: {names: [west]}`) + webOfThree, want: web + "west 3"},
			{put: clusterPolicy(long, `selector: {kinds: [ClusterRole]}, clusters: {names: [south]}`) + roleOfAll, want: role + "south"},
		},
		"a kind and a name are added to a selector": {
			{put: policyOf("p", `selector: {kinds: [StatefulSet]}, clusters: {names: [west]}`) + webOfThree, want: web + "east 1, west 1, south 1"},
			{put: policyOf("p", `selector: {kinds: [StatefulSet, Deployment]}, clusters: {names: [west]}`), want: web + "west 3"},
			{put: policyOf("p", `selector: {names: [api]}, clusters: {names: [west]}`), want: web + "east 1, west 1, south 1"},
			{put: policyOf("p", `selector: {names: [api, web]}, clusters: {names: [west]}`), want: web + "west 3"},
		},
		"a policy of all namespaces is edited": {
			{put: clusterPolicy("p", `selector: {kinds: [Deployment]}, clusters: {names: [west]}`) + webOfThree + roleOfAll, want: web + "west 3; " + role + "-"},
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, clusters: {names: [west]}`), want: web + "west 3; " + role + "west"},
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, clusters: {names: [south]}`), want: web + "south 3; " + role + "south"},
			{put: `{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: shop, uid: c}}`, want: "shop/configmap-conf: south"},
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, clusters: {names: [south]}, dependencies: Stay`), want: "shop/configmap-conf: -"},
			{put: clusterPolicy("p", `selector: {kinds: [ClusterRole]}, clusters: {names: [south]}`), want: web + "east 1, west 1, south 1; " + role + "south; shop/configmap-conf: east, south, west"},
		},
		"a policy releases an object, and a new one takes it": {
			{put: policyOf("old", `selector: {names: [web]}, clusters: {names: [west]}`) + webOfThree, want: web + "west 3"},
			{put: policyOf("old", `selector: {names: [other]}, clusters: {names: [west]}`), want: web + "east 1, west 1, south 1"},
			{put: policyOf("new", `selector: {names: [web]}, clusters: {names: [south]}`), want: web + "south 3"},
		},
		"a policy of all namespaces is deleted, and a new one takes its objects": {
			{put: clusterPolicy("old", `selector: {kinds: [Deployment, ClusterRole]}, clusters: {names: [west]}, onDeletion: Keep`) + webOfThree + roleOfAll, want: web + "west 3; " + role + "west"},
			{delete: "ClusterPlacement /old", want: web + "west 3; " + role + "west"},
			{put: clusterPolicy("new", `selector: {kinds: [Deployment, ClusterRole]}, clusters: {names: [south]}`), want: web + "south 3; " + role + "south"},
		},
		"dependencies wait with their object": {
			{put: policyOf("nowhere", `clusters: {names: [north]}`) + strings.Replace(webOfThree, "image: i", "image: i, envFrom: [{configMapRef: {name: conf}}]", 1) + `
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: conf, namespace: shop, uid: c}}
`, want: web + "none; shop/configmap-conf: -"},
			{put: policyOf("nowhere", `clusters: {names: [south]}`), want: web + "south 3; shop/configmap-conf: south"},
		},
		"overrides that come later": {
			{put: webOfThree, want: web + "east 1, west 1, south 1"},
			{put: policyOf("labels", `overrides: [{images: [{registry: registry.example.com}]}]`), want: web + "east 1, west 1, south 1 +1"},
		},
		"a cluster joins and leaves": {
			{put: policyOf("all", `mode: Duplicated`) + webOfThree, want: web + "east, west, south"},
			{put: strings.NewReplacer("east", "north", "uid: e", "uid: n").Replace(strings.Split(threeClusters, "---")[0]), want: web + "east, north, west, south"},
			{merge: `Cluster /north {"metadata":{"finalizers":["fleet.atoll.dev/leave"]}}`, delete: "Cluster /north", want: web + "east, west, south"},
		},
		"a role that no placed object needs": {
			{put: clusterPolicy("roles", `selector: {kinds: [ClusterRole]}, clusters: {names: [east, south]}`) + roleOfAll, want: role + "east, south"},
		},
		"workloads avoid others, also of other namespaces": {
			{put: `
---
{apiVersion: v1, kind: Namespace, metadata: {name: batch, labels: {team: data}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: noisy, namespace: batch, uid: b, labels: {tier: noisy, fleet.atoll.dev/cluster: east}}, spec: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: db, namespace: batch, uid: d, labels: {tier: db, fleet.atoll.dev/cluster: south}}, spec: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}
`, want: "batch/deployment.apps-noisy: east 1; batch/deployment.apps-db: south 1"},
			{put: policyOf("away", `workloadAntiAffinity: [{labelSelector: {matchLabels: {tier: noisy}}, namespaces: [batch]}]`) + webOfThree, want: web + "west 1, south 2"},
			{delete: "Deployment shop/web", want: web + "-"},
			{put: policyOf("away", `workloadAffinity: [{labelSelector: {matchLabels: {tier: db}}, namespaceSelector: {matchLabels: {team: data}}}]`) + webOfThree, want: web + "south 3"},
			{delete: "Deployment shop/web", want: web + "-"},
			{put: policyOf("away", `workloadAffinity: [{labelSelector: {matchLabels: {tier: noisy}}, namespaces: [batch]}], workloadAntiAffinity: [{labelSelector: {matchLabels: {tier: noisy}}, namespaces: [batch]}]`) + webOfThree,
				want: web + "none (NoReadyClusters)"},
		},
		"rebalance of objects in few clusters": {
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, clusterCount: {max: 1}, clusters: {names: [south]}`) + webOfThree + roleOfAll, want: web + "south 3; " + role + "south"},
			{put: clusterPolicy("p", `selector: {kinds: [Deployment, ClusterRole]}, clusterCount: {max: 1}, affinity: [{weight: 100, clusters: {names: [east]}}]`), want: web + "south 3; " + role + "south"},
			{merge: `Deployment shop/web {"metadata":{"annotations":{"fleet.atoll.dev/rebalance":"now"}}}`, want: web + "east 3; " + role + "south"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, threeClusters)
			for i, s := range steps {
				s.run(t, c, fmt.Sprint("step ", i+1))
			}
			agreesWithPreview(t, c)
		})
	}
}

func (s expectedStep) run(t *testing.T, c *control, what string) {
	t.Helper()
	if s.merge != "" {
		resource, namespace, name, patch := s.object(t, s.merge)
		c.Merge(resource, namespace, name, patch)
	}
	c.putInOrder(t, s.put)
	if s.delete != "" {
		resource, namespace, name, _ := s.object(t, s.delete)
		c.Delete(resource, namespace, name)
	}
	fakeapi.Eventually(t, what+": "+s.want, func() error {
		var wrong []string
		for _, want := range strings.Split(s.want, "; ") {
			name, shares, _ := strings.Cut(want, ": ")
			if is := c.sharesWithReason(t, name); is != shares && !strings.HasPrefix(is, shares+" (") {
				wrong = append(wrong, name+": "+is)
			}
		}
		if len(wrong) > 0 {
			return errors.New(strings.Join(wrong, "; "))
		}
		return nil
	})
}

// putInOrder is create with policies first.
func (c *control) putInOrder(t *testing.T, manifests string) {
	t.Helper()
	policies, others := []*unstructured.Unstructured{}, []*unstructured.Unstructured{}
	for _, u := range parse(t, manifests) {
		if isPolicy(u) {
			policies = append(policies, u)
		} else {
			others = append(others, u)
		}
	}
	for _, u := range append(policies, others...) {
		c.putKnown(t, u)
	}
}

// object splits KIND NAMESPACE/NAME REST.
func (s expectedStep) object(t *testing.T, text string) (resource schema.GroupVersionResource, namespace, name, rest string) {
	t.Helper()
	parts := strings.SplitN(text, " ", 3)
	resource, known := expectedKinds()[parts[0]]
	if !known {
		t.Fatalf("unknown kind in %q", text)
	}
	namespace, name, _ = strings.Cut(parts[1], "/")
	return resource, namespace, name, strings.Join(parts[2:], "")
}

// sharesWithReason returns the shares of the object of a binding, NAMESPACE/NAME or NAME, in the order of the clusters' names: "-"
// without a binding, and "none (REASON)" if no cluster has it.
func (c *control) sharesWithReason(t *testing.T, name string) string {
	for _, b := range c.bindings(t) {
		if strings.TrimPrefix(b.Namespace+"/"+b.Name, "/") != name {
			continue
		}
		if len(b.Spec.Clusters) == 0 {
			for _, condition := range b.Status.Conditions {
				if condition.Type == v1alpha1.BindingScheduled {
					return "none (" + condition.Reason + ")"
				}
			}
			return "none"
		}
		out := describe(b.Spec.Clusters)
		if n := len(b.Spec.Overrides); n > 0 {
			out += fmt.Sprint(" +", n)
		}
		return out
	}
	return "-"
}
