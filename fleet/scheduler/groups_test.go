package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// inNamespaces repeats manifests in many namespaces: objects that are placed apart are together by chance
// in some of them.
func inNamespaces(manifests string) (all string, namespaces []string) {
	for i := range 6 {
		ns := fmt.Sprintf("n%d", i)
		all += "\n---\n" + strings.TrimSpace(strings.ReplaceAll(manifests, "NS", ns))
		namespaces = append(namespaces, ns)
	}
	return all, namespaces
}

func pod(name, more, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: NS, uid: p-%[1]s-NS, labels: {app: %[1]s}%s}\nspec: {containers: [{name: c, image: i}]%s}", name, more, spec)
}

func deployment(name string, replicas int, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: %s, namespace: NS, uid: d-%[1]s-NS}\nspec: {replicas: %[2]d, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: i}]%[3]s}}}", name, replicas, spec)
}

func claim(name, mode string) string {
	return fmt.Sprintf("\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s, namespace: NS, uid: c-%[1]s-NS}\nspec: {accessModes: [%s]}", name, mode)
}

func mounts(claim string) string {
	return fmt.Sprintf(", volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}]", claim)
}

const (
	ownedByTrain  = ", ownerReferences: [{apiVersion: example.com/v1, kind: Train, name: t, uid: t, controller: true}]"
	requiresCache = ", affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone, labelSelector: {matchLabels: {app: cache}}}]}}"
)

// together waits until the objects of each namespace are in one cluster, and returns it by namespace.
func together(t *testing.T, c *control, namespaces []string, objects ...string) map[string]string {
	t.Helper()
	in := map[string]string{}
	fakeapi.Eventually(t, strings.Join(objects, ", ")+" are in one cluster", func() error {
		clear(in)
		for _, ns := range namespaces {
			for _, name := range objects {
				where := clustersOf(t, c, ns, name)
				if where == "" || strings.Contains(where, " ") || in[ns] != "" && in[ns] != where {
					return fmt.Errorf("%s: %s is in %q, and the others in %q", ns, name, where, in[ns])
				}
				in[ns] = where
			}
		}
		return nil
	})
	return maps.Clone(in)
}

func clustersOf(t *testing.T, c *control, namespace, binding string) string {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, namespace, binding)
	if u == nil {
		return ""
	}
	return strings.Join(clusterNames(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters), " ")
}

// agreesWithPreview fails if a preview would change something that the scheduler has decided.
func agreesWithPreview(t *testing.T, c *control) {
	t.Helper()
	fakeapi.Eventually(t, "a preview has no moves", func() error {
		s, err := Load(t.Context(), c.Dynamic(), time.Now())
		if err != nil {
			return err
		}
		if moves := s.Moves(s.Snapshot()); len(moves) > 0 {
			return fmt.Errorf("%+v", moves)
		}
		return nil
	})
}

func scheduledMessage(t *testing.T, c *control, namespace, binding string) (status, message string) {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, namespace, binding)
	if u == nil {
		return "", ""
	}
	for _, condition := range as[v1alpha1.ResourceBinding](t, u).Status.Conditions {
		if condition.Type == v1alpha1.BindingScheduled {
			return string(condition.Status), condition.Message
		}
	}
	return "", ""
}

func reports(t *testing.T, c *control, namespace, binding, status string, words ...string) {
	t.Helper()
	fakeapi.Eventually(t, fmt.Sprintf("%s is %s with %q", binding, status, words), func() error {
		got, message := scheduledMessage(t, c, namespace, binding)
		for _, word := range words {
			if !strings.Contains(message, word) {
				return errors.New(message)
			}
		}
		if got != status {
			return errors.New(got + ": " + message)
		}
		return nil
	})
}

func put(t *testing.T, c *control, manifests string, namespaces ...string) {
	t.Helper()
	for _, ns := range namespaces {
		for _, u := range parse(t, strings.ReplaceAll(manifests, "NS", ns)) {
			c.Put(u)
		}
	}
}

// TestGroupsAreTogether: what belongs together is in one cluster, members that come later as well, and what
// moves one of them moves all.
func TestGroupsAreTogether(t *testing.T) {
	for name, tt := range map[string]struct {
		objects, later string
		first, all     []string
	}{
		"an owner": {pod("a", ownedByTrain, ""), pod("b", ownedByTrain, "") + pod("c", ownedByTrain, ""), []string{"pod-a"}, []string{"pod-a", "pod-b", "pod-c"}},
		"a claim": {claim("x", "ReadWriteOnce") + pod("a", "", mounts("x")), deployment("b", 5, mounts("x")) + pod("c", "", mounts("x")),
			[]string{"pod-a"}, []string{"pod-a", "deployment.apps-b", "pod-c", "persistentvolumeclaim-x"}},
		"a claim that comes last": {pod("a", "", mounts("x")) + deployment("b", 5, mounts("x")), claim("x", "ReadWriteOncePod"),
			nil, []string{"pod-a", "deployment.apps-b", "persistentvolumeclaim-x"}},
		"affinity": {pod("cache", "", ""), deployment("a", 4, requiresCache) + pod("b", "", requiresCache), []string{"pod-cache"}, []string{"pod-cache", "deployment.apps-a", "pod-b"}},
		"names":    {pod("a", "", ", subdomain: peers"), pod("b", "", ", subdomain: peers"), []string{"pod-a"}, []string{"pod-a", "pod-b"}},
		"a label": {pod("a", "", ""), strings.ReplaceAll(pod("b", "", ""), "app: b", "fleet.atoll.dev/group: g") + strings.ReplaceAll(pod("c", "", ""), "app: c", "fleet.atoll.dev/group: g"),
			nil, []string{"pod-b", "pod-c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, namespaces := inNamespaces(tt.objects)
			c := begin(t, clusters+"\n---\n"+north+all)
			if tt.first != nil {
				together(t, c, namespaces, tt.first...)
			}
			put(t, c, tt.later, namespaces...)
			in := together(t, c, namespaces, tt.all...)
			agreesWithPreview(t, c)
			// A drain moves all, or none if there is a volume.
			from := in["n0"]
			s, err := Load(t.Context(), c.Dynamic(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			for _, cluster := range s.Clusters {
				if cluster.Name == from {
					cluster.Spec.Taints = []v1alpha1.Taint{{Key: "drain", Effect: v1alpha1.TaintNoExecute}}
				}
			}
			for _, m := range s.Moves(s.Snapshot()) {
				if m.After != NoShare && (m.Cluster != from || strings.Contains(name, "claim")) && m.Kind == "Pod" && !strings.Contains(m.Why, "; with its group: ") && m.Name != "a" {
					t.Errorf("a move without its group: %+v", m)
				}
			}
			c.Merge(v1alpha1.ClusterResource, "", from, `{"spec":{"taints":[{"key":"drain","effect":"NoExecute"}]}}`)
			if strings.Contains(name, "claim") {
				reports(t, c, "n0", tt.all[0], "True", "on "+from)
				u := as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "n0", tt.all[0]))
				fakeapi.Until(t, "its binding has the reason why it stays", func() bool {
					u = as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "n0", tt.all[0]))
					return u.Spec.Clusters[0].Reason == "KeptWithoutAlternative"
				})
			} else {
				fakeapi.Until(t, "it moves", func() bool { return clustersOf(t, c, "n0", tt.all[0]) != from })
			}
			together(t, c, namespaces, tt.all...)
			agreesWithPreview(t, c)
		})
	}
}

const inEastAndWest = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: deployment.apps-a, namespace: NS, uid: b1, creationTimestamp: "2026-01-01T00:00:00Z", finalizers: [fleet.atoll.dev/binding]}
spec: {resource: {apiVersion: apps/v1, kind: Deployment, name: a, uid: d-a-NS}, clusters: [{name: east, replicas: 2}, {name: west, replicas: 2}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ResourceBinding
metadata: {name: persistentvolumeclaim-x, namespace: NS, uid: b2, finalizers: [fleet.atoll.dev/binding]}
spec: {resource: {apiVersion: v1, kind: PersistentVolumeClaim, name: x, uid: c-x-NS}, clusters: [{name: east, reason: Required}, {name: west, reason: Required}]}
`

// TestGroupsWait: an object that cannot go where its group is waits, and its condition reports why.
func TestGroupsWait(t *testing.T) {
	const limits = `{"spec":{"limits":{"cpu":"%d"}}}`
	cpu := strings.NewReplacer("image: i", "image: i, resources: {requests: {cpu: 1}}")
	labelled := func(object, cluster string) string {
		return strings.Replace(object, "metadata: {", "metadata: {labels: {fleet.atoll.dev/cluster: "+cluster+"}, ", 1)
	}
	for name, tt := range map[string]func(t *testing.T){
		"a volume stays until its claim is deleted": func(t *testing.T) {
			c := begin(t, clusters+strings.ReplaceAll(claim("x", "ReadWriteOnce")+pod("a", "", mounts("x")), "NS", "n0"))
			from := together(t, c, []string{"n0"}, "pod-a", "persistentvolumeclaim-x")["n0"]
			to := map[string]string{"east": "west", "west": "east"}[from]
			c.Merge(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "n0", "a", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"`+to+`"}}}`)
			reports(t, c, "n0", "pod-a", "False", to+": lacks the volume of claim x, which is in "+from+": to start elsewhere with an empty volume, delete the claim")
			if in := together(t, c, []string{"n0"}, "pod-a", "persistentvolumeclaim-x")["n0"]; in != from {
				t.Errorf("it moved to %s", in)
			}
			c.Delete(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, "n0", "x")
			fakeapi.Until(t, "it moves", func() bool { return clustersOf(t, c, "n0", "pod-a") == to })
		},
		"a cordoned cluster": func(t *testing.T) {
			c := begin(t, clusters+strings.ReplaceAll(pod("a", ownedByTrain, ""), "NS", "n0"))
			in := together(t, c, []string{"n0"}, "pod-a")["n0"]
			c.Merge(v1alpha1.ClusterResource, "", in, `{"spec":{"unschedulable":true}}`)
			fakeapi.Until(t, "the scheduler knows", func() bool {
				b := as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "n0", "pod-a"))
				return b.Spec.Clusters[0].Reason == "KeptWhileUnschedulable"
			})
			put(t, c, pod("b", ownedByTrain, ""), "n0")
			reports(t, c, "n0", "pod-b", "False", in+": unschedulable", "does not run its group, which is in "+in+" with Pod a")
			c.Merge(v1alpha1.ClusterResource, "", in, `{"spec":{"unschedulable":null}}`)
			together(t, c, []string{"n0"}, "pod-a", "pod-b")
		},
		"room for all": func(t *testing.T) {
			all, namespaces := inNamespaces(cpu.Replace(pod("a", ownedByTrain, "") + pod("b", ownedByTrain, "") + pod("c", ownedByTrain, "")))
			c := newControl(t, clusters)
			c.Merge(v1alpha1.ClusterResource, "", "east", fmt.Sprintf(limits, 2))
			c.Merge(v1alpha1.ClusterResource, "", "west", fmt.Sprintf(limits, 15))
			for _, u := range parse(t, all) {
				c.Put(u)
			}
			c.start(t, Config{})
			fakeapi.Eventually(t, "five are whole in west, and one waits", func() error {
				whole, waiting := 0, 0
				for _, ns := range namespaces {
					switch clustersOf(t, c, ns, "pod-a") + clustersOf(t, c, ns, "pod-b") + clustersOf(t, c, ns, "pod-c") {
					case "westwestwest":
						whole++
					case "":
						waiting++
					}
				}
				if whole != 5 || waiting != 1 {
					return fmt.Errorf("%d and %d", whole, waiting)
				}
				return nil
			})
		},
		"a label moves all": func(t *testing.T) {
			grouped := ", annotations: {a: b}"
			manifests := strings.NewReplacer("app: a", "fleet.atoll.dev/group: g", "app: b", "fleet.atoll.dev/group: g").Replace(pod("a", grouped, "") + pod("b", grouped, ""))
			c := begin(t, clusters+strings.ReplaceAll(manifests, "NS", "n0"))
			from := together(t, c, []string{"n0"}, "pod-a", "pod-b")["n0"]
			to := map[string]string{"east": "west", "west": "east"}[from]
			c.Merge(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "n0", "b", `{"metadata":{"labels":{"fleet.atoll.dev/cluster":"`+to+`"}}}`)
			fakeapi.Until(t, "both move", func() bool {
				return clustersOf(t, c, "n0", "pod-a") == to && clustersOf(t, c, "n0", "pod-b") == to
			})
			agreesWithPreview(t, c)
		},
		"two divided objects": func(t *testing.T) {
			manifests := deployment("cache", 2, "") + deployment("web", 9, requiresCache) + `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: cache, namespace: NS, uid: p}
spec: {selector: {names: [cache]}, clusters: {names: [west, north]}}`
			c := begin(t, clusters+"\n---\n"+north+strings.ReplaceAll(manifests, "NS", "n0"))
			fakeapi.Until(t, "web is where the cache is", func() bool {
				return clustersOf(t, c, "n0", "deployment.apps-cache") == "west north" && clustersOf(t, c, "n0", "deployment.apps-web") == "west north"
			})
			agreesWithPreview(t, c)
		},
		"claims in two clusters": func(t *testing.T) {
			manifests := labelled(claim("x", "ReadWriteOnce"), "east") + labelled(claim("w", "ReadWriteOnce"), "west") + pod("a", "", `, volumes: [{name: v, persistentVolumeClaim: {claimName: x}}, {name: w, persistentVolumeClaim: {claimName: w}}]`)
			c := newControl(t, clusters)
			for _, u := range parse(t, strings.ReplaceAll(manifests, "NS", "n0"))[:2] {
				c.Put(u)
			}
			c.start(t, Config{})
			fakeapi.Until(t, "the claims are placed", func() bool {
				return clustersOf(t, c, "n0", "persistentvolumeclaim-x") == "east" && clustersOf(t, c, "n0", "persistentvolumeclaim-w") == "west"
			})
			put(t, c, pod("a", "", `, volumes: [{name: v, persistentVolumeClaim: {claimName: x}}, {name: w, persistentVolumeClaim: {claimName: w}}]`), "n0")
			reports(t, c, "n0", "pod-a", "False", "does not have all of its claims: east has x, west has w")
		},
		"nothing leaves its data": func(t *testing.T) {
			manifests := claim("x", "ReadWriteOnce") + deployment("a", 5, mounts("x")) + inEastAndWest
			c := begin(t, clusters+strings.ReplaceAll(manifests, "NS", "n0"))
			fakeapi.Until(t, "five replicas", func() bool {
				b := as[v1alpha1.ResourceBinding](t, c.Get(v1alpha1.ResourceBindingResource, "n0", "deployment.apps-a"))
				return len(b.Spec.Clusters) == 2 && *b.Spec.Clusters[0].Replicas+*b.Spec.Clusters[1].Replicas == 5
			})
			if in := clustersOf(t, c, "n0", "persistentvolumeclaim-x"); in != "east west" {
				t.Error(in)
			}
		},
		"the condition explains it": func(t *testing.T) {
			c := begin(t, clusters+strings.ReplaceAll(claim("x", "ReadWriteOnce")+deployment("a", 5, mounts("x")), "NS", "n0"))
			reports(t, c, "n0", "deployment.apps-a", "True", "; not divided: the claim x that it mounts is one volume, in one cluster")
		},
		"policies are more explicit than an owner": func(t *testing.T) {
			manifests := labelled(pod("z", "", ""), "west") + pod("a", ownedByTrain, "") + strings.Replace(pod("b", ownedByTrain, ""), "app: b", "role: worker", 1) + `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: workers, namespace: NS, uid: p}
spec: {selector: {labelSelector: {matchLabels: {role: worker}}}, clusters: {names: [west]}}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: heads, namespace: NS, uid: p2}
spec: {selector: {labelSelector: {matchLabels: {app: a}}}, clusters: {names: [east]}}`
			c := begin(t, clusters+strings.ReplaceAll(manifests, "NS", "n0"))
			fakeapi.Until(t, "each where its policy wants it", func() bool {
				return clustersOf(t, c, "n0", "pod-a") == "east" && clustersOf(t, c, "n0", "pod-b") == "west"
			})
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); tt(t) })
	}
}
