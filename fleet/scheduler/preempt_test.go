package scheduler

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const priorityClasses = `---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high, uid: h}, value: 1000}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: middle, uid: m}, value: 10}
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: patient, uid: n}, value: 1000, preemptionPolicy: Never}
`

// ofClass returns a Deployment with a PriorityClass whose pods request so much CPU.
func ofClass(name, class string, replicas int, cpu string) string {
	return strings.ReplaceAll(requesting(name, replicas, cpu), "spec: {containers", "spec: {priorityClassName: "+class+", containers")
}

// preemptionOf returns the room that is made for a Deployment in namespace shop, or nil.
func preemptionOf(t *testing.T, c *control, name string) *v1alpha1.Preemption {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-"+name)
	if u == nil {
		return nil
	}
	return as[v1alpha1.ResourceBinding](t, u).Spec.Preemption
}

func (c *control) sharesBecome(t *testing.T, name, want string) {
	t.Helper()
	is := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", name, is)
		}
	})
	fakeapi.Until(t, name+" is in "+want, func() bool { is = sharesOf(t, c, "shop", "deployment.apps-"+name); return is == want })
}

// reportUsed sets the node of a cluster, with eight CPUs. So many are free, and ten pods use the others.
func reportUsed(c *control, cluster, free string) {
	c.Merge(v1alpha1.ClusterResource, "", cluster, fmt.Sprintf(`{"status":{"nodeShapes":{"shapes":[{"count":1,"allocatable":{"cpu":"8","pods":"110"},"free":{"cpu":"%s","pods":"100"}}]}}}`, free))
}

// hasEvent reports whether an object of namespace shop has an event with a reason and a text in its message.
func hasEvent(t *testing.T, c *control, object, reason, text string) bool {
	t.Helper()
	list, err := c.Dynamic().Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		name, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
		message, _ := e.Object["message"].(string)
		if name == object && e.Object["reason"] == reason && strings.Contains(message, text) {
			return true
		}
	}
	return false
}

// full starts a scheduler over two clusters with four free CPUs each, and gives all of them to low.
func full(t *testing.T) *control {
	t.Helper()
	c := begin(t, clusters+priorityClasses)
	reportUsed(c, "east", "4")
	reportUsed(c, "west", "4")
	awaitNodes(t, c, "6")
	create(t, c, requesting("low", 8, "1"))
	c.sharesBecome(t, "low", "east 4, west 4")
	fakeapi.Until(t, "the scheduler knows the binding", func() bool { return scheduledOf(t, c, "low") != nil })
	reportUsed(c, "east", "0")
	reportUsed(c, "west", "0")
	return c
}

// TestPreemption: replicas of a lower priority leave for those of a waiting object, as few as suffice. Both objects say
// why, and the victims do not return. A preview foretells it.
func TestPreemption(t *testing.T) {
	c := full(t)
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	high := parse(t, ofClass("high", "high", 3, "1"))[0]
	if err := unstructured.SetNestedField(high.Object, int64(3), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	k, _ := s.Kind(high.GroupVersionKind().GroupKind())
	s.Placed = append(s.Placed, Placed{k, high})
	ofDeployments := func() map[string]string {
		out := placed(t, c)
		maps.DeleteFunc(out, func(place, _ string) bool { return !strings.HasPrefix(place, "shop/Deployment") })
		return out
	}
	want := applyMoves(t, ofDeployments(), s.Moves(s.Snapshot()))
	create(t, c, ofClass("high", "high", 3, "1"))
	fakeapi.Until(t, "high is placed", func() bool { return strings.Count(sharesOf(t, c, "shop", "deployment.apps-high"), " ") > 0 })
	fakeapi.Until(t, "it happens as foretold", func() bool { return maps.Equal(ofDeployments(), want) })
	p := preemptionOf(t, c, "high")
	if p == nil || p.Priority != 1000 {
		t.Fatalf("the preemption is %+v", p)
	}
	left := int32(0)
	for _, v := range p.Victims {
		left += *v.Replicas
	}
	if left != 3 {
		t.Errorf("%d replicas left for 3: %v", left, p.Victims)
	}
	fakeapi.Until(t, "low waits with the reason", func() bool {
		s := scheduledOf(t, c, "low")
		return s.Reason == "ReplicasUnplaced" && strings.Contains(s.Message, "makes room for Deployment shop/high (priority 1000)")
	})
	fakeapi.Until(t, "events tell both", func() bool {
		return hasEvent(t, c, "low", "Preempted", "and make room for Deployment shop/high (priority 1000)") && hasEvent(t, c, "high", "Preempting", "replicas of Deployment.apps shop/low in ")
	})
	agreesWithPreview(t, c)
	// The victims' pods are gone before those of high exist: none of the room goes back.
	reportUsed(c, "east", "3")
	reportUsed(c, "west", "3")
	caughtUp(t, c)
	if is := ofDeployments(); !maps.Equal(is, want) {
		t.Errorf("%v became %v", want, is)
	}
}

// TestNoPreemption: objects with preemptionPolicy Never, or without a higher priority, make no others leave; nor does
// one for which all of them make no room.
func TestNoPreemption(t *testing.T) {
	c := full(t)
	never := strings.ReplaceAll(ofClass("template", "high", 1, "1"), "priorityClassName: high,", "priorityClassName: high, preemptionPolicy: Never,")
	for _, manifest := range []string{requesting("equal", 1, "1"), ofClass("patient", "patient", 1, "1"), never, ofClass("huge", "high", 1, "7")} {
		create(t, c, manifest)
	}
	for _, name := range []string{"equal", "patient", "template", "huge"} {
		fakeapi.Until(t, name+" is decided", func() bool { return scheduledOf(t, c, name) != nil })
	}
	caughtUp(t, c)
	for _, name := range []string{"equal", "patient", "template", "huge"} {
		if p := preemptionOf(t, c, name); p != nil {
			t.Errorf("%s makes others leave: %v", name, p.Victims)
		}
	}
	if is := sharesOf(t, c, "shop", "deployment.apps-low"); is != "east 4, west 4" {
		t.Errorf("low is in %s", is)
	}
	agreesWithPreview(t, c)
}

// TestPreemptionAwaitsSyncers: an object comes only when the syncers of its victims have written their shares, and is
// alone in taking that room. If the leader changes meanwhile, no further victims leave.
func TestPreemptionAwaitsSyncers(t *testing.T) {
	c := full(t)
	entry := func(cluster string, replicas int) string {
		return fmt.Sprintf(`{"name":"%s","uid":"x","replicas":%d,"health":"Healthy","lastUpdateTime":"2026-01-01T00:00:00Z"}`, cluster, replicas)
	}
	report := func(name, entries string) {
		c.Merge(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-"+name, `{"status":{"clusters":[`+entries+`]}}`)
	}
	report("low", entry("east", 4)+","+entry("west", 4))
	create(t, c, ofClass("high", "high", 2, "1"))
	fakeapi.Until(t, "victims are chosen", func() bool { return preemptionOf(t, c, "high") != nil })
	before := preemptionOf(t, c, "high")
	fakeapi.Until(t, "low makes room", func() bool { return sharesOf(t, c, "shop", "deployment.apps-low") != "east 4, west 4" })
	cluster := before.Victims[0].Cluster
	if len(before.Victims) != 1 || *before.Victims[0].Replicas != 2 {
		t.Fatalf("the victims are %v", before.Victims)
	}
	// Another leader goes on from there. Others of lower priority do not take the room.
	c.start(t, Config{})
	create(t, c, ofClass("middle", "middle", 1, "3"))
	create(t, c, requesting("other", 2, "1"))
	fakeapi.Until(t, "others are decided", func() bool { return scheduledOf(t, c, "other") != nil && scheduledOf(t, c, "middle") != nil })
	caughtUp(t, c)
	if is := preemptionOf(t, c, "high"); !is.Time.Equal(&before.Time) || len(is.Victims) != 1 || sharesOf(t, c, "shop", "deployment.apps-high") != "" {
		t.Errorf("the preemption is %+v, and high is in %q", is, sharesOf(t, c, "shop", "deployment.apps-high"))
	}
	reportUsed(c, cluster, "2")
	caughtUp(t, c)
	if is := sharesOf(t, c, "shop", "deployment.apps-other"); is != "" {
		t.Errorf("other is in %s", is)
	}
	other := map[string]string{"east": "west", "west": "east"}[cluster]
	report("low", entry(cluster, 2)+","+entry(other, 4))
	c.sharesBecome(t, "high", cluster+" 2")
	// When high is healthy, low may return.
	report("high", entry(cluster, 2))
	fakeapi.Until(t, "the preemption ends", func() bool { return preemptionOf(t, c, "high") == nil })
}

// TestPreemptionOfWholeObjects: an object that one cluster runs leaves as a whole and goes where it fits; one with
// volumes of its own stays, and so does one whose budget permits no disruption, while another object suffices.
func TestPreemptionOfWholeObjects(t *testing.T) {
	single := func(name string) string {
		return fmt.Sprintf("apiVersion: fleet.atoll.dev/v1alpha1\nkind: Placement\nmetadata: {name: %[1]s, namespace: shop, uid: p-%[1]s}\nspec: {selector: {names: [%[1]s]}, mode: Single, clusters: {names: [east]}}", name)
	}
	c := begin(t, clusters+priorityClasses+"---\n"+single("high")+"\n---\n"+strings.Replace(single("guarded"), "names: [east]", "names: [east, west]", 1)+"\n---\n"+strings.Replace(single("free"), "names: [east]", "names: [east, west]", 1)+`
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guarded, namespace: shop, uid: b}
spec: {maxUnavailable: 0, selector: {matchLabels: {app: guarded}}}
status: {disruptionsAllowed: 0}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: data, namespace: shop, uid: p-data}
spec: {selector: {names: [data]}, clusters: {names: [east]}}
`)
	reportUsed(c, "east", "6")
	reportUsed(c, "west", "0")
	awaitNodes(t, c, "7")
	create(t, c, `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: data, namespace: shop, uid: data}
spec:
  replicas: 2
  volumeClaimTemplates: [{metadata: {name: v}}]
  template: {metadata: {labels: {app: data}}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}}`)
	fakeapi.Until(t, "data is placed", func() bool { return clustersOf(t, c, "shop", "statefulset.apps-data") == "east" })
	create(t, c, requesting("free", 2, "1"))
	fakeapi.Until(t, "free is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-free") == "east" })
	create(t, c, requesting("guarded", 2, "1"))
	fakeapi.Until(t, "guarded is placed", func() bool { return clustersOf(t, c, "shop", "deployment.apps-guarded") == "east" })
	for _, name := range []string{"free", "guarded"} {
		fakeapi.Until(t, "the scheduler knows the binding of "+name, func() bool { return scheduledOf(t, c, name) != nil })
	}
	reportUsed(c, "east", "0")
	reportUsed(c, "west", "4")
	awaitNodes(t, c, "5")
	create(t, c, ofClass("high", "high", 1, "1"))
	fakeapi.Until(t, "high is in the east", func() bool { return clustersOf(t, c, "shop", "deployment.apps-high") == "east" })
	fakeapi.Until(t, "free is in the west", func() bool { return clustersOf(t, c, "shop", "deployment.apps-free") == "west" })
	for name, is := range map[string]string{"guarded": clustersOf(t, c, "shop", "deployment.apps-guarded"), "data": clustersOf(t, c, "shop", "statefulset.apps-data")} {
		if is != "east" {
			t.Errorf("%s is in %q", name, is)
		}
	}
	// The next one needs the room of guarded; after that, only data is left, which stays.
	c.putInOrder(t, strings.Replace(single("higher"), "p-higher", "p2", 1))
	create(t, c, ofClass("higher", "high", 1, "2"))
	fakeapi.Until(t, "higher is in the east", func() bool { return clustersOf(t, c, "shop", "deployment.apps-higher") == "east" })
	agreesWithPreview(t, c)
}

// TestPreemptionsAreBounded: only some objects make room at the same time, and an object for which none can is not
// examined again at once.
func TestPreemptionsAreBounded(t *testing.T) {
	p := newPreemptions()
	now := time.Now()
	o := object{}
	n := 0
	for range 5 {
		if p.attempt(o, now) == 0 && p.allow(3, now) {
			n += 3
		}
	}
	if n != 9 {
		t.Errorf("%d objects make room at once", n)
	}
	if later := now.Add(time.Minute); p.attempt(o, later) != 0 || !p.allow(100, later) || p.allow(1, later) {
		t.Error("many victims of one object take all that is allowed")
	}
	p.fail(o, now)
	if again := p.attempt(o, now.Add(time.Second)); again != retryInterval-time.Second {
		t.Errorf("it is examined again in %s", again)
	}
}
