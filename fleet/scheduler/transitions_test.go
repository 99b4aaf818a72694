package scheduler

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
				return condition.Status == "False" && strings.Count(condition.Message, avoided.Message) == 1 && strings.Contains(condition.Message, avoided.Until.UTC().Format(time.RFC3339))
			}
		}
		return false
	})
	// The cluster is repaired, and a user tries again.
	p.repair()
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
	if st := paused.Status.Transition; st.WaitingFor != "a user to resume it: `atoll resume deployment.apps/web -n shop`" {
		t.Errorf("it waits for %q", st.WaitingFor)
	}
	p.repair()
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
	p.repair()
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
