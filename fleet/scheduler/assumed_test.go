package scheduler

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// avoiding returns a Deployment that no other one of its kind may be with.
func avoiding(name string) string {
	return fmt.Sprintf(`
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s, namespace: shop, uid: %[1]s, labels: {alone: "yes"}}, spec: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}
`, name)
}

// alone places each Deployment in a cluster of its own.
var alone = policyOf("alone", `mode: Single, workloadAntiAffinity: [{labelSelector: {matchLabels: {alone: "yes"}}}]`)

// inClusters waits until so many objects have a decision, and returns the clusters of each.
func (c *control) inClusters(t *testing.T, n int) map[string]string {
	t.Helper()
	var in map[string]string
	fakeapi.Until(t, fmt.Sprint(n, " decisions are stored"), func() bool {
		in = map[string]string{}
		for _, b := range c.bindings(t) {
			in[b.Spec.Resource.Name] = describe(b.Spec.Clusters)
		}
		return len(in) == n
	})
	return in
}

// TestDecisionsCountBeforeTheirEvents: objects that avoid each other are applied at the same moment, and no decision comes back by
// the watch before the others are made.
func TestDecisionsCountBeforeTheirEvents(t *testing.T) {
	c := begin(t, threeClusters+alone)
	release := c.Hold(v1alpha1.ResourceBindingResource)
	for _, name := range []string{"a", "b", "c", "d"} {
		c.Put(parse(t, avoiding(name))[0])
	}
	in := c.inClusters(t, 4)
	var all []string
	for _, clusters := range in {
		all = append(all, clusters)
	}
	slices.Sort(all)
	if want := []string{"east", "no cluster", "south", "west"}; !slices.Equal(all, want) {
		t.Errorf("while no event of a binding arrives, four objects that avoid each other are in %v", in)
	}
	release()
}

// onCreate has the API answer requests that create the binding of an object. If the answer is nil, the binding is created.
func (c *control) onCreate(name string, answer func(binding map[string]any) *apierrors.StatusError) {
	c.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if of, _, _ := unstructured.NestedString(r.Object, "spec", "resource", "name"); r.Verb != "create" || of != name {
			return nil
		}
		if err := answer(r.Object); err != nil {
			return &err.ErrStatus
		}
		return nil
	})
}

// rejectLater has the API reject the creation of a binding while a condition holds. The first request is announced, and
// waits until it may be answered.
func (c *control) rejectLater(name string, while func() bool) (requested <-chan struct{}, answer chan<- struct{}) {
	first, proceed := make(chan struct{}), make(chan struct{})
	announce := sync.OnceFunc(func() { close(first) })
	c.onCreate(name, func(map[string]any) *apierrors.StatusError {
		announce()
		<-proceed
		if !while() {
			return nil
		}
		return apierrors.NewForbidden(v1alpha1.ResourceBindingResource.GroupResource(), name, errors.New("not now"))
	})
	return first, proceed
}

// TestRejectedDecisionDoesNotCount: an object waits because of another one whose decision is then rejected, and gets its cluster.
func TestRejectedDecisionDoesNotCount(t *testing.T) {
	c := begin(t, strings.Split(threeClusters, "---")[0]+"\n---\n"+alone)
	rejected := atomic.Bool{}
	decided, reject := c.rejectLater("a", func() bool { return !rejected.Load() })
	c.Put(parse(t, avoiding("a"))[0])
	<-decided
	c.Put(parse(t, avoiding("b"))[0])
	if in := c.inClusters(t, 1); in["b"] != "no cluster" {
		t.Errorf("while the decision about a is being written, b is in %v", in)
	}
	close(reject)
	fakeapi.Until(t, "b is in the cluster that a did not get", func() bool { return c.inClusters(t, 1)["b"] == "east" })
	rejected.Store(true)
	fakeapi.Until(t, "a waits", func() bool { in := c.inClusters(t, 2); return in["a"] == "no cluster" && in["b"] == "east" })
	c.Delete(deployments, "shop", "b")
	fakeapi.Until(t, "a follows b", func() bool { return c.inClusters(t, 1)["a"] == "east" })
}

// TestNoDecisionWithoutTheLastOne: an object whose binding the cache does not have yet is not decided again, which would free its
// room and fail.
func TestNoDecisionWithoutTheLastOne(t *testing.T) {
	c := begin(t, threeClusters+alone)
	requests := atomic.Int32{}
	c.onCreate("a", func(map[string]any) *apierrors.StatusError {
		requests.Add(1)
		return nil
	})
	release := c.Hold(v1alpha1.ResourceBindingResource)
	c.Put(parse(t, avoiding("a"))[0])
	at := c.inClusters(t, 1)["a"]
	c.Merge(v1alpha1.ClusterResource, "", at, `{"spec":{"unschedulable":true}}`)
	c.Merge(deployments, "shop", "a", `{"metadata":{"annotations":{"changed":"yes"}}}`)
	c.Put(parse(t, avoiding("b"))[0])
	if in := c.inClusters(t, 2); in["b"] == at || in["b"] == "no cluster" {
		t.Errorf("they are in %v", in)
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("the binding of a was created with %d requests", n)
	}
	release()
	fakeapi.Until(t, "the condition of a is set", func() bool {
		return slices.Contains(c.Writes(), "apply resourcebindings/status shop/deployment.apps-a")
	})
}

// TestPreemptionsKnowEachOther: two objects that wait at the same moment do not make the same replicas leave.
func TestPreemptionsKnowEachOther(t *testing.T) {
	c := full(t)
	release := c.Hold(v1alpha1.ResourceBindingResource)
	defer release()
	for _, name := range []string{"first", "second"} {
		c.Put(parse(t, ofClass(name, "high", 3, "1"))[0])
	}
	left := map[string]int32{"east": 4, "west": 4}
	for _, name := range []string{"first", "second"} {
		fakeapi.Until(t, name+" has room made", func() bool { return preemptionOf(t, c, name) != nil })
		for _, v := range preemptionOf(t, c, name).Victims {
			left[v.Cluster] = min(left[v.Cluster], v.Left)
		}
	}
	if left["east"]+left["west"] != 2 {
		t.Errorf("of eight replicas %v are left by preemptions for twice three: %+v, %+v", left, preemptionOf(t, c, "first"), preemptionOf(t, c, "second"))
	}
}

// TestRejectedDecisionTakesNoRoom: an object waits for the room of another one whose decision is then rejected, and gets it.
func TestRejectedDecisionTakesNoRoom(t *testing.T) {
	c := begin(t, strings.Split(threeClusters, "---")[0])
	reportUsed(c, "east", "4")
	awaitNodes(t, c, "6")
	decided, reject := c.rejectLater("a", func() bool { return true })
	c.Put(parse(t, requesting("a", 4, "1"))[0])
	<-decided
	c.Put(parse(t, requesting("b", 4, "1"))[0])
	fakeapi.Until(t, "b waits", func() bool {
		is := scheduledOf(t, c, "b")
		return is != nil && strings.Contains(is.Message, "no room")
	})
	close(reject)
	c.sharesBecome(t, "b", "east 4")
}

// TestNewLeaderAssumesNothing: a decision that may be stored counts until its leader ends.
func TestNewLeaderAssumesNothing(t *testing.T) {
	c := newControl(t, strings.Split(threeClusters, "---")[0]+"\n---\n"+alone+avoiding("a"))
	tries := make(chan struct{}, 100)
	c.onCreate("a", func(map[string]any) *apierrors.StatusError {
		select {
		case tries <- struct{}{}:
		default:
		}
		return apierrors.NewTimeoutError("the outcome is unknown", 0)
	})
	stop := c.lead(t)
	<-tries
	c.Put(parse(t, avoiding("b"))[0])
	<-tries // the answer to the first one has arrived
	if in := c.inClusters(t, 1); in["b"] != "no cluster" {
		t.Errorf("while a may be stored, b is in %v", in)
	}
	stop()
	c.Delete(deployments, "shop", "a")
	c.lead(t)
	fakeapi.Until(t, "b is placed by the next leader", func() bool { return c.inClusters(t, 1)["b"] == "east" })
}

// TestStoredWithoutAnswer: a decision that was stored without an answer counts, although the next tries find that it exists.
func TestStoredWithoutAnswer(t *testing.T) {
	c := begin(t, threeClusters+alone)
	release := c.Hold(v1alpha1.ResourceBindingResource)
	tries := atomic.Int32{}
	c.onCreate("a", func(binding map[string]any) *apierrors.StatusError {
		if tries.Add(1) > 1 {
			return nil
		}
		c.Put(binding)
		return apierrors.NewTimeoutError("the outcome is unknown", 0)
	})
	c.Put(parse(t, avoiding("a"))[0])
	fakeapi.Until(t, "a is tried again, twice", func() bool { return tries.Load() > 2 })
	c.Put(parse(t, avoiding("b"))[0])
	if in := c.inClusters(t, 2); in["a"] == in["b"] || in["b"] == "no cluster" {
		t.Errorf("a was stored, and they are in %v", in)
	}
	release()
	fakeapi.Until(t, "the condition of a is set", func() bool {
		return slices.Contains(c.Writes(), "apply resourcebindings/status shop/deployment.apps-a")
	})
}

// TestEventThatNeverComes: a binding that was removed while the watch was interrupted is read, and no longer counts. Until then a
// late event is awaited without a request.
func TestEventThatNeverComes(t *testing.T) {
	c := newControl(t, threeClusters)
	reads := atomic.Int32{}
	c.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "get" && r.Resource == v1alpha1.ResourceBindingResource {
			reads.Add(1)
		}
		return nil
	})
	session, err := fleet.NewSession(t.Context(), fleet.Config{REST: c.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s := newScheduler(session, Config{})
	defer s.queue.ShutDown()
	a := object{schema.GroupKind{Group: "apps", Kind: "Deployment"}, types.NamespacedName{Namespace: "shop", Name: "a"}}
	written := revisionOf("u", "10", 1, "east")
	reconcile := func(since time.Time) (assumed bool) {
		t.Helper()
		s.assumed.decide(a.binding(), nil, written, since)
		s.assumed.wrote(a.binding(), written, since)
		if err := s.reconcile(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		_, assumed = s.assumed.Get(a.binding())
		return assumed
	}
	if !reconcile(time.Now()) || reads.Load() != 0 {
		t.Errorf("a moment after the write, the event is not awaited, or the binding is read: %d", reads.Load())
	}
	if reconcile(time.Now().Add(-eventTimeout)) || reads.Load() != 1 || s.queue.Len() != 1 {
		t.Errorf("long after the write, a binding that does not exist counts, or its object is not decided again: %d requests, %d objects", reads.Load(), s.queue.Len())
	}
	release := c.Hold(v1alpha1.ResourceBindingResource)
	defer release()
	written.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "ResourceBinding"}
	written.Spec.Resource = v1alpha1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "a", UID: "a"}
	written = as[v1alpha1.ResourceBinding](t, c.Put(written))
	if !reconcile(time.Now().Add(-eventTimeout)) {
		t.Error("a binding that exists no longer counts because its event is late")
	}
}
