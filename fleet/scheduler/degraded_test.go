package scheduler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// failsOver has a Deployment in one cluster, preferably east, that leaves a cluster in which it is not Healthy.
func failsOver(settings, rest string) string {
	object := strings.NewReplacer("labels: {fleet.atoll.dev/cluster: east}, ", "", "SETTINGS", settings, "minAvailable: 8", "maxUnavailable: 100%").Replace(ten)
	return clusters + object + webPolicy(`, selector: {kinds: [Deployment]}, applicationFailover: {after: 5m}`+rest)
}

// crash lets at most so many pods be available in a cluster from now on. They are reported as if that began earlier.
func (p *pods) crash(cluster string, most int32, ago time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashing == nil {
		p.crashing = map[string]int32{}
	}
	p.crashing[cluster], p.crashed, p.least = most, ago, most
}

// sawEvent waits for an event of web.
func sawEvent(t *testing.T, c *control, reason, text string) {
	t.Helper()
	fakeapi.Until(t, "event "+reason, func() bool { return hasEvent(t, c, "web", reason, text) })
}

// TestApplicationFailover: an object that is not Healthy in a Ready cluster for too long goes to another one, and leaves
// when that runs it. The binding says what happened, and the cluster is avoided.
func TestApplicationFailover(t *testing.T) {
	c := begin(t, failsOver("", ""))
	p := runPods(t, c, 10)
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	p.crash("east", 4, 0)
	says(t, c, "unless that changes, it leaves the cluster at ")
	if b := webOf(t, c); describe(b.Spec.Clusters) != "east" {
		t.Fatalf("it is in %s too early", describe(b.Spec.Clusters))
	}
	// It recovers, and fails again.
	p.mu.Lock()
	delete(p.crashing, "east")
	p.mu.Unlock()
	fakeapi.Until(t, "it is Healthy", func() bool {
		state, _ := webOf(t, c).State("east")
		return state.Health == v1alpha1.Healthy && state.UnhealthySince == nil
	})
	p.crash("east", 4, 6*time.Minute)
	fakeapi.Until(t, "it runs in west", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"west": 10}) && b.Spec.Transition == nil && b.Status.Transition == nil
	})
	if n := p.fewest(); n < 4 {
		t.Errorf("%d replicas were available at an instant, want the 4 that were left in east", n)
	}
	b := webOf(t, c)
	if len(b.Spec.Avoided) != 1 || b.Spec.Avoided[0].Name != "east" || b.Spec.Avoided[0].Reason != v1alpha1.AvoidedDegraded || b.Spec.Avoided[0].Attempts != 1 || b.Spec.Avoided[0].Until == nil {
		t.Errorf("it avoids %+v", b.Spec.Avoided)
	}
	if got := failoversOf(t, c); !slices.Equal(got, []string{"east DegradedThere: west"}) {
		t.Errorf("the failovers are %q", got)
	}
	says(t, c, "the cluster east did not keep it Healthy: it was Progressing since ")
	message := meta.FindStatusCondition(webBinding(t, c).Status.Conditions, v1alpha1.BindingScheduled).Message
	if strings.Count(message, "It is tried again ") != 1 || strings.Count(message, "`atoll retry`") != 1 || strings.Contains(message, "..") {
		t.Errorf("the message does not say once when east is tried again: %s", message)
	}
	sawEvent(t, c, ReasonFailedOver, "Left east (DegradedThere since ")
	sawEvent(t, c, EventTransitionStarted, "(Degraded)")
	if b.Spec.Home != nil {
		t.Errorf("it is at home in %+v", b.Spec.Home)
	}
}

// TestBadObjectDoesNotWander: an object that another cluster does not run either returns, stays, and says that the fault
// is probably its own.
func TestBadObjectDoesNotWander(t *testing.T) {
	c := begin(t, failsOver(`{"deadline":"2s"}`, ""))
	p := runPods(t, c, 10)
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	p.crash("west", 0, 0)
	p.crash("east", 4, 6*time.Minute)
	fakeapi.Until(t, "it is back in east", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"east": 4}) && b.Spec.Transition == nil && len(b.Spec.Avoided) == 2
	})
	for _, entry := range webOf(t, c).Spec.Avoided {
		if active := entry.Until.After(time.Now()); active != (entry.Name == "west") {
			t.Errorf("it avoids %+v", entry)
		}
	}
	says(t, c, "it is not Healthy in east, and failed in west lately, so it stays until ")
	sawEvent(t, c, EventApplicationFailoverHeld, "failed in west lately")
	if n := p.fewest(); n < 4 {
		t.Errorf("%d replicas were available at an instant, want 4", n)
	}
	caughtUp(t, c)
	if b := webOf(t, c); describe(b.Spec.Clusters) != "east" || b.Spec.Transition != nil {
		t.Errorf("it goes from %s to %s", describe(b.Spec.Clusters), describe(b.Spec.Goal))
	}
}

// TestDegradedEverywhere: a divided object that is Healthy in none of its clusters stays in them.
func TestDegradedEverywhere(t *testing.T) {
	manifests := strings.Replace(failsOver("", ""), "mode: Single, ", "", 1)
	c := begin(t, manifests)
	p := runPods(t, c, 10)
	fakeapi.Until(t, "it runs in both", func() bool { return p.all(map[string]int32{"east": 5, "west": 5}) })
	p.crash("west", 1, 6*time.Minute)
	p.crash("east", 1, 6*time.Minute)
	says(t, c, "it is Healthy in none of its clusters (east, west), so the fault is probably the object's own, and it stays: correct it")
	placedAt(t, c, "east 5, west 5")
	// West recovers: then the fault is in east.
	p.mu.Lock()
	delete(p.crashing, "west")
	p.mu.Unlock()
	fakeapi.Until(t, "west runs all", func() bool { return p.all(map[string]int32{"west": 10}) })
	placedAt(t, c, "west 10")
}

// TestDegradedObjectStays: what keeps an object in a cluster where it is not Healthy, as the condition and an explanation
// say it.
func TestDegradedObjectStays(t *testing.T) {
	for name, tt := range map[string]struct{ manifests, want string }{
		"paused":    {failsOver(`{"paused":true}`, ""), "it is not Healthy in east, and stays there: its transitions are paused"},
		"suspended": {failsOver("", ", suspend: true"), "it is not Healthy in east, and stays there: the policy suspends it"},
		"volumes": {strings.Replace(failsOver("", ""), "spec: {containers: [{name: c, image: i,", "spec: {volumes: [{name: v, persistentVolumeClaim: {claimName: data}}], containers: [{name: c, image: i,", 1) +
			"\n---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop, uid: v}, spec: {accessModes: [ReadWriteMany], storageClassName: fast}}",
			"its volumes are there (StorageClass fast). If its claims lead to the same data in every cluster, create a VolumePolicy for fast with mode Shared"},
		"its only cluster": {failsOver("", `, clusters: {names: [east]}`), "on east"},
	} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, tt.manifests)
			placedAt(t, c, "east")
			degradedIn(t, c, "east")
			says(t, c, tt.want)
			if b := webOf(t, c); describe(b.Spec.Clusters) != "east" || len(b.Spec.Avoided) != 0 {
				t.Errorf("it is in %s and avoids %+v", describe(b.Spec.Clusters), b.Spec.Avoided)
			}
			a, _ := explanation(t, c, nil)
			recorded := meta.FindStatusCondition(webOf(t, c).Status.Conditions, v1alpha1.BindingScheduled)
			if !strings.Contains(a.Condition.Message, tt.want) || a.Condition.Status != recorded.Status {
				t.Errorf("it is explained as %s %s", a.Condition.Status, a.Condition.Message)
			}
			if name == "its only cluster" && !strings.Contains(a.Shares[0].Message, "the object is not Healthy there since") {
				t.Errorf("its share is explained as %+v", a.Shares[0])
			}
		})
	}
}

// degradedIn reports that web has not been Healthy in a cluster for ten minutes.
func degradedIn(t *testing.T, c *control, cluster string) {
	t.Helper()
	c.changeBinding(t, webOf(t, c), func(b *v1alpha1.ResourceBinding) {
		since := metav1.NewTime(time.Now().Add(-10 * time.Minute))
		b.Status.Clusters = []v1alpha1.ClusterState{{Name: cluster, UID: "u", Generation: 1 << 40, Health: v1alpha1.Degraded, UnhealthySince: &since, WasHealthy: true}}
	})
}

// explanation returns the decision about web as explanations and previews make it.
func explanation(t *testing.T, c *control, turn func([]placement.Share, []placement.Departure) map[string]bool) (Result, []Move) {
	t.Helper()
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(s.Placed, func(p Placed) bool { return p.Object.GetName() == "web" })
	p, snap := s.Placed[at], s.Snapshot()
	snap.Turn = turn
	b := s.Binding(p.Kind, "shop", "web")
	a := snap.Schedule(p.Kind, p.Object, b)
	return a, MovesOf(p, b, a)
}

// TestDegradedObjectsLeaveInTurn: many objects may be degraded in a cluster at a time, so each waits for its turn; what
// it says until then, and what a preview shows.
func TestDegradedObjectsLeaveInTurn(t *testing.T) {
	c := newControl(t, failsOver("", ""))
	t.Run("placed", func(t *testing.T) {
		c.start(t, Config{})
		placedAt(t, c, "east")
		caughtUp(t, c)
	})
	degradedIn(t, c, "east")
	var asked []placement.Departure
	a, _ := explanation(t, c, func(_ []placement.Share, d []placement.Departure) map[string]bool {
		asked = d
		return map[string]bool{"east": true}
	})
	if !slices.Equal(asked, []placement.Departure{{Cluster: "east"}}) {
		t.Errorf("it asks to leave %+v", asked)
	}
	if len(a.Shares) != 1 || a.Shares[0].Reason != placement.ReasonKeptUntilItsTurn || len(a.Decision.Degraded) != 0 {
		t.Errorf("until its turn, it is in %+v", a.Shares)
	}
	if _, moves := explanation(t, c, nil); len(moves) != 2 || moves[0].Reason != v1alpha1.AvoidedDegraded || !strings.HasPrefix(moves[0].Why, "the object is not Healthy there since") || moves[1].Cluster != "west" {
		t.Errorf("a preview shows %+v", moves)
	}
}

// TestAttemptsOfDegradedObjects: an object that is not Healthy in one cluster after the other stays longer each time.
func TestAttemptsOfDegradedObjects(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	entry := func(cluster string, attempts int32, until time.Duration) v1alpha1.AvoidedCluster {
		at := metav1.NewTime(now.Add(until))
		return v1alpha1.AvoidedCluster{Name: cluster, Reason: v1alpha1.AvoidedDegraded, Attempts: attempts, Until: &at}
	}
	for name, tt := range map[string]struct {
		avoided []v1alpha1.AvoidedCluster
		want    time.Duration
	}{
		"the first time":           {nil, 10 * time.Minute},
		"after another cluster":    {[]v1alpha1.AvoidedCluster{entry("west", 1, -time.Hour)}, 20 * time.Minute},
		"again":                    {[]v1alpha1.AvoidedCluster{entry("east", 2, -time.Hour), entry("west", 1, -time.Hour)}, 40 * time.Minute},
		"the others are long over": {[]v1alpha1.AvoidedCluster{entry("west", 5, -7*time.Hour)}, 10 * time.Minute},
	} {
		a := &Result{Avoided: tt.avoided, Decision: placement.Decision{Degraded: []string{"east"}}, Request: placement.Request{Degraded: map[string]time.Time{"east": now.Add(-time.Hour)}}}
		out := a.avoidDegraded(&unstructured.Unstructured{Object: map[string]any{}}, &Snapshot{Now: now}, &v1alpha1.ResourceBinding{})
		last := out[len(out)-1]
		if last.Name != "east" || last.Until.Sub(now) != tt.want || slices.ContainsFunc(out[:len(out)-1], func(c v1alpha1.AvoidedCluster) bool { return c.Name == "east" }) {
			t.Errorf("%s: it avoids %+v", name, out)
		}
	}
}

// TestReachedClustersAreNotAvoided: an object does not avoid the clusters where it runs now, and remembers for some hours
// that it was not Healthy there.
func TestReachedClustersAreNotAvoided(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	later := metav1.NewTime(now.Add(time.Hour))
	avoided := []v1alpha1.AvoidedCluster{{Name: "east", Reason: v1alpha1.AvoidedDegraded, Until: &later, Attempts: 3}, {Name: "west", Reason: v1alpha1.AvoidedDeadline, Until: &later},
		{Name: "north", Reason: v1alpha1.AvoidedDegraded, Until: &later}}
	out := withoutReached(avoided, []v1alpha1.ClusterShare{{Name: "east"}, {Name: "west"}}, false, now)
	if len(out) != 2 || !out[0].Until.Equal(&now) || out[0].Attempts != 3 || out[1].Name != "north" || !out[1].Until.Equal(&later) || !avoided[0].Until.Equal(&later) {
		t.Errorf("it avoids %+v", out)
	}
	if back := withoutReached(avoided, []v1alpha1.ClusterShare{{Name: "west"}}, true, now); len(back) != 3 || !back[1].Until.Equal(&later) {
		t.Errorf("when it has returned, it avoids %+v", back)
	}
	if isForgotten(&out[0], now.Add(lastRetry-time.Second)) || !isForgotten(&out[0], now.Add(lastRetry)) || isForgotten(&avoided[1], now.Add(100*time.Hour)) {
		t.Error("it is forgotten too early, or too late")
	}
}
