package placing

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	fleetv1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/approval"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// Workloads are listed as undecided until the scheduler has decided about all writes.
func TestUndecidedWorkloads(t *testing.T) {
	s := newFixture(t)
	w := New(s.dyn, clock.RealClock{})
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

// careful requires plans for all workloads.
func careful() []*approval.Policy {
	spec := &v1alpha1.SyncPolicySpec{Mode: v1alpha1.SyncManual, AppliesTo: []v1alpha1.SyncSubject{v1alpha1.SyncWorkloads}}
	return []*approval.Policy{approval.Parse(&metav1.ObjectMeta{Name: "careful"}, spec, false, nil)}
}

// proposed returns the only change of a plan.
func proposed(t *testing.T, w *Workloads) *change.Change {
	t.Helper()
	all, problems, err := w.Changes(t.Context(), "shop", careful(), nil)
	if err != nil || len(all) != 1 || len(problems) > 0 {
		t.Fatalf("the plan has %+v, %v, %v", all, problems, err)
	}
	return all[0]
}

// A proposal is one change for all clusters, and becomes stale with another proposal.
func TestChanges(t *testing.T) {
	s := newFixture(t)
	w := New(s.dyn, clock.RealClock{})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	c := proposed(t, w)
	if c.Action != change.Place || c.Address.String() != `namespace["shop"].k8s["apps/v1"].Deployment["web"]` || !slices.Equal(c.Uses, []string{"db"}) ||
		c.Before != nil || !strings.Contains(string(c.After.JSON), `"clusters":{"east":2}`) || !strings.Contains(string(c.After.JSON), `"image":"nginx"`) ||
		precondition(c.Preconditions, proposalPrefix) != "sha256:one" || precondition(c.Preconditions, objectPrefix) != interpret.ContentDigest(o) {
		text, _ := json.Marshal(c)
		t.Errorf("the change is %s", text)
	}
	stale := func(want bool) {
		t.Helper()
		if is, err := w.Proposals("shop").IsStale(t.Context(), c); err != nil || is != want {
			t.Errorf("stale: %v, %v", is, err)
		}
	}
	stale(false)
	s.binds(o, proposes(o, "sha256:two", true, map[string]int32{"west": 2}))
	stale(true)
}

// The approved content comes from the plan that approved it, so that the next plan shows the difference.
func TestPriorContentFromApprovedPlan(t *testing.T) {
	s := newFixture(t)
	w := New(s.dyn, clock.RealClock{})
	o := s.deployment("web", "nginx")
	s.binds(o, proposes(o, "sha256:one", true, map[string]int32{"east": 2}))
	p := s.planned("one", proposed(t, w))
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
	c := proposed(t, w)
	var paths []string
	for _, f := range c.Fields {
		paths = append(paths, f.Path)
	}
	if !slices.Contains(paths, "spec.template.spec.containers[0].image") || slices.Contains(paths, "spec.replicas") {
		t.Errorf("changed fields: %v", paths)
	}
}

// planned stores a plan with a change.
func (s *fixture) planned(name string, c *change.Change) *v1alpha1.Plan {
	s.t.Helper()
	s.make("Plan", name, fields{})
	p := &v1alpha1.Plan{}
	s.server.Read(v1alpha1.PlanResource, "shop", name, p)
	store := apistore.NewPlanStore(s.dyn, p)
	chunks := planstore.NewChunkWriter(func(n int, pieces [][]byte) error {
		return store.Put(s.t.Context(), n, pieces, [][]byte{[]byte("sealed")})
	})
	if err := chunks.Add(c); err != nil {
		s.t.Fatal(err)
	}
	contents, err := chunks.Finish()
	if err != nil {
		s.t.Fatal(err)
	}
	plans := controllers.NewClient[v1alpha1.Plan](s.dyn, v1alpha1.PlanResource, "Plan", "test")
	p, err = plans.UpdateStatus(s.t.Context(), "shop", name, p.UID, func(p *v1alpha1.Plan) bool {
		planstore.SetContents(&p.Status, contents)
		return true
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// Place approves once, and waits until the clusters have carried it out.
func TestPlace(t *testing.T) {
	s := newFixture(t)
	w := New(s.dyn, clock.RealClock{})
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

// Policies follow edits of policies and notify their listeners.
func TestPolicies(t *testing.T) {
	s := newFixture(t)
	w := NewPolicies(s.dyn, clock.RealClock{})
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
