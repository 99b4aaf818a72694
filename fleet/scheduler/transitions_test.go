package scheduler

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const ten = `
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n, labels: {fleet.atoll.dev/configuration: WhereNeeded}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf, namespace: shop, uid: c}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d, labels: {fleet.atoll.dev/cluster: east}, annotations: {fleet.atoll.dev/transition: 'SETTINGS'}}
spec: {replicas: 10, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: conf}}]}]}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: shop, uid: b}
spec: {minAvailable: 8, selector: {matchLabels: {app: web}}}
`

const bindingOfWeb = "deployment.apps-web"

// pods are the pods of one Deployment in clusters, as its binding chooses them. They are witness to what really runs.
type pods struct {
	mu     sync.Mutex
	ready  map[string]int32 // available, by cluster
	size   map[string]int32
	least  int32           // fewest that were ever available, since the first time that all were
	broken map[string]bool // clusters whose pods never start
	// crashing are clusters where at most so many pods are available, and crashed is how long ago that began.
	crashing map[string]int32
	crashed  time.Duration
	full     bool
	history  []string
}

// runPods makes clusters run what the binding of web chooses, a few pods at a time, and report it, until the test ends.
func runPods(t *testing.T, c *control, wanted int32, broken ...string) *pods {
	t.Helper()
	p := &pods{ready: map[string]int32{}, size: map[string]int32{}, least: wanted, broken: map[string]bool{}}
	for _, cluster := range broken {
		p.broken[cluster] = true
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			u := c.Get(v1alpha1.ResourceBindingResource, "shop", bindingOfWeb)
			if u == nil {
				continue
			}
			was, _, _ := unstructured.NestedSlice(u.Object, "status", "clusters")
			p.tick(u, wanted)
			is, _, _ := unstructured.NestedSlice(u.Object, "status", "clusters")
			if equality.Semantic.DeepEqual(was, is) {
				continue // like a syncer: each write makes the scheduler's own fail that is based on an earlier version
			}
			c.Change(v1alpha1.ResourceBindingResource, "shop", bindingOfWeb, func(u *unstructured.Unstructured) {
				_ = unstructured.SetNestedSlice(u.Object, is, "status", "clusters")
			})
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		if t.Failed() {
			t.Log(strings.Join(p.history, "\n"))
		}
	})
	return p
}

// tick applies the shares of a binding, lets a pod start in each cluster, and reports.
func (p *pods) tick(u *unstructured.Unstructured, wanted int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return
	}
	chosen := map[string]v1alpha1.ClusterShare{}
	for _, share := range b.Spec.Clusters {
		chosen[share.Name] = share
		p.size[share.Name] = wanted
		if share.Replicas != nil {
			p.size[share.Name] = *share.Replicas
		}
	}
	var states []v1alpha1.ClusterState
	total := int32(0)
	for _, cluster := range []string{"east", "west", "north"} {
		share, is := chosen[cluster]
		if !is {
			delete(p.size, cluster)
			delete(p.ready, cluster)
			continue
		}
		n := min(p.ready[cluster], p.size[cluster])
		if n < p.size[cluster] && !p.broken[cluster] {
			n++
		}
		if most, is := p.crashing[cluster]; is {
			n = min(n, most)
		}
		p.ready[cluster] = n
		total += n
		raw, _ := json.Marshal(map[string]any{"replicas": p.size[cluster], "updatedReplicas": p.size[cluster], "readyReplicas": n, "availableReplicas": n})
		health := v1alpha1.Progressing
		if n == p.size[cluster] {
			health = v1alpha1.Healthy
		}
		state := v1alpha1.ClusterState{Name: cluster, UID: "there", Generation: 1 << 40, Health: health, Replicas: share.Replicas, ShareRevision: share.Revision,
			Status: &runtime.RawExtension{Raw: raw}}
		if before, reported := b.State(cluster); reported {
			state.TrackHealth(&before, time.Now().Add(-p.crashed))
		}
		states = append(states, state)
	}
	if p.full = p.full || total >= wanted; p.full {
		p.least = min(p.least, total)
	}
	if line := fmt.Sprint(p.ready, " of ", p.size, " ", b.Status.Transition); len(p.history) == 0 || p.history[len(p.history)-1] != line {
		p.history = append(p.history, line)
	}
	b.Status.Clusters = states
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		return
	}
	u.Object["status"] = content["status"]
}

// all reports whether clusters run so many pods, all of them available, and no other cluster runs any.
func (p *pods) all(want map[string]int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.ready) == fmt.Sprint(want)
}

func (p *pods) fewest() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.least
}

func webOf(t *testing.T, c *control) *v1alpha1.ResourceBinding {
	t.Helper()
	return bindingIn(t, c, bindingOfWeb)
}

// bindingIn returns a binding, an empty one if it does not exist.
func bindingIn(t *testing.T, c *control, name string) *v1alpha1.ResourceBinding {
	t.Helper()
	u := c.Get(v1alpha1.ResourceBindingResource, "shop", name)
	if u == nil {
		return &v1alpha1.ResourceBinding{}
	}
	return as[v1alpha1.ResourceBinding](t, u)
}

func labelled(cluster string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{"fleet.atoll.dev/cluster":%q}}}`, cluster)
}

// TestMoveKeepsReplicasAvailable: an object that moves to and fro has all of its replicas available at every instant.
// Afterwards nothing of the transition is left.
func TestMoveKeepsReplicasAvailable(t *testing.T) {
	c := begin(t, clusters+strings.Replace(ten, "SETTINGS", "", 1))
	p := runPods(t, c, 10)
	for i := range 6 {
		to := []string{"east", "west"}[i%2]
		c.Merge(deployments, "shop", "web", labelled(to))
		fakeapi.Until(t, "it runs in "+to, func() bool {
			b := webOf(t, c)
			return p.all(map[string]int32{to: 10}) && b.Spec.Transition == nil && b.Status.Transition == nil && len(b.Spec.Goal) == 0
		})
	}
	if n := p.fewest(); n < 10 {
		t.Errorf("%d replicas were available at an instant, want 10", n)
	}
}

// TestMoveToBrokenClusterRollsBack (H1): a cluster that cannot run the object costs no replica. At the deadline the object
// returns, the binding says why, and nothing is tried again before its time, unless a user wants it.
func TestMoveToBrokenClusterRollsBack(t *testing.T) {
	c := begin(t, clusters+strings.Replace(ten, "SETTINGS", `{"deadline":"2s"}`, 1))
	p := runPods(t, c, 10, "west")
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	c.Merge(deployments, "shop", "web", labelled("west"))
	fakeapi.Until(t, "it waits for west", func() bool {
		st := webOf(t, c).Status.Transition
		return st != nil && st.Phase == v1alpha1.PhaseWaiting && strings.Contains(st.WaitingFor, "west") && st.Cause == v1alpha1.CauseMoved
	})
	fakeapi.Until(t, "it is back in east", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"east": 10}) && b.Spec.Transition == nil && len(b.Spec.Avoided) == 1
	})
	avoided := webOf(t, c).Spec.Avoided[0]
	if avoided.Name != "west" || avoided.Reason != v1alpha1.AvoidedDeadline || !strings.Contains(avoided.Message, "replicas to be available in west") {
		t.Errorf("it avoids %+v", avoided)
	}
	fakeapi.Until(t, "the binding says why", func() bool {
		for _, condition := range webOf(t, c).Status.Conditions {
			if condition.Type == v1alpha1.BindingScheduled {
				return condition.Status == "False" && strings.Contains(condition.Message, avoided.Message)
			}
		}
		return false
	})
	// The cluster is repaired, and a user tries again.
	p.mu.Lock()
	clear(p.broken)
	p.mu.Unlock()
	settings, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		v1alpha1.TransitionAnnotation: fmt.Sprintf(`{"retry":%q}`, time.Now().Add(time.Second).UTC().Format(time.RFC3339))}}})
	c.Merge(deployments, "shop", "web", string(settings))
	fakeapi.Until(t, "it runs in west", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"west": 10}) && b.Spec.Transition == nil && len(b.Spec.Avoided) == 0
	})
	if n := p.fewest(); n < 10 {
		t.Errorf("%d replicas were available at an instant, want 10", n)
	}
}

// TestTransitionIsPausedAndAborted: while a transition is paused no step is made, and one that is aborted goes back, and
// stays until the label changes.
func TestTransitionIsPausedAndAborted(t *testing.T) {
	c := begin(t, clusters+strings.Replace(ten, "SETTINGS", "", 1))
	p := runPods(t, c, 10, "west")
	set := func(settings string) {
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.TransitionAnnotation: settings}}})
		c.Merge(deployments, "shop", "web", string(patch))
	}
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	c.Merge(deployments, "shop", "web", labelled("west"))
	fakeapi.Until(t, "it waits for west", func() bool {
		st := webOf(t, c).Status.Transition
		return st != nil && st.Phase == v1alpha1.PhaseWaiting
	})
	set(`{"paused":true}`)
	fakeapi.Until(t, "it is paused", func() bool {
		st := webOf(t, c).Status.Transition
		return st != nil && st.Paused && st.Phase == v1alpha1.PhasePaused
	})
	paused := webOf(t, c)
	p.mu.Lock()
	clear(p.broken)
	p.mu.Unlock()
	fakeapi.Until(t, "west runs its part", func() bool { return p.all(map[string]int32{"east": 10, "west": 3}) })
	if b := webOf(t, c); describe(b.Spec.Clusters) != describe(paused.Spec.Clusters) {
		t.Errorf("it made a step to %s", describe(b.Spec.Clusters))
	}
	set(fmt.Sprintf(`{"abort":%q}`, paused.Spec.Transition.ID))
	fakeapi.Until(t, "it is back in east", func() bool {
		b := webOf(t, c)
		return p.all(map[string]int32{"east": 10}) && b.Spec.Transition == nil && len(b.Spec.Avoided) == 1 && b.Spec.Avoided[0].Reason == v1alpha1.AvoidedAborted
	})
	c.Merge(deployments, "shop", "web", labelled("east"))
	fakeapi.Until(t, "west is not avoided any more", func() bool { return len(webOf(t, c).Spec.Avoided) == 0 })
	c.Merge(deployments, "shop", "web", labelled("west"))
	fakeapi.Until(t, "it runs in west", func() bool { return p.all(map[string]int32{"west": 10}) })
	if n := p.fewest(); n < 10 {
		t.Errorf("%d replicas were available at an instant, want 10", n)
	}
}

// TestBudgetsAreForWantedReplicas: while more replicas run than are wanted, each cluster's part of a disruption budget
// protects as many as it did.
func TestBudgetsAreForWantedReplicas(t *testing.T) {
	c := begin(t, clusters+strings.Replace(ten, "SETTINGS", `{"maxSurge":"100%"}`, 1))
	p := runPods(t, c, 10, "west")
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	c.Merge(deployments, "shop", "web", labelled("west"))
	fakeapi.Until(t, "its budget is in both, for 10 replicas", func() bool {
		b := bindingIn(t, c, "poddisruptionbudget.policy-web")
		return b.Spec.WantedReplicas == 10 && describe(b.Spec.Clusters) == "east 10, west 10"
	})
	p.mu.Lock()
	clear(p.broken)
	p.mu.Unlock()
	fakeapi.Until(t, "its budget is in west", func() bool {
		b := bindingIn(t, c, "poddisruptionbudget.policy-web")
		conf := bindingIn(t, c, "configmap-conf")
		return b.Spec.WantedReplicas == 0 && describe(b.Spec.Clusters) == "west 10" && slices.Equal(clusterNames(conf.Spec.Clusters), []string{"west"})
	})
}

// TestStepsArePreviewed: a preview shows the steps that the scheduler makes.
func TestStepsArePreviewed(t *testing.T) {
	c := begin(t, clusters+strings.Replace(ten, "SETTINGS", "", 1))
	p := runPods(t, c, 10)
	fakeapi.Until(t, "it runs in east", func() bool { return p.all(map[string]int32{"east": 10}) })
	s, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(s.Placed, func(p Placed) bool { return p.Object.GetName() == "web" })
	s.Placed[at].Object.SetLabels(map[string]string{v1alpha1.ClusterLabel: "west"})
	var steps []string
	for _, step := range s.Steps(s.Snapshot(), s.Placed[at].Kind, s.Placed[at].Object) {
		steps = append(steps, step.Clusters)
	}
	want := []string{"east 10, west 3", "east 7, west 3", "east 7, west 6", "east 4, west 6", "east 4, west 9", "east 1, west 9", "east 1, west 10", "west 10"}
	if !slices.Equal(steps, want) {
		t.Errorf("the steps are %q", steps)
	}
}
