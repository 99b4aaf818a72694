package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// manyInWest returns Deployments that a policy for all of them first places in west, and then in any cluster.
func manyInWest(n int) (manifests string) {
	for i := range n {
		manifests += fmt.Sprintf("\n---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web-%[1]d, namespace: shop, uid: web-%[1]d}, spec: {replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}}\n", i)
	}
	return manifests + policyOf("one", `selector: {kinds: [Deployment]}, mode: Single, clusters: {names: [west]}`)
}

// runIn records in the bindings that a cluster runs their objects, as its syncer does.
func (c *control) runIn(t *testing.T, cluster string) {
	t.Helper()
	for _, b := range c.bindings(t) {
		c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
			b.Status.Clusters = []v1alpha1.ClusterState{{Name: cluster, UID: "u", Health: v1alpha1.Healthy}}
		})
	}
}

// leavingWest returns the objects that are leaving west, and removeOne removes the first of them from there.
func leavingWest(t *testing.T, c *control) (names []string) {
	for _, b := range c.bindings(t) {
		if _, there := b.State("west"); there && slices.Contains(departing(b), "west") {
			names = append(names, b.Name)
		}
	}
	return names
}

func removeOne(t *testing.T, c *control) {
	t.Helper()
	leaving := leavingWest(t, c)
	if len(leaving) == 0 {
		return
	}
	for _, b := range c.bindings(t) {
		if b.Name == leaving[0] {
			c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) { b.Status.Clusters = nil })
		}
	}
}

// draining waits for a reason of the condition Draining of west, and for words of its message.
func draining(t *testing.T, c *control, status metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	fakeapi.Eventually(t, "west is "+reason, func() error {
		is := clusterCondition(c, "west", v1alpha1.ClusterDraining)
		if is == nil || is.Status != status || is.Reason != reason {
			return fmt.Errorf("condition %+v", is)
		}
		for _, w := range words {
			if !strings.Contains(is.Message, w) {
				return fmt.Errorf("message %q lacks %q", is.Message, w)
			}
		}
		return nil
	})
}

// explained checks that an explanation of each object has the reason of its recorded decision.
func explained(t *testing.T, c *control) {
	t.Helper()
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Placed {
		b, snap := s.bindings[p.Key()], s.Snapshot()
		snap.Turn = RecordedTurn(b)
		if a := snap.Schedule(p.Kind, p.Object, b); len(a.Shares) != 1 || a.Shares[0].Reason != b.Spec.Clusters[0].Reason || a.Shares[0].Message != b.Spec.Clusters[0].Message {
			t.Errorf("%s is explained by %+v, and decided is %+v", b.Name, a.Shares, b.Spec.Clusters)
		}
	}
}

// TestDrain: objects leave a drained cluster, so many at a time, also when another server leads. One that has no other
// cluster stays. A pause stops the others, and without spec.drain the condition is gone.
func TestDrain(t *testing.T) {
	const n, most = 8, 2
	c := newControl(t, threeClusters+manyInWest(n))
	atMost := func() {
		t.Helper()
		if leaving := leavingWest(t, c); len(leaving) > most {
			t.Fatalf("%d objects are leaving: %v", len(leaving), leaving)
		}
	}
	t.Run("the first leader", func(t *testing.T) {
		c.start(t, Config{})
		placedInWest := func() bool {
			for i := range n {
				if reasonsOf(c, fmt.Sprintf("deployment.apps-web-%d", i)) != "west=Scheduled " {
					return false
				}
			}
			return true
		}
		fakeapi.Until(t, "placed", placedInWest)
		c.runIn(t, "west")
		for _, u := range parse(t, policyOf("one", `selector: {kinds: [Deployment]}, mode: Single`)+policyOf("only", `selector: {names: [web-0]}, mode: Single, clusters: {names: [west]}`)) {
			c.Put(u)
		}
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"drain":{"rate":100,"maxInFlight":2}}}`)
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDraining, "8 objects are left: 2 leaving, 5 wait for their turn, 1 cannot leave", "Deployment shop/web-0: no other cluster can take it", "east: the policy does not select it")
		atMost()
		kept := 0
		for i := range n {
			if reasonsOf(c, fmt.Sprintf("deployment.apps-web-%d", i)) == "west="+placement.ReasonKeptUntilItsTurn+" " {
				kept++
			}
		}
		if kept != n-1-most {
			t.Errorf("%d objects wait for their turn", kept)
		}
		explained(t, c)
		removeOne(t, c)
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDraining, "7 objects are left: 2 leaving, 4 wait")
		atMost()
	})
	t.Run("the next leader", func(t *testing.T) {
		c.start(t, Config{})
		removeOne(t, c)
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDraining, "6 objects are left: 2 leaving, 3 wait")
		atMost()
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"drain":{"paused":true}}}`)
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDrainPaused, "2 leaving, ", "wait until spec.drain is not paused")
		removeOne(t, c)
		removeOne(t, c)
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDrainPaused, "0 leaving, 4 wait")
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"drain":{"paused":null}}}`)
		fakeapi.Until(t, "all but one have left", func() bool {
			atMost()
			removeOne(t, c)
			is := clusterCondition(c, "west", v1alpha1.ClusterDraining)
			return is != nil && is.Reason == v1alpha1.ReasonDrainBlocked
		})
		draining(t, c, metav1.ConditionTrue, v1alpha1.ReasonDrainBlocked, "1 object is left: 0 leaving, 0 wait")
		agreesWithPreview(t, c)
		c.Delete(v1alpha1.PlacementResource, "shop", "only")
		fakeapi.Until(t, "it leaves too", func() bool { return len(leavingWest(t, c)) == 1 })
		removeOne(t, c)
		draining(t, c, metav1.ConditionFalse, v1alpha1.ReasonDrained, "no object is left")
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"drain":{"rate":50}}}`)
		fakeapi.Until(t, "the condition is about the changed drain", func() bool {
			return clusterCondition(c, "west", v1alpha1.ClusterDraining).ObservedGeneration == c.Get(v1alpha1.ClusterResource, "", "west").GetGeneration()
		})
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"drain":null}}`)
		fakeapi.Until(t, "the condition is gone", func() bool { return clusterCondition(c, "west", v1alpha1.ClusterDraining) == nil })
	})
}

// TestFailoverRate: objects leave an unreachable cluster at spec.failover.rate, and a preview shows all of them.
func TestFailoverRate(t *testing.T) {
	const n, rate = 8, 5
	c := begin(t, threeClusters+manyInWest(n))
	fakeapi.Until(t, "placed", func() bool { return len(c.bindings(t)) == n })
	for _, u := range parse(t, policyOf("one", `selector: {kinds: [Deployment]}, mode: Single`)) {
		c.Put(u)
	}
	var mu sync.Mutex
	var last time.Time
	moved := 0
	c.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Verb == "patch" && r.Resource.Resource == "resourcebindings" && r.Subresource == "" {
			mu.Lock()
			defer mu.Unlock()
			last, moved = time.Now(), moved+1
		}
		return nil
	})
	c.Merge(v1alpha1.ClusterResource, "", "west", `{"spec":{"failover":{"rate":5}}}`)
	failed := time.Now()
	c.fail("west", v1alpha1.ReasonClusterUnreachable, "1s", failed.Add(-time.Hour))
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	left := 0 // some have moved already
	for _, b := range s.bindings {
		if _, in := b.Share("west"); in {
			left++
		}
	}
	if from := slices.DeleteFunc(s.Moves(s.Snapshot()), func(m Move) bool { return m.Cluster != "west" }); len(from) != left {
		t.Errorf("a preview shows %d objects that leave, of %d", len(from), left)
	}
	fakeapi.Until(t, "all have left", func() bool {
		for i := range n {
			if at := reasonsOf(c, fmt.Sprintf("deployment.apps-web-%d", i)); strings.Contains(at, "west") || at == "" {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	if least := time.Duration(float64(n-1) / rate * float64(time.Second)); last.Sub(failed) < least {
		t.Errorf("%d objects have left within %s, at %d a second", n, last.Sub(failed), rate)
	}
}

// TestDrainProgress has the objects that a drain does not wait for, and those that cannot leave.
func TestDrainProgress(t *testing.T) {
	binding := func(name, reason string, edit func(*v1alpha1.ResourceBinding)) *v1alpha1.ResourceBinding {
		b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1alpha1.ResourceBindingSpec{
			Resource: v1alpha1.ObjectReference{Kind: "Deployment", Name: name}, Policy: &v1alpha1.PolicyReference{}}}
		if reason != "" {
			b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "west", Reason: reason, Message: "keeps its share because no other cluster can take it"}}
		}
		if edit != nil {
			edit(b)
		}
		return b
	}
	runs := func(b *v1alpha1.ResourceBinding) { b.Status.Clusters = []v1alpha1.ClusterState{{Name: "west"}} }
	follower := func(b *v1alpha1.ResourceBinding) { b.Spec.Policy = nil }
	onItsWay := func(b *v1alpha1.ResourceBinding) {
		b.Spec.Transition, b.Spec.Goal = &v1alpha1.Transition{}, []v1alpha1.ClusterShare{{Name: "east"}}
	}
	all := []*v1alpha1.ResourceBinding{
		binding("done", placement.ReasonKeptFinished, nil), binding("data", ReasonKeptData, follower), binding("follower", ReasonRequired, follower),
	}
	if c := progressOf("west", all).condition(false); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonDrained || !strings.Contains(c.Message, "1 finished object stays") || !strings.Contains(c.Message, "1 object with data stays") {
		t.Errorf("%+v", c)
	}
	all = append(all, binding("suspended", "", func(b *v1alpha1.ResourceBinding) { runs(b); b.Spec.Suspend = true }),
		binding("planned", placement.ReasonChosen, func(b *v1alpha1.ResourceBinding) { b.Status.Proposal = &v1alpha1.BindingProposal{} }),
		binding("invalid", placement.ReasonChosen, func(b *v1alpha1.ResourceBinding) {
			meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionFalse, Reason: ReasonPolicyInvalid, Message: strings.Repeat("long ", 1000)})
		}))
	for i := range 3 {
		all = append(all, binding(fmt.Sprint("stuck-", i), placement.ReasonKeptNoAlternative, nil))
	}
	c := progressOf("west", all).condition(false)
	if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonDrainBlocked || len(c.Message) > 1500 || !strings.Contains(c.Message, "and 1 more") ||
		!strings.Contains(c.Message, "shop/planned: waits for a plan") || !strings.Contains(c.Message, "shop/stuck-0: no other cluster can take it") {
		t.Errorf("%+v", c)
	}
	all = append(all, binding("gone", "", runs), binding("moving", placement.ReasonChosen, onItsWay), binding("next", placement.ReasonKeptUntilItsTurn, nil))
	if c := progressOf("west", all).condition(false); c.Reason != v1alpha1.ReasonDraining || !strings.Contains(c.Message, "9 objects are left: 2 leaving, 1 wait for their turn, 6 cannot leave") {
		t.Errorf("%+v", c)
	}
	if c := progressOf("west", all).condition(true); c.Reason != v1alpha1.ReasonDrainPaused {
		t.Errorf("%+v", c)
	}
	for name, b := range map[string]*v1alpha1.ResourceBinding{"": binding("a", placement.ReasonChosen, runs), "west": binding("b", placement.ReasonChosen, onItsWay), "west ": binding("c", "", runs)} {
		if got := departing(b); strings.Join(got, " ") != strings.TrimSpace(name) {
			t.Errorf("%s is leaving %v", b.Name, got)
		}
	}
}
