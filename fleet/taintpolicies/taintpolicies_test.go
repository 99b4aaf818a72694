package taintpolicies

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

const clusters = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: east, uid: e, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {taints: [{key: person, effect: PreferNoSchedule}]}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Cluster
metadata: {name: west, uid: w, creationTimestamp: "2026-01-02T00:00:00Z"}
status: {conditions: [{type: Ready, status: "True", reason: ClusterReady, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`

const disks = `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterTaintPolicy
metadata: {name: disks, uid: d, generation: 1}
spec:
  when: [{type: DisksHealthy, status: "False"}]
  taints: [{key: broken, value: disk, effect: NoExecute}]
`

const web = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
`

// fixture is a control plane without members.
type fixture struct {
	*fakeapi.Server
	t     *testing.T
	clock *clocktesting.FakeClock
}

func prepare(t *testing.T, manifests ...string) *fixture {
	t.Helper()
	f := &fixture{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 2, 1, 9, 0, 0, 0, time.UTC)),
		Server: fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 Secret", "apps/v1 Deployment",
			"apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)}
	f.put(append([]string{clusters}, manifests...)...)
	return f
}

func (f *fixture) put(manifests ...string) {
	f.t.Helper()
	for _, doc := range strings.Split(strings.Join(manifests, "\n---\n"), "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			f.t.Fatal(err)
		}
		f.Put(u)
	}
}

// run runs controllers as one leader. stop ends its session.
func (f *fixture) run(all ...fleet.Controller) (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: f.Config(), Clock: f.clock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	done := make(chan error, len(all))
	for _, run := range all {
		go func() { done <- run(ctx, session) }()
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range all {
			if err := <-done; err != nil {
				f.t.Error(err)
			}
		}
		session.Wait()
	}
	f.t.Cleanup(stop)
	return stop
}

// check sets a cluster's condition DisksHealthy, as a health checker does.
func (f *fixture) check(cluster string, status metav1.ConditionStatus) {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": map[string]any{"name": cluster},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "DisksHealthy", "status": string(status), "reason": "Checked", "message": "by smartd",
			"lastTransitionTime": f.clock.Now().UTC().Format(time.RFC3339)}}}}}
	_, err := f.Dynamic().Resource(v1alpha1.ClusterResource).ApplyStatus(f.t.Context(), cluster, u, metav1.ApplyOptions{FieldManager: "health-checker"})
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) cluster(name string) *v1alpha1.Cluster {
	f.t.Helper()
	c := &v1alpha1.Cluster{}
	if !f.Read(v1alpha1.ClusterResource, "", name, c) {
		f.t.Fatalf("no Cluster %s", name)
	}
	return c
}

// taints waits until a cluster has these taints of policies: POLICY KEY, separated by commas.
func (f *fixture) taints(cluster, want string) {
	f.t.Helper()
	fakeapi.Eventually(f.t, fmt.Sprintf("%s has the taints %q", cluster, want), func() error {
		var got []string
		for _, t := range f.cluster(cluster).Status.PolicyTaints {
			got = append(got, t.Policy+" "+t.Key)
		}
		if strings.Join(got, ", ") != want {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// status waits until a policy has this status.
func (f *fixture) status(policy string, tainted int, accepted metav1.ConditionStatus, words string) {
	f.t.Helper()
	fakeapi.Eventually(f.t, "status of "+policy, func() error {
		p := &v1alpha1.ClusterTaintPolicy{}
		f.Read(v1alpha1.ClusterTaintPolicyResource, "", policy, p)
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
		if c == nil || c.Status != accepted || !strings.Contains(c.Message, words) || int(p.Status.TaintedClusters) != tainted || len(p.Status.ClusterNames) != tainted {
			return fmt.Errorf("it is %+v", p.Status)
		}
		return nil
	})
}

// event waits for an event.
func (f *fixture) event(reason, message string) {
	f.t.Helper()
	fakeapi.Until(f.t, "event "+message, func() bool {
		return slices.ContainsFunc(f.List(corev1.SchemeGroupVersion.WithResource("events")), func(e *unstructured.Unstructured) bool {
			return e.Object["reason"] == reason && e.Object["message"] == message
		})
	})
}

// change edits the spec of a policy.
func (f *fixture) change(policy string, edit func(spec map[string]any)) {
	f.t.Helper()
	f.Change(v1alpha1.ClusterTaintPolicyResource, "", policy, func(u *unstructured.Unstructured) {
		edit(u.Object["spec"].(map[string]any))
		u.SetGeneration(u.GetGeneration() + 1)
	})
}

// TestTaintFollowsCondition: a taint comes and goes with the condition, and a user's equal taint and
// others' conditions stay.
func TestTaintFollowsCondition(t *testing.T) {
	f := prepare(t, disks)
	f.run(Run)
	f.status("disks", 0, metav1.ConditionTrue, "the policy is in effect")
	f.check("east", metav1.ConditionFalse)
	f.taints("east", "disks broken")
	f.status("disks", 1, metav1.ConditionTrue, "")
	f.event(v1alpha1.EventTaintAdded, "ClusterTaintPolicy disks added the taint broken=disk:NoExecute: condition DisksHealthy is False (Checked)")
	f.taints("west", "")
	f.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
		own := []any{map[string]any{"key": "person", "effect": "PreferNoSchedule"}, map[string]any{"key": "broken", "value": "disk", "effect": "NoExecute"}}
		if err := unstructured.SetNestedSlice(u.Object, own, "spec", "taints"); err != nil {
			t.Error(err)
		}
	})
	f.check("east", metav1.ConditionTrue)
	f.taints("east", "")
	f.status("disks", 0, metav1.ConditionTrue, "")
	f.event(v1alpha1.EventTaintRemoved, "ClusterTaintPolicy disks removed the taint broken=disk:NoExecute: condition DisksHealthy is True (Checked)")
	east := f.cluster("east")
	if len(east.Spec.Taints) != 2 || len(east.TaintsWithTime()) != 2 {
		t.Errorf("taints of the user: %v", east.Spec.Taints)
	}
	if len(east.Status.Conditions) != 2 || !meta.IsStatusConditionTrue(east.Status.Conditions, "Ready") {
		t.Errorf("conditions: %v", east.Status.Conditions)
	}
}

// TestDurations: a condition must hold for some time, and its taint stays for some time.
func TestDurations(t *testing.T) {
	f := prepare(t, disks)
	f.change("disks", func(spec map[string]any) {
		spec["when"].([]any)[0].(map[string]any)["for"] = "10m"
		spec["keepFor"] = "30m"
	})
	f.run(Run)
	f.check("east", metav1.ConditionFalse)
	fakeapi.Until(t, "the controller waits", f.clock.HasWaiters)
	began := f.clock.Now()
	fakeapi.Until(t, "the taint is added", func() bool {
		f.clock.Step(time.Minute)
		return len(f.cluster("east").Status.PolicyTaints) > 0
	})
	if added := f.cluster("east").Status.PolicyTaints[0].TimeAdded; added.Sub(began) < 10*time.Minute {
		t.Errorf("added after %v", added.Sub(began))
	}
	f.check("east", metav1.ConditionTrue)
	fakeapi.Until(t, "the end of the condition is recorded", func() bool { return f.cluster("east").Status.PolicyTaints[0].CeasedAt != nil })
	ceased := f.cluster("east").Status.PolicyTaints[0].CeasedAt
	f.check("east", metav1.ConditionFalse)
	fakeapi.Until(t, "it holds again", func() bool { return f.cluster("east").Status.PolicyTaints[0].CeasedAt == nil })
	f.check("east", metav1.ConditionTrue)
	fakeapi.Until(t, "the taint is removed", func() bool {
		f.clock.Step(time.Minute)
		return len(f.cluster("east").Status.PolicyTaints) == 0
	})
	if f.clock.Since(ceased.Time) < 30*time.Minute {
		t.Errorf("removed after %v", f.clock.Since(ceased.Time))
	}
}

// TestPoliciesShareATaint: each policy removes only its own taints.
func TestPoliciesShareATaint(t *testing.T) {
	f := prepare(t, disks, strings.NewReplacer("name: disks, uid: d", "name: also, uid: a").Replace(disks))
	f.run(Run)
	f.check("east", metav1.ConditionFalse)
	f.taints("east", "also broken, disks broken")
	if n := len(f.cluster("east").TaintsWithTime()); n != 2 {
		t.Errorf("the cluster has %d taints, want the user's and one of both policies", n)
	}
	f.Delete(v1alpha1.ClusterTaintPolicyResource, "", "disks")
	f.taints("east", "also broken")
	f.event(v1alpha1.EventTaintRemoved, "ClusterTaintPolicy disks removed the taint broken=disk:NoExecute: the policy does not exist")
	f.change("also", func(spec map[string]any) { spec["clusters"] = map[string]any{"names": []any{"west", "wets"}} })
	f.taints("east", "")
	f.status("also", 0, metav1.ConditionTrue, "not all of its clusters exist: wets")
}

// TestUnknownPoliciesRemoveNothing: without the policies, an invalid policy, and a new leader.
func TestUnknownPoliciesRemoveNothing(t *testing.T) {
	f := prepare(t, disks)
	stop := f.run(Run)
	f.check("east", metav1.ConditionFalse)
	f.taints("east", "disks broken")
	f.change("disks", func(spec map[string]any) { spec["clusters"] = map[string]any{"expression": "cluster."} })
	f.status("disks", 1, metav1.ConditionFalse, "clusters keep the taints")
	f.check("west", metav1.ConditionFalse)
	f.check("east", metav1.ConditionTrue)
	stop()

	var refused, asked atomic.Bool
	refused.Store(true)
	f.OnRequest(func(r fakeapi.Request) *metav1.Status {
		if r.Resource.Resource == "clustertaintpolicies" && refused.Load() {
			asked.Store(true)
			return &apierrors.NewServiceUnavailable("no").ErrStatus
		}
		return nil
	})
	before := len(f.Writes())
	stop = f.run(Run)
	fakeapi.Until(t, "the next leader asks for the policies", asked.Load)
	f.taints("east", "disks broken")
	f.taints("west", "")
	stop()
	if writes := f.Writes()[before:]; len(writes) > 0 {
		t.Errorf("without the policies it wrote %v", writes)
	}
	refused.Store(false)
	f.run(Run)
	f.change("disks", func(spec map[string]any) { delete(spec, "clusters") })
	f.taints("east", "")
	f.taints("west", "disks broken")
}

// TestReadyIsConfirmed: a new leader does not act on a condition Ready from before it.
func TestReadyIsConfirmed(t *testing.T) {
	f := prepare(t, strings.NewReplacer("DisksHealthy", "Ready").Replace(disks), disks2)
	f.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
		condition := u.Object["status"].(map[string]any)["conditions"].([]any)[0].(map[string]any)
		condition["status"], condition["reason"] = "False", v1alpha1.ReasonClusterUnreachable
	})
	f.run(Run)
	f.check("east", metav1.ConditionFalse)
	f.taints("east", "disks2 broken2") // the controller has seen the cluster
	f.Merge(v1alpha1.ClusterResource, "", "east", fmt.Sprintf(`{"status":{"lastProbeTime":%q}}`, f.clock.Now().Add(time.Second).Format(time.RFC3339)))
	f.taints("east", "disks broken, disks2 broken2")
}

var disks2 = strings.NewReplacer("name: disks, uid: d", "name: disks2, uid: d2", "key: broken", "key: broken2").Replace(disks)

// TestTooManyTaints: taints that exceed the limit are reported.
func TestTooManyTaints(t *testing.T) {
	f := prepare(t)
	var keys []string
	for i := range 16 {
		keys = append(keys, fmt.Sprintf("{key: k%02d, effect: NoSchedule}", i))
	}
	for i := range v1alpha1.MaxPolicyTaints/len(keys) + 1 {
		f.put(fmt.Sprintf(`
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterTaintPolicy
metadata: {name: p%d, uid: p%d, generation: 1}
spec: {when: [{type: DisksHealthy, status: "False"}], taints: [%s]}
`, i, i, strings.Join(keys, ", ")))
	}
	f.run(Run)
	f.check("east", metav1.ConditionFalse)
	f.event(v1alpha1.EventTooManyTaints, "policies would add more than 128 taints to the cluster. 16 were not added, such as k00:NoSchedule of ClusterTaintPolicy p8: delete policies, or restrict their clusters")
	fakeapi.Until(t, "the others are added", func() bool { return len(f.cluster("east").Status.PolicyTaints) == v1alpha1.MaxPolicyTaints })
}

// TestLeavingClusterKeepsTaints: a leave decides about the objects of a cluster that leaves.
func TestLeavingClusterKeepsTaints(t *testing.T) {
	f := prepare(t, disks)
	f.run(Run)
	f.check("east", metav1.ConditionFalse)
	f.taints("east", "disks broken")
	f.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"deletionTimestamp":"2026-02-01T00:00:00Z","finalizers":["fleet.atoll.dev/leave"]}}`)
	f.check("east", metav1.ConditionTrue)
	f.check("west", metav1.ConditionFalse)
	f.status("disks", 2, metav1.ConditionTrue, "")
	f.Merge(v1alpha1.ClusterResource, "", "east", `{"metadata":{"finalizers":[]}}`)
	f.status("disks", 1, metav1.ConditionTrue, "")
}

// TestWorkloadLeavesTaintedCluster: the scheduler treats the taint like one of the spec. The workload
// moves, and does not return by itself.
func TestWorkloadLeavesTaintedCluster(t *testing.T) {
	f := prepare(t, disks, web, `
apiVersion: fleet.atoll.dev/v1alpha1
kind: ClusterPlacement
metadata: {name: default, uid: p}
spec: {mode: Single}
`)
	f.run(Run, scheduler.NewController(scheduler.Config{}))
	runsIn := func(want string) {
		t.Helper()
		fakeapi.Eventually(t, "web runs in "+want, func() error {
			b := &v1alpha1.ResourceBinding{}
			f.Read(v1alpha1.ResourceBindingResource, "shop", v1alpha1.BindingName(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "web"), b)
			if len(b.Spec.Clusters) != 1 || b.Spec.Clusters[0].Name != want {
				return fmt.Errorf("it runs in %v", b.Spec.Clusters)
			}
			return nil
		})
	}
	runsIn("west") // east has a taint PreferNoSchedule
	f.check("west", metav1.ConditionFalse)
	f.taints("west", "disks broken")
	runsIn("east")
	f.check("west", metav1.ConditionTrue)
	f.taints("west", "")
	f.check("east", metav1.ConditionFalse)
	runsIn("west")
	f.check("west", metav1.ConditionFalse)
	f.taints("west", "disks broken")
	runsIn("west") // no cluster can take it
}
