package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// lead starts a scheduler, and returns what ends its session.
func (c *control) lead(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: c.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- NewController(Config{})(ctx, session) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// workloads are Deployments with one replica each.
func workloads(names ...string) (manifests string) {
	for _, name := range names {
		manifests += fmt.Sprintf(`
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s, namespace: shop, uid: %s, generation: 1, labels: {app: %s}}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: %s}}
    spec: {containers: [{name: c, image: i}]}
`, name, name, name, name)
	}
	return manifests
}

// inEast is a policy with rules for its edits.
func inEast(changes string) string {
	return fmt.Sprintf(`
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1}
spec:
  selector: {kinds: [Deployment]}
  clusters: {names: [east]}
  changes: %s
`, changes)
}

const intoWest = `{"spec":{"clusters":{"names":["west"]}}}`

func editPolicy(c *control, patch string) int64 {
	return c.Merge(v1alpha1.PlacementResource, "shop", "web", patch).GetGeneration()
}

func approveEdit(c *control, generation int64) {
	c.Merge(v1alpha1.PlacementResource, "shop", "web", fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, v1alpha1.ApprovedAnnotation, generation))
}

func policyStatus(t *testing.T, c *control) v1alpha1.PlacementStatus {
	t.Helper()
	p := &v1alpha1.Placement{}
	c.Read(v1alpha1.PlacementResource, "shop", "web", p)
	return p.Status
}

// editReported waits until the condition Active of the policy has a reason for a generation, and returns its message.
func editReported(t *testing.T, c *control, generation int64, reason, contains string) {
	t.Helper()
	fakeapi.Eventually(t, "the policy reports "+reason, func() error {
		status := policyStatus(t, c)
		is := meta.FindStatusCondition(status.Conditions, v1alpha1.PlacementActive)
		if is == nil || is.Reason != reason || is.ObservedGeneration != generation || !strings.Contains(is.Message, contains) {
			return fmt.Errorf("it reports %+v", is)
		}
		return nil
	})
}

// runIn waits until the workloads run where wanted: "a east, b west".
func runIn(t *testing.T, c *control, want string) {
	t.Helper()
	fakeapi.Eventually(t, "workloads run: "+want, func() error {
		if got := workloadsRun(t, c); got != want {
			return fmt.Errorf("%s; the policy: %+v", got, policyStatus(t, c).Conditions)
		}
		return nil
	})
}

func workloadsRun(t *testing.T, c *control) string {
	t.Helper()
	var out []string
	for _, b := range c.bindings(t) {
		if b.Spec.Resource.Kind == "Deployment" {
			out = append(out, b.Spec.Resource.Name+" "+strings.TrimSuffix(describe(b.Spec.Clusters), " 1"))
		}
	}
	return strings.Join(out, ", ")
}

// healthy reports the objects that run in a cluster as Healthy, or as not.
func healthy(t *testing.T, c *control, cluster string, status metav1.ConditionStatus) {
	t.Helper()
	for _, b := range c.bindings(t) {
		if _, has := b.Share(cluster); has {
			c.Change(v1alpha1.ResourceBindingResource, b.Namespace, b.Name, func(u *unstructured.Unstructured) {
				live := as[v1alpha1.ResourceBinding](t, u)
				meta.SetStatusCondition(&live.Status.Conditions, metav1.Condition{Type: v1alpha1.BindingHealthy, Status: status, Reason: "Tested", ObservedGeneration: live.Generation})
				next, err := toUnstructured(&live.Status)
				if err != nil {
					t.Fatal(err)
				}
				u.Object["status"] = next.Object
			})
		}
	}
}

// settledAt waits until a generation is recorded as in effect.
func settledAt(t *testing.T, c *control, generation int64) {
	t.Helper()
	editReported(t, c, generation, v1alpha1.ReasonPolicyActive, "")
	fakeapi.Until(t, "the content is recorded", func() bool {
		s := policyStatus(t, c)
		return s.Active != nil && s.Active.Generation == generation && len(s.Later) == 0
	})
}

func TestEditAwaitsApproval(t *testing.T) {
	c := newControl(t, clusters+shop+workloads("a", "b")+inEast("{apply: OnApproval, above: 1}"))
	stop := c.lead(t)
	runIn(t, c, "a east, b east")
	settledAt(t, c, 1)
	second := editPolicy(c, intoWest)
	editReported(t, c, second, v1alpha1.ReasonAwaitsApproval, "would change 2 objects: generation 1 stays in effect until it is approved. To put generation 2 into effect for all of them, run `atoll approve placement/web -n shop`")
	fakeapi.Until(t, "one event reports the edit", func() bool {
		n := 0
		for _, e := range c.List(schema.GroupVersionResource{Version: "v1", Resource: "events"}) {
			if reason, _, _ := unstructured.NestedString(e.Object, "reason"); reason == v1alpha1.ReasonAwaitsApproval {
				n++
			}
		}
		return n == 1
	})

	// A new object follows the earlier content, and so does a new leader.
	c.Put(parse(t, workloads("c")[5:])[0])
	runIn(t, c, "a east, b east, c east")
	stop()
	stop = c.lead(t)
	c.Put(parse(t, workloads("d")[5:])[0])
	runIn(t, c, "a east, b east, c east, d east")
	editReported(t, c, second, v1alpha1.ReasonAwaitsApproval, "would change")

	// An approval is for one generation.
	third := editPolicy(c, `{"spec":{"clusters":{"names":["west"]},"drift":"Report"}}`)
	approveEdit(c, second)
	editReported(t, c, third, v1alpha1.ReasonAwaitsApproval, "would change")
	c.Put(parse(t, workloads("e")[5:])[0])
	runIn(t, c, "a east, b east, c east, d east, e east")

	approveEdit(c, third)
	runIn(t, c, "a west, b west, c west, d west, e west")
	settledAt(t, c, third)
	stop()
	c.lead(t)
	c.Put(parse(t, workloads("f")[5:])[0])
	runIn(t, c, "a west, b west, c west, d west, e west, f west")
}

func TestSmallEditTakesEffect(t *testing.T) {
	c := begin(t, clusters+shop+workloads("a", "b")+inEast("{apply: OnApproval, above: 2}"))
	runIn(t, c, "a east, b east")
	settledAt(t, c, 1)
	settledAt(t, c, editPolicy(c, intoWest))
	runIn(t, c, "a west, b west")
	// An edit of the rule itself waits, although it changes no object.
	loosened := editPolicy(c, `{"spec":{"changes":{"apply":"Immediate","above":null}}}`)
	editReported(t, c, loosened, v1alpha1.ReasonAwaitsApproval, "would change 0 objects, and spec.changes")
	approveEdit(c, loosened)
	fakeapi.Until(t, "edits take effect at once", func() bool { return policyStatus(t, c).Active == nil })
	editPolicy(c, `{"spec":{"clusters":{"names":["east"]}}}`)
	runIn(t, c, "a east, b east")
}

// TestSelectorAwaitsApproval: an edit of the selector neither releases objects nor takes others over.
func TestSelectorAwaitsApproval(t *testing.T) {
	c := begin(t, clusters+shop+workloads("a", "b")+strings.Replace(inEast("{apply: OnApproval}"), "kinds: [Deployment]", "names: [a]", 1)+
		strings.NewReplacer("name: web", "name: rest", "uid: p", "uid: r", "east", "west").Replace(inEast("{apply: Immediate}")))
	runIn(t, c, "a east, b west")
	settledAt(t, c, 1)
	second := editPolicy(c, `{"spec":{"selector":{"names":["b"]}}}`)
	editReported(t, c, second, v1alpha1.ReasonAwaitsApproval, "would change 2 objects")
	c.Put(parse(t, workloads("c")[5:])[0])
	runIn(t, c, "a east, b west, c west")
	approveEdit(c, second)
	runIn(t, c, "a west, b east, c west")
}

// TestOverridesAwaitApproval: a policy of overrides alone has several contents, too, beside the policy that decides.
func TestOverridesAwaitApproval(t *testing.T) {
	const overrides = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p, generation: 1}
spec:
  overrides: [{kinds: [Deployment], env: [{name: REGION, value: one}]}]
  changes: {apply: %s}
`
	regions := func(c *control) string {
		var got []string
		for _, b := range c.bindings(t) {
			for _, o := range b.Spec.Overrides {
				got = append(got, b.Spec.Resource.Name+"="+o.Env[0].Value)
			}
		}
		return strings.Join(got, " ")
	}
	for mode, want := range map[string]string{
		"OnApproval":                       "a=one b=one",
		"Lazy":                             "a=one b=one",
		"Staged, objects: 1, interval: 1h": "a=two b=one",
		"OnApproval, above: 2":             "a=two b=two",
	} {
		t.Run(mode, func(t *testing.T) {
			c := begin(t, clusters+shop+workloads("a", "b")+fmt.Sprintf(overrides, mode))
			fakeapi.Until(t, "overrides apply", func() bool { return regions(c) == "a=one b=one" })
			settledAt(t, c, 1)
			second := editPolicy(c, `{"spec":{"overrides":[{"kinds":["Deployment"],"env":[{"name":"REGION","value":"two"}]}]}}`)
			fakeapi.Until(t, "the edit has begun", func() bool {
				is := meta.FindStatusCondition(policyStatus(t, c).Conditions, v1alpha1.PlacementActive)
				return is != nil && is.ObservedGeneration == second && regions(c) == want
			})
			approveEdit(c, second)
			fakeapi.Until(t, "the edit is in effect", func() bool { return regions(c) == "a=two b=two" })
			settledAt(t, c, second)
		})
	}
}

// TestPreviewOfEdit: a preview has the words and the numbers of the scheduler.
func TestPreviewOfEdit(t *testing.T) {
	for _, tt := range []struct {
		changes, reason string
		moves           int // at once
	}{
		{"{apply: OnApproval, above: 1}", v1alpha1.ReasonAwaitsApproval, 0},
		{"{apply: OnApproval, above: 2}", "", 4},
		{"{apply: Lazy}", v1alpha1.ReasonLazy, 0},
		{"{apply: Staged, interval: 1h}", v1alpha1.ReasonInSteps, 0},
		{"{apply: Immediate}", "", 4},
	} {
		t.Run(tt.changes, func(t *testing.T) {
			c := begin(t, clusters+shop+workloads("a", "b")+inEast(tt.changes))
			runIn(t, c, "a east, b east")
			if tt.changes != "{apply: Immediate}" {
				settledAt(t, c, 1)
			}
			s, err := Load(t.Context(), c.Dynamic(), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			p := s.Placements[0]
			p.Spec.Clusters, p.Generation = &v1alpha1.ClusterSelector{Names: []string{"west"}}, 2
			edits := s.Settle(func(*placement.Subject) bool { return true })
			if moves := s.Moves(s.Snapshot()); len(moves) != tt.moves {
				t.Errorf("at once: %+v", moves)
			}
			second := editPolicy(c, intoWest)
			if tt.reason == "" {
				if len(edits) != 0 {
					t.Errorf("waits: %+v", edits)
				}
				runIn(t, c, "a west, b west")
				return
			}
			if len(edits) != 1 || edits[0].Reason != tt.reason || edits[0].Objects != 2 || len(edits[0].Moves) != 4 {
				t.Fatalf("edits are %+v", edits)
			}
			if tt.reason != v1alpha1.ReasonInSteps {
				editReported(t, c, second, tt.reason, edits[0].Message)
			}
		})
	}
}

// TestRevertedEdit: who reverts an edit that waits needs no approval.
func TestRevertedEdit(t *testing.T) {
	c := begin(t, clusters+shop+workloads("a")+inEast("{apply: OnApproval}"))
	runIn(t, c, "a east")
	settledAt(t, c, 1)
	editReported(t, c, editPolicy(c, intoWest), v1alpha1.ReasonAwaitsApproval, "would change 1 object:")
	settledAt(t, c, editPolicy(c, `{"spec":{"clusters":{"names":["east"]}}}`))
	runIn(t, c, "a east")
}

func TestLazyEdit(t *testing.T) {
	c := newControl(t, clusters+shop+workloads("a", "b", "c")+inEast("{apply: Lazy}"))
	stop := c.lead(t)
	runIn(t, c, "a east, b east, c east")
	settledAt(t, c, 1)
	second := editPolicy(c, intoWest)
	editReported(t, c, second, v1alpha1.ReasonLazy, "3 objects follow earlier content until they change or are rebalanced")
	c.Put(parse(t, workloads("d")[5:])[0])
	c.Merge(deployments, "shop", "a", `{"spec":{"paused":true}}`)
	runIn(t, c, "a west, b east, c east, d west")
	editReported(t, c, second, v1alpha1.ReasonLazy, "2 objects")

	// What moved stays, also with another leader and another edit.
	stop()
	c.lead(t)
	third := editPolicy(c, `{"spec":{"clusters":{"names":["east"]},"drift":"Report"}}`)
	editReported(t, c, third, v1alpha1.ReasonLazy, "4 objects")
	c.Merge(deployments, "shop", "b", fmt.Sprintf(`{"metadata":{"annotations":{%q:"now"}}}`, v1alpha1.RebalanceAnnotation))
	editReported(t, c, third, v1alpha1.ReasonLazy, "3 objects")
	runIn(t, c, "a west, b east, c east, d west")
	for _, name := range []string{"a", "c", "d"} {
		c.Merge(deployments, "shop", name, `{"spec":{"minReadySeconds":1}}`)
	}
	runIn(t, c, "a east, b east, c east, d east")
	settledAt(t, c, third)
}

func TestStagedEdit(t *testing.T) {
	c := newControl(t, clusters+shop+workloads("a", "b", "c", "d")+inEast("{apply: Staged, objects: 2, interval: 0s}"))
	stop := c.lead(t)
	runIn(t, c, "a east, b east, c east, d east")
	settledAt(t, c, 1)
	second := editPolicy(c, intoWest)
	runIn(t, c, "a west, b west, c east, d east")
	editReported(t, c, second, v1alpha1.ReasonStepUnhealthy, "the next step waits until these are Healthy: Deployment shop/a, Deployment shop/b. step 1: 2 objects follow generation 2, and 2 objects follow earlier content; each step changes 2")

	// Another leader does not begin a step either.
	healthy(t, c, "west", metav1.ConditionFalse)
	c.Put(parse(t, workloads("e")[5:])[0])
	runIn(t, c, "a west, b west, c east, d east, e east")
	stop()
	stop = c.lead(t)
	editReported(t, c, second, v1alpha1.ReasonStepUnhealthy, "3 objects follow earlier content")
	healthy(t, c, "west", metav1.ConditionTrue)
	runIn(t, c, "a west, b west, c west, d west, e east")
	healthy(t, c, "west", metav1.ConditionTrue)
	runIn(t, c, "a west, b west, c west, d west, e west")
	settledAt(t, c, second)
	stop()
}

// TestStagedEditApproved: an approval puts the edit into effect for all objects, however the first ones are.
func TestStagedEditApproved(t *testing.T) {
	c := begin(t, clusters+shop+workloads("a", "b", "c")+inEast("{apply: Staged, objects: 1, interval: 0s}"))
	runIn(t, c, "a east, b east, c east")
	settledAt(t, c, 1)
	second := editPolicy(c, intoWest)
	editReported(t, c, second, v1alpha1.ReasonStepUnhealthy, "Deployment shop/a")
	approveEdit(c, second)
	runIn(t, c, "a west, b west, c west")
	settledAt(t, c, second)
}

// TestStagedEditReverted: objects of the first step stay where it put them until a step of the next edit.
func TestStagedEditReverted(t *testing.T) {
	c := begin(t, clusters+shop+workloads("a", "b", "c")+inEast("{apply: Staged, objects: 2, interval: 0s}"))
	runIn(t, c, "a east, b east, c east")
	settledAt(t, c, 1)
	editPolicy(c, intoWest)
	runIn(t, c, "a west, b west, c east")
	caughtUp(t, c) // an object that seems to be in east still would follow in a later step
	third := editPolicy(c, `{"spec":{"clusters":{"names":["east"]}}}`)
	runIn(t, c, "a east, b east, c east")
	settledAt(t, c, third)
}

// TestEditOfNamespacesWaits: an edit that changes Namespaces waits for approval like one that changes workloads, and a
// preview counts the same.
func TestEditOfNamespacesWaits(t *testing.T) {
	const policy = `
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: teams, uid: p, generation: 1}
spec:
  selector: {kinds: [Namespace]}
  namespaceSelector: {matchLabels: {team: a}}
  clusters: {names: [east]}
  changes: {apply: OnApproval}
`
	c := begin(t, clusters+shops+policy)
	status := func() v1alpha1.PlacementStatus {
		p := &v1alpha1.ClusterPlacement{}
		c.Read(v1alpha1.ClusterPlacementResource, "", "teams", p)
		return p.Status
	}
	expectNamespaces(t, c, "empty: east", "shop: east")
	fakeapi.Until(t, "the policy is active", func() bool { return status().Active != nil })
	edited := c.Merge(v1alpha1.ClusterPlacementResource, "", "teams", `{"spec":{"clusters":{"names":["west"]}}}`).GetGeneration()
	fakeapi.Eventually(t, "the edit waits", func() error {
		is := meta.FindStatusCondition(status().Conditions, v1alpha1.PlacementActive)
		if is == nil || is.Reason != v1alpha1.ReasonAwaitsApproval || is.ObservedGeneration != edited || !strings.Contains(is.Message, "2 objects") {
			return fmt.Errorf("it reports %+v", is)
		}
		return nil
	})
	expectNamespaces(t, c, "empty: east", "shop: east")
	state, err := Load(t.Context(), c.Dynamic(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p, exists := state.Policy("ClusterPlacement", "", "teams")
	if edit, atOnce := state.Edit(&p); !exists || atOnce || edit.Objects != 2 {
		t.Errorf("a preview shows %+v", edit)
	}
	c.Merge(v1alpha1.ClusterPlacementResource, "", "teams", fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, v1alpha1.ApprovedAnnotation, edited))
	expectNamespaces(t, c, "empty: west", "shop: west")
}
