package plans

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var deployments = kschema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// deployment creates a Deployment and returns the stored object.
func (s *testEnv) deployment(name, image string) *unstructured.Unstructured {
	s.t.Helper()
	return s.server.Put(fields{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": fields{"name": name, "namespace": "shop", "labels": fields{"app": name}},
		"spec": fields{"replicas": 2, "template": fields{"spec": fields{"containers": []any{fields{"name": "c", "image": image,
			"env": []any{fields{"name": "P", "valueFrom": fields{"secretKeyRef": fields{"name": "db", "key": "p"}}}}}}}}}})
}

// binds creates or updates the binding of an object.
func (s *testEnv) binds(o *unstructured.Unstructured, change func(*fleetv1.ResourceBinding)) *fleetv1.ResourceBinding {
	s.t.Helper()
	b := &fleetv1.ResourceBinding{}
	name := fleetv1.BindingName(o.GroupVersionKind().GroupKind(), o.GetName())
	if !s.server.Read(fleetv1.ResourceBindingResource, "shop", name, b) {
		b = &fleetv1.ResourceBinding{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.Group + "/" + fleetv1.Version, Kind: "ResourceBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec: fleetv1.ResourceBindingSpec{Resource: fleetv1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Resource: "deployments"}}}
	}
	change(b)
	s.server.Put(b)
	s.server.Read(fleetv1.ResourceBindingResource, "shop", name, b)
	return b
}

func shares(replicas map[string]int32) (out []fleetv1.ClusterShare) {
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		n := replicas[name]
		out = append(out, fleetv1.ClusterShare{Name: name, Replicas: &n, Reason: "Proposed"})
	}
	return out
}

// proposes returns a change that sets the scheduler's proposal.
func proposes(o *unstructured.Unstructured, digest string, content bool, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		if b.Spec.Manual == nil {
			b.Spec.Manual = &fleetv1.ManualBinding{}
		}
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: digest, Object: interpret.ContentDigest(o), Content: content, Clusters: shares(replicas), Message: "it would change"}
	}
}

// allowed returns a change by which the scheduler carries out an approved proposal.
func allowed(o *unstructured.Unstructured, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		b.Spec.Manual, b.Spec.Approved, b.Spec.Clusters = &fleetv1.ManualBinding{Content: interpret.ContentDigest(o)}, "", shares(replicas)
		b.Status.Proposal = nil
	}
}

// runs returns a change that sets the clusters' reports.
func runs(o *unstructured.Unstructured, health fleetv1.Health) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		b.Status.Clusters, b.Status.Conditions = nil, nil
		for _, c := range b.Spec.Clusters {
			b.Status.Clusters = append(b.Status.Clusters, fleetv1.ClusterState{Name: c.Name, UID: "there", Generation: o.GetGeneration(), Replicas: c.Replicas, Health: health})
		}
		if health == fleetv1.Healthy {
			b.Status.Conditions = []metav1.Condition{{Type: fleetv1.BindingHealthy, Status: metav1.ConditionTrue, Reason: "x", ObservedGeneration: b.Generation}}
		}
	}
}

func (s *testEnv) workloadStore() *workloadStore { return newWorkloadStore(s.dyn, clock.RealClock{}) }

func every(is bool) func(labels.Set) bool { return func(labels.Set) bool { return is } }

// Workloads are listed as undecided until the scheduler has decided about all writes.
func TestUndecidedWorkloads(t *testing.T) {
	s := newTestEnv(t)
	w := s.workloadStore()
	look := func(manual bool) (changes int, undecided []string) {
		t.Helper()
		all, undecided, err := w.list(t.Context(), "shop", every(manual))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			if b.awaitsApproval() {
				changes++
			}
		}
		return changes, undecided
	}
	want := func(what string, manual bool, changes int, undecided ...string) {
		t.Helper()
		if n, not := look(manual); n != changes || !slices.Equal(not, undecided) {
			t.Errorf("%s: %d await approval, undecided %v", what, n, not)
		}
	}
	want("no objects", true, 0)
	o := s.deployment("web", "nginx")
	want("no binding yet", true, 0, "Deployment.apps/web")
	want("no binding, no manual policy", false, 0)
	s.binds(o, func(*fleetv1.ResourceBinding) {})
	want("a binding older than the policy", true, 0, "Deployment.apps/web")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	want("a proposal", true, 1)
	b := s.binds(o, func(b *fleetv1.ResourceBinding) { b.Spec.Approved = "sha256:one" })
	want("approved, not yet carried out", true, 0, "Deployment.apps/web")
	s.binds(o, allowed(o, map[string]int32{"east": 2}))
	want("the approved version is carried out", true, 0)
	if b.Spec.Approved == "" {
		t.Error("the binding lost its approval")
	}
	o.Object["spec"].(fields)["replicas"] = 3
	o = s.server.Put(o)
	want("an edit without a decision", true, 0, "Deployment.apps/web")
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"east": 3}))
	want("an edit with a proposal", true, 1)
	s.server.Delete(deployments, "shop", "web")
	want("deleted, no decision", true, 1, "Deployment.apps/web")
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: "sha256:gone", Remove: true, Message: "it was deleted: it would leave east 2"}
	})
	want("deleted, with a proposal", true, 1)
}

// A plan includes waiting workloads under their policies, and becomes stale when a proposal changes.
func TestPlanOfWorkloads(t *testing.T) {
	s := newTestEnv(t)
	s.workloads = true
	s.make("SyncPolicy", "careful", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}, "approval": fields{"required": 2}})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	s.begin()
	s.make("Plan", "one", fields{})
	s.awaitPlan("one", v1alpha1.PlanPlanned)
	asked := s.engine.asked()[0].Workloads
	if len(asked) != 1 {
		t.Fatalf("the engine got %+v", asked)
	}
	c := asked[0]
	if c.Action != change.Place || c.Address.String() != `namespace["shop"].k8s["apps/v1"].Deployment["web"]` || !slices.Equal(c.Uses, []string{"db"}) ||
		c.Before != nil || !strings.Contains(string(c.After.JSON), `"clusters":{"east":2}`) || !strings.Contains(string(c.After.JSON), `"image":"nginx"`) ||
		precondition(c.Preconditions, proposalPrefix) != "sha256:one" || precondition(c.Preconditions, objectPrefix) != interpret.ContentDigest(o) {
		text, _ := json.Marshal(c)
		t.Errorf("the change is %s", text)
	}
	p := s.plan("one")
	if p.Status.Summary.Place != 1 {
		t.Fatalf("summary %+v", p.Status.Summary)
	}
	s.approve("ada", "one", p.Status.Digest, "ada")
	fakeapi.Until(t, "one of two approvals is counted", func() bool {
		for _, c := range s.plan("one").Status.Conditions {
			if c.Type == v1alpha1.PlanApproved && strings.Contains(c.Message, "1 of 2") && strings.Contains(c.Message, "SyncPolicy careful") {
				return true
			}
		}
		return false
	})
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"west": 2}))
	s.reconciler.requeueAfter("shop", 0)
	fakeapi.Until(t, "the plan is stale", func() bool {
		return is(s.plan("one").Status.Conditions, v1alpha1.PlanCurrent, v1alpha1.ReasonMoved)
	})
	// Plans of policies and of mode Destroy have no workloads.
	s.make("Plan", "end", fields{"mode": "Destroy"})
	s.awaitPlan("end", v1alpha1.PlanPlanned)
	if asked := s.engine.asked(); len(asked[len(asked)-1].Workloads) > 0 {
		t.Errorf("a Destroy plan includes %+v", asked[len(asked)-1].Workloads)
	}
}

// Place approves once, and waits until the clusters have carried it out.
func TestPlace(t *testing.T) {
	s := newTestEnv(t)
	w := s.workloadStore()
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	all, _, err := w.list(t.Context(), "shop", every(true))
	if err != nil {
		t.Fatal(err)
	}
	what := infra.PlaceRequest{Address: all[0].address(), Preconditions: all[0].preconditions(), ApplyUID: "apply", Healthy: true}
	step := func(want string) {
		t.Helper()
		missing, err := w.step(t.Context(), &what)
		if err != nil || missing != want {
			t.Fatalf("missing is %q, %v; want %q", missing, err, want)
		}
	}
	step("waiting for the fleet's scheduler")
	b := s.binds(o, func(*fleetv1.ResourceBinding) {})
	if b.Spec.Approved != "sha256:one" || b.Annotations[allowedAnnotation] != "apply sha256:one" {
		t.Fatalf("the binding says %+v %+v", b.Annotations, b.Spec)
	}
	step("waiting for the fleet's scheduler")
	s.binds(o, allowed(o, map[string]int32{"east": 2}))
	step("east: not synced yet")
	s.binds(o, runs(o, fleetv1.Progressing))
	step("east: Progressing")
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		b.Generation = 2
		runs(o, fleetv1.Healthy)(b)
		b.Status.Conditions[0].ObservedGeneration = 1 // observed before the approval
	})
	step("waiting for the binding's condition Healthy")
	s.binds(o, runs(o, fleetv1.Healthy))
	if err := w.Place(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	// A second call, as after a crash, finds everything done.
	if err := w.Place(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	// Another Apply finds no proposal.
	again := what
	again.ApplyUID = "other"
	if err := w.Place(t.Context(), again); !errors.Is(err, infra.ErrStale) {
		t.Errorf("another Apply: %v", err)
	}
	// The proposal changed just before the approval: the approval is revoked.
	s.binds(o, proposes(o, "sha256:two", false, map[string]int32{"east": 1, "west": 1}))
	all, _, _ = w.list(t.Context(), "shop", every(true))
	what = infra.PlaceRequest{Address: all[0].address(), Preconditions: all[0].preconditions(), ApplyUID: "later"}
	step("waiting for the fleet's scheduler")
	s.binds(o, proposes(o, "sha256:three", false, map[string]int32{"west": 2}))
	if _, err := w.step(t.Context(), &what); !errors.Is(err, infra.ErrStale) {
		t.Errorf("a changed proposal: %v", err)
	}
	if b := s.binds(o, func(*fleetv1.ResourceBinding) {}); b.Spec.Approved != "" {
		t.Errorf("a changed proposal stays approved: %+v", b.Spec)
	}
}

// The approved content comes from the plan that approved it, so that the next plan shows the difference.
func TestPriorContentFromApprovedPlan(t *testing.T) {
	s := newTestEnv(t)
	s.workloads = true
	s.make("SyncPolicy", "careful", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	s.begin()
	s.make("Plan", "one", fields{})
	p := s.awaitPlan("one", v1alpha1.PlanPlanned)
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		allowed(o, map[string]int32{"east": 2})(b)
		b.Annotations = map[string]string{plannedAnnotation: p.Name + " " + string(p.UID)}
	})
	containers := []any{map[string]any{"name": "c", "image": "nginx:2"}}
	if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	o = s.server.Put(o)
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"east": 2}))
	s.make("Plan", "two", fields{})
	s.awaitPlan("two", v1alpha1.PlanPlanned)
	all := s.engine.asked()
	c := all[len(all)-1].Workloads[0]
	var paths []string
	for _, f := range c.Fields {
		paths = append(paths, f.Path)
	}
	if !slices.Contains(paths, "spec.template.spec.containers[0].image") || slices.Contains(paths, "spec.replicas") {
		t.Errorf("changed fields: %v", paths)
	}
}

// A plan shows nothing of a Secret.
func TestSecretsAreNotShown(t *testing.T) {
	secret := &unstructured.Unstructured{Object: fields{"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": "db"}, "data": fields{"p": "aHVzaA=="}}}
	if got := contentOf(secret); got != nil {
		t.Errorf("a Secret's content is shown: %v", got)
	}
	large := &unstructured.Unstructured{Object: fields{"apiVersion": "v1", "kind": "ConfigMap", "data": fields{"p": strings.Repeat("x", maxShownContent)}}}
	if got := contentOf(large); got != nil {
		t.Errorf("a large object is shown")
	}
}

// WorkloadPolicies follows edits of policies and notifies its listeners.
func TestWorkloadPolicies(t *testing.T) {
	s := newTestEnv(t)
	w := NewWorkloadPolicies(s.dyn, clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	if err := w.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 100)
	defer w.OnChange(func() { told <- struct{}{} })()
	becomes := func(want bool, namespace string, set map[string]string) {
		t.Helper()
		<-told
		fakeapi.Until(t, "Manual returns the new value", func() bool { return w.Manual(namespace, set) == want })
	}
	if w.Manual("shop", nil) {
		t.Error("without a policy, workloads require plans")
	}
	s.make("SyncPolicy", "infra", fields{"mode": "Manual"})
	becomes(false, "shop", nil)
	s.make("SyncPolicy", "gold", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}, "selector": fields{"matchLabels": fields{"tier": "gold"}}})
	becomes(true, "shop", map[string]string{"tier": "gold"})
	if w.Manual("shop", map[string]string{}) || !w.Manual("shop", nil) || w.Manual("other", nil) {
		t.Error("wrong result of a selector")
	}
	s.server.Put(fields{"apiVersion": "infra.atoll.dev/v1alpha1", "kind": "ClusterSyncPolicy", "metadata": fields{"name": "all"},
		"spec": fields{"mode": "Manual", "appliesTo": []any{"Workloads", "Infrastructure"}}})
	becomes(true, "other", map[string]string{})
	s.make("SyncPolicy", "free", fields{"mode": "Auto", "appliesTo": []any{"Workloads"}})
	becomes(false, "shop", map[string]string{})
	s.server.Delete(v1alpha1.SyncPolicyResource, "shop", "free")
	becomes(true, "shop", map[string]string{})
}
