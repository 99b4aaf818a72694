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
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
)

// deployment writes one, and gives it as it is stored.
func (s *stage) deployment(name, image string) *unstructured.Unstructured {
	s.t.Helper()
	s.put("/apis/apps/v1/namespaces/shop/deployments", fields{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": fields{"name": name, "labels": fields{"app": name}},
		"spec": fields{"replicas": 2, "template": fields{"spec": fields{"containers": []any{fields{"name": "c", "image": image,
			"env": []any{fields{"name": "P", "valueFrom": fields{"secretKeyRef": fields{"name": "db", "key": "p"}}}}}}}}}})
	return s.deployed(name)
}

func (s *stage) deployed(name string) *unstructured.Unstructured {
	s.t.Helper()
	u, err := s.dyn.Resource(kschema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("shop").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return u
}

// binds writes the binding of an object, or writes it anew.
func (s *stage) binds(o *unstructured.Unstructured, change func(*fleetv1.ResourceBinding)) *fleetv1.ResourceBinding {
	s.t.Helper()
	api := s.dyn.Resource(fleetv1.ResourceBindingResource).Namespace("shop")
	name := fleetv1.BindingName(o.GroupVersionKind().GroupKind(), o.GetName())
	b := &fleetv1.ResourceBinding{TypeMeta: metav1.TypeMeta{APIVersion: fleetv1.Group + "/" + fleetv1.Version, Kind: "ResourceBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
		Spec: fleetv1.ResourceBindingSpec{Resource: fleetv1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Resource: "deployments"}}}
	u, err := api.Get(context.Background(), name, metav1.GetOptions{})
	had := err == nil
	if had {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
			s.t.Fatal(err)
		}
	}
	change(b)
	data, err := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if err != nil {
		s.t.Fatal(err)
	}
	u = &unstructured.Unstructured{Object: data}
	if !had {
		if u, err = api.Create(context.Background(), u, metav1.CreateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	} else if u, err = api.Update(context.Background(), u, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	// This server keeps the status of a replacement as it was.
	u.Object["status"] = data["status"]
	if u, err = api.UpdateStatus(context.Background(), u, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	out := &fleetv1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

func shares(replicas map[string]int32) (out []fleetv1.ClusterShare) {
	for _, name := range slices.Sorted(maps.Keys(replicas)) {
		n := replicas[name]
		out = append(out, fleetv1.ClusterShare{Name: name, Replicas: &n, Reason: "Proposed"})
	}
	return out
}

// proposes is what the scheduler says of an object that waits.
func proposes(o *unstructured.Unstructured, digest string, content bool, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		if b.Spec.Manual == nil {
			b.Spec.Manual = &fleetv1.ManualBinding{}
		}
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: digest, Object: interpret.ContentDigest(o), Content: content, Clusters: shares(replicas), Message: "it would change"}
	}
}

// allowed is what the scheduler does with what a plan allowed.
func allowed(o *unstructured.Unstructured, replicas map[string]int32) func(*fleetv1.ResourceBinding) {
	return func(b *fleetv1.ResourceBinding) {
		b.Spec.Manual, b.Spec.Approved, b.Spec.Clusters = &fleetv1.ManualBinding{Content: interpret.ContentDigest(o)}, "", shares(replicas)
		b.Status.Proposal = nil
	}
}

// runs is what syncers say.
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

func (s *stage) placements() *placements { return newPlacements(s.dyn, clock.RealClock{}) }

func every(is bool) func(labels.Set) bool { return func(labels.Set) bool { return is } }

// What waits is known once the scheduler has decided about what is written, and not before.
func TestWhatWaitsIsDecided(t *testing.T) {
	s := open(t)
	w := s.placements()
	look := func(manual bool) (changes int, undecided []string) {
		t.Helper()
		all, undecided, err := w.look(t.Context(), "shop", every(manual))
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			if b.waits() {
				changes++
			}
		}
		return changes, undecided
	}
	want := func(what string, manual bool, changes int, undecided ...string) {
		t.Helper()
		if n, not := look(manual); n != changes || !slices.Equal(not, undecided) {
			t.Errorf("%s: %d wait, and not decided is %v", what, n, not)
		}
	}
	want("nothing", true, 0)
	o := s.deployment("web", "nginx")
	want("no binding yet", true, 0, "Deployment.apps/web")
	want("no binding, and nobody wants plans", false, 0)
	s.binds(o, func(*fleetv1.ResourceBinding) {})
	want("a binding from before the policy", true, 0, "Deployment.apps/web")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	want("a proposal", true, 1)
	b := s.binds(o, func(b *fleetv1.ResourceBinding) { b.Spec.Approved = "sha256:one" })
	want("one that was allowed a moment ago", true, 0, "Deployment.apps/web")
	s.binds(o, allowed(o, map[string]int32{"east": 2}))
	want("all is as it was allowed", true, 0)
	if b.Spec.Approved == "" {
		t.Error("the binding does not keep what is allowed")
	}
	api := s.dyn.Resource(kschema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("shop")
	if err := unstructured.SetNestedField(o.Object, int64(3), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	o, err := api.Update(t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want("an edit that the scheduler has not seen", true, 0, "Deployment.apps/web")
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"east": 3}))
	want("an edit that it has", true, 1)
	if err := api.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("deleted, and not seen", true, 1, "Deployment.apps/web")
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		b.Status.Proposal = &fleetv1.BindingProposal{Digest: "sha256:gone", Remove: true, Message: "it was deleted: it would leave east 2"}
	})
	want("deleted, and seen", true, 1)
}

// A plan has what waits, under its policies; what is another by then is noticed.
func TestPlanOfWorkloads(t *testing.T) {
	s := open(t)
	s.workloads = true
	s.make("syncpolicies", "SyncPolicy", "careful", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}, "approval": fields{"required": 2}})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	s.begin()
	s.make("plans", "Plan", "one", fields{})
	s.awaitPlan("one", v1alpha1.PlanPlanned)
	asked := s.engine.asked()[0].Workloads
	if len(asked) != 1 {
		t.Fatalf("the engine is told of %+v", asked)
	}
	c := asked[0]
	if c.Action != plan.Place || c.Address.String() != `namespace["shop"].k8s["apps/v1"].Deployment["web"]` || !slices.Equal(c.Uses, []string{"db"}) ||
		c.Before != nil || !strings.Contains(string(c.After.JSON), `"clusters":{"east":2}`) || !strings.Contains(string(c.After.JSON), `"image":"nginx"`) ||
		precondition(c.Preconditions, ofProposal) != "sha256:one" || precondition(c.Preconditions, ofObject) != interpret.ContentDigest(o) {
		text, _ := json.Marshal(c)
		t.Errorf("the change is %s", text)
	}
	p := s.plan("one")
	if p.Status.Summary.Place != 1 {
		t.Fatalf("summary %+v", p.Status.Summary)
	}
	s.approve("ada", "one", p.Status.Digest, "ada")
	eventually(t, "one of two approvals is there", func() bool {
		for _, c := range s.plan("one").Status.Conditions {
			if c.Type == v1alpha1.PlanApproved && strings.Contains(c.Message, "1 of 2") && strings.Contains(c.Message, "SyncPolicy careful") {
				return true
			}
		}
		return false
	})
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"west": 2}))
	s.desk.later("shop", 0)
	eventually(t, "the plan is not what would be done any more", func() bool {
		return is(s.plan("one").Status.Conditions, v1alpha1.PlanCurrent, v1alpha1.ReasonMoved)
	})
	// A plan that a policy makes, or of mode Destroy, is of infrastructure alone.
	s.make("plans", "Plan", "end", fields{"mode": "Destroy"})
	s.awaitPlan("end", v1alpha1.PlanPlanned)
	if asked := s.engine.asked(); len(asked[len(asked)-1].Workloads) > 0 {
		t.Errorf("a plan that destroys is of %+v", asked[len(asked)-1].Workloads)
	}
}

// What is allowed is written once, and waited for until clusters have it.
func TestPlace(t *testing.T) {
	s := open(t)
	w := s.placements()
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	all, _, err := w.look(t.Context(), "shop", every(true))
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
	step("the fleet's scheduler has not taken it up")
	b := s.binds(o, func(*fleetv1.ResourceBinding) {})
	if b.Spec.Approved != "sha256:one" || b.Annotations[allowedAnnotation] != "apply sha256:one" {
		t.Fatalf("the binding says %+v %+v", b.Annotations, b.Spec)
	}
	step("the fleet's scheduler has not taken it up")
	s.binds(o, allowed(o, map[string]int32{"east": 2}))
	step("east: it is not there yet")
	s.binds(o, runs(o, fleetv1.Progressing))
	step("east: Progressing")
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		b.Generation = 2
		runs(o, fleetv1.Healthy)(b)
		b.Status.Conditions[0].ObservedGeneration = 1 // of before it was allowed
	})
	step("what its clusters say is not summed up yet")
	s.binds(o, runs(o, fleetv1.Healthy))
	if err := w.Place(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	// Once more, for a server that died: it is done.
	if err := w.Place(t.Context(), what); err != nil {
		t.Fatal(err)
	}
	// Another Apply finds nothing of it.
	again := what
	again.ApplyUID = "other"
	if err := w.Place(t.Context(), again); !errors.Is(err, infra.ErrStale) {
		t.Errorf("another Apply: %v", err)
	}
	// Allowed when something else was proposed at that moment: it is taken back.
	s.binds(o, proposes(o, "sha256:two", false, map[string]int32{"east": 1, "west": 1}))
	all, _, _ = w.look(t.Context(), "shop", every(true))
	what = infra.PlaceRequest{Address: all[0].address(), Preconditions: all[0].preconditions(), ApplyUID: "later"}
	step("the fleet's scheduler has not taken it up")
	s.binds(o, proposes(o, "sha256:three", false, map[string]int32{"west": 2}))
	if _, err := w.step(t.Context(), &what); !errors.Is(err, infra.ErrStale) {
		t.Errorf("what moved: %v", err)
	}
	if b := s.binds(o, func(*fleetv1.ResourceBinding) {}); b.Spec.Approved != "" {
		t.Errorf("what moved stays allowed: %+v", b.Spec)
	}
}

// What was allowed once is in the plan that allowed it, and the next one shows what is another.
func TestContentComesFromThePlanBefore(t *testing.T) {
	s := open(t)
	s.workloads = true
	s.make("syncpolicies", "SyncPolicy", "careful", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	s.begin()
	s.make("plans", "Plan", "one", fields{})
	p := s.awaitPlan("one", v1alpha1.PlanPlanned)
	s.binds(o, func(b *fleetv1.ResourceBinding) {
		allowed(o, map[string]int32{"east": 2})(b)
		b.Annotations = map[string]string{plannedAnnotation: p.Name + " " + string(p.UID)}
	})
	containers := []any{map[string]any{"name": "c", "image": "nginx:2"}}
	if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	o, err := s.dyn.Resource(kschema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace("shop").Update(t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"east": 2}))
	s.make("plans", "Plan", "two", fields{})
	s.awaitPlan("two", v1alpha1.PlanPlanned)
	all := s.engine.asked()
	c := all[len(all)-1].Workloads[0]
	var paths []string
	for _, f := range c.Fields {
		paths = append(paths, f.Path)
	}
	if !slices.Contains(paths, "spec.template.spec.containers[0].image") || slices.Contains(paths, "spec.replicas") {
		t.Errorf("what differs is %v", paths)
	}
}

// Nothing of a Secret is in a plan.
func TestSecretsAreNotShown(t *testing.T) {
	secret := &unstructured.Unstructured{Object: fields{"apiVersion": "v1", "kind": "Secret", "metadata": fields{"name": "db"}, "data": fields{"p": "aHVzaA=="}}}
	if got := contentOf(secret); got != nil {
		t.Errorf("a Secret is shown as %v", got)
	}
	large := &unstructured.Unstructured{Object: fields{"apiVersion": "v1", "kind": "ConfigMap", "data": fields{"p": strings.Repeat("x", shownContent)}}}
	if got := contentOf(large); got != nil {
		t.Errorf("a large object is shown")
	}
}

// Which workloads wait for plans follows from the policies, and is told when it changes.
func TestWorkloadPolicies(t *testing.T) {
	s := open(t)
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
		eventually(t, "it is so", func() bool { return w.Manual(namespace, set) == want })
	}
	if w.Manual("shop", nil) {
		t.Error("without a policy, workloads wait for plans")
	}
	s.make("syncpolicies", "SyncPolicy", "infra", fields{"mode": "Manual"})
	becomes(false, "shop", nil)
	s.make("syncpolicies", "SyncPolicy", "gold", fields{"mode": "Manual", "appliesTo": []any{"Workloads"}, "selector": fields{"matchLabels": fields{"tier": "gold"}}})
	becomes(true, "shop", map[string]string{"tier": "gold"})
	if w.Manual("shop", map[string]string{}) || !w.Manual("shop", nil) || w.Manual("other", nil) {
		t.Error("a selector selects what it should not, or not what it should")
	}
	s.put("/apis/infra.atoll.dev/v1alpha1/clustersyncpolicies", fields{"apiVersion": "infra.atoll.dev/v1alpha1", "kind": "ClusterSyncPolicy", "metadata": fields{"name": "all"},
		"spec": fields{"mode": "Manual", "appliesTo": []any{"Workloads", "Infrastructure"}}})
	becomes(true, "other", map[string]string{})
	s.make("syncpolicies", "SyncPolicy", "free", fields{"mode": "Auto", "appliesTo": []any{"Workloads"}})
	becomes(false, "shop", map[string]string{})
	s.remove("syncpolicies", "free")
	becomes(true, "shop", map[string]string{})
}
