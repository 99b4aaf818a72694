package plancontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/applier"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fakeEngine is an engine with scripted results: a plan creates the disks in creates.
type fakeEngine struct {
	mu      sync.Mutex
	creates []string // names of disks
	before  []string // the preconditions of each
	fails   error
	planned []planner.Options
	applied []applier.Options
	// hold, if not nil, blocks an apply until it is closed.
	hold chan struct{}
	// more is the number of additional resources of plans and applies.
	more int
}

func (e *fakeEngine) Plan(ctx context.Context, what planner.Options, store planstore.Store) (*planner.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.planned = append(e.planned, what)
	if e.fails != nil {
		return nil, e.fails
	}
	chunks := planstore.NewChunkWriter(func(n int, pieces [][]byte) error { return store.Put(ctx, n, pieces, [][]byte{[]byte("sealed")}) })
	for _, name := range e.creates {
		if err := chunks.Add(&change.Change{Address: change.Address{Type: "demo_disk", Name: name}, Action: change.Create, Preconditions: e.before}); err != nil {
			return nil, err
		}
	}
	for _, w := range what.Workloads {
		if err := chunks.Add(w); err != nil {
			return nil, err
		}
	}
	contents, err := chunks.Finish()
	if err != nil {
		return nil, err
	}
	what.OnProgress(1, 1)
	what.OnProviderCall(int64(e.more))
	return &planner.Result{Contents: contents, ProviderCalls: e.more}, nil
}

func (e *fakeEngine) Apply(ctx context.Context, what applier.Options, store planstore.Store) (*applier.Result, error) {
	e.mu.Lock()
	e.applied = append(e.applied, what)
	hold, more := e.hold, int64(e.more)
	e.mu.Unlock()
	out := &applier.Result{Total: 1 + more, Succeeded: 1 + more, Summary: v1alpha1.PlanSummary{Create: 1}}
	what.OnProgress(applier.Result{Total: 1 + more})
	if hold == nil {
		return out, nil
	}
	select {
	case <-hold:
		return out, nil
	case <-what.Canceled:
		return &applier.Result{Total: 1, Canceled: 1}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *fakeEngine) asked() (all []planner.Options) {
	e.set(func() { all = slices.Clone(e.planned) })
	return all
}

func (e *fakeEngine) done() (all []applier.Options) {
	e.set(func() { all = slices.Clone(e.applied) })
	return all
}

func (e *fakeEngine) set(do func()) { e.mu.Lock(); defer e.mu.Unlock(); do() }

func (s *testEnv) plan(name string) *v1alpha1.Plan {
	p := &v1alpha1.Plan{}
	s.server.Read(v1alpha1.PlanResource, "shop", name, p)
	return p
}

func (s *testEnv) apply(name string) *v1alpha1.Apply {
	a := &v1alpha1.Apply{}
	s.server.Read(v1alpha1.ApplyResource, "shop", name, a)
	return a
}

func (s *testEnv) awaitPlan(name string, phase v1alpha1.PlanPhase) *v1alpha1.Plan {
	s.t.Helper()
	p := &v1alpha1.Plan{}
	fakeapi.Eventually(s.t, fmt.Sprintf("plan %s is %s", name, phase), func() error {
		if p = s.plan(name); p.Status.Phase != phase {
			return fmt.Errorf("it is %+v", p.Status)
		}
		return nil
	})
	return p
}

func (s *testEnv) awaitApply(name string, phase v1alpha1.ApplyPhase, reason string) *v1alpha1.Apply {
	s.t.Helper()
	a := &v1alpha1.Apply{}
	fakeapi.Eventually(s.t, fmt.Sprintf("apply %s is %s %s", name, phase, reason), func() error {
		if a = s.apply(name); a.Status.Phase != phase || !is(a.Status.Conditions, v1alpha1.ApplyComplete, reason) {
			return fmt.Errorf("it is %+v", a.Status)
		}
		return nil
	})
	return a
}

func is(all []metav1.Condition, kind, reason string) bool {
	c := meta.FindStatusCondition(all, kind)
	return c != nil && c.Reason == reason
}

func (s *testEnv) approve(name, plan, digest, who string) {
	s.t.Helper()
	s.make("Approval", name, fields{"plan": plan, "digest": digest, "approver": fields{"username": who}})
}

func TestPlanApproveApply(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a", "b"}
	s.begin()
	s.make("Plan", "one", fields{"refresh": true, "parallelism": 3})
	p := s.awaitPlan("one", v1alpha1.PlanPlanned)
	if p.Status.Digest == "" || p.Status.Summary.Create != 2 || len(p.Status.Chunks) != 1 || p.Status.StartTime == nil || p.Status.CompletionTime == nil {
		t.Errorf("status %+v", p.Status)
	}
	if what := s.engine.asked()[0]; !what.Refresh || what.Parallelism != 3 || len(what.Salt) != 32 || what.Namespace != "shop" {
		t.Errorf("request %+v", what)
	}
	fakeapi.Until(t, "the plan waits for approval", func() bool { return is(s.plan("one").Status.Conditions, v1alpha1.PlanApproved, v1alpha1.ReasonWaiting) })
	store := apistore.NewPlanStore(s.dyn, p)
	if pieces, err := store.Shown(t.Context(), 0); err != nil || len(pieces) != 1 {
		t.Errorf("%d pieces, %v", len(pieces), err)
	}
	if salt, err := store.Salt(t.Context()); err != nil || string(salt) != string(s.engine.asked()[0].Salt) {
		t.Errorf("the salt is %x, %v", salt, err)
	}
	s.make("Apply", "go", fields{"plan": "one", "digest": p.Status.Digest})
	s.awaitApply("go", v1alpha1.ApplyPending, v1alpha1.ReasonNotApproved)
	s.approve("wrong", "one", "sha256:"+strings.Repeat("0", 64), "eve")
	fakeapi.Until(t, "an approval of another digest is reported", func() bool {
		return is(s.plan("one").Status.Conditions, v1alpha1.PlanApproved, v1alpha1.ReasonOtherDigest)
	})
	s.approve("right", "one", p.Status.Digest, "ann")
	a := s.awaitApply("go", v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded)
	if !slices.Equal(a.Status.ApprovedBy, []string{"ann"}) || a.Status.Succeeded != 1 || a.Status.Done.Create != 1 || a.Status.CompletionTime == nil {
		t.Errorf("status %+v", a.Status)
	}
	s.awaitPlan("one", v1alpha1.PlanApplied)
	if what := s.engine.done()[0]; what.Parallelism != defaultParallelism || what.Server != "me" || what.ApplyUID != string(a.UID) || what.Digest != p.Status.Digest {
		t.Errorf("request %+v", what)
	}
	s.make("Apply", "again", fields{"plan": "one", "digest": p.Status.Digest})
	s.awaitApply("again", v1alpha1.ApplyFailed, v1alpha1.ReasonFailed)
	fakeapi.Until(t, "events are recorded", func() bool {
		got := s.events()
		return slices.Contains(got, "Planned") && slices.Contains(got, "Applied") && slices.Contains(got, "ApplyFailed")
	})
	s.server.Delete(v1alpha1.PlanResource, "shop", "one")
	fakeapi.Until(t, "the plan's pieces are deleted", func() bool { return s.count(v1alpha1.PlanChangesResource)+s.count(v1alpha1.PlanSecretsResource) == 0 })
}

// OnLargeRun is called only for large runs.
func TestOnLargeRun(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a"}
	var times atomic.Int64
	var under atomic.Int64
	var last atomic.Bool
	last.Store(true)
	s.onLargeRun = func(stays bool) func() {
		if last.Swap(stays) == stays {
			t.Error("a plan retains nothing and comes before its apply, which does")
		}
		if n := under.Add(1); n != 1 {
			t.Errorf("%d large runs are active", n)
		}
		return func() { under.Add(-1); times.Add(1) }
	}
	s.begin()
	for n, more := range []int{0, largeRun} {
		s.engine.set(func() { s.engine.more = more })
		name := fmt.Sprint("p", n)
		s.make("Plan", name, nil)
		p := s.awaitPlan(name, v1alpha1.PlanPlanned)
		s.approve(name, name, p.Status.Digest, "ann")
		s.make("Apply", name, fields{"plan": name, "digest": p.Status.Digest})
		s.awaitApply(name, v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded)
		want := int64(2 * n) // of the plan and of the apply
		fakeapi.Until(t, fmt.Sprintf("memory is released %d times (was %d)", want, times.Load()), func() bool { return times.Load() == want })
	}
}

func TestOneApplyAtATimeAndCancel(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates, s.engine.hold = []string{"a"}, make(chan struct{})
	s.begin()
	for _, name := range []string{"one", "two"} {
		s.make("Plan", name, fields{})
		p := s.awaitPlan(name, v1alpha1.PlanPlanned)
		s.approve(name, name, p.Status.Digest, "ann")
		s.make("Apply", name, fields{"plan": name, "digest": p.Status.Digest})
		if name == "one" {
			s.awaitApply("one", v1alpha1.ApplyRunning, v1alpha1.ReasonRunning)
		}
	}
	s.awaitApply("two", v1alpha1.ApplyPending, v1alpha1.ReasonAnotherApply)
	s.server.Change(v1alpha1.ApplyResource, "shop", "one", func(u *unstructured.Unstructured) { u.Object["spec"].(fields)["cancel"] = true })
	s.awaitApply("one", v1alpha1.ApplyCanceled, v1alpha1.ReasonCanceled)
	s.awaitApply("two", v1alpha1.ApplyRunning, v1alpha1.ReasonRunning)
	close(s.engine.hold)
	s.awaitApply("two", v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded)
}

// The next leader resumes an apply with the same UID.
func TestNextLeaderResumesApply(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates, s.engine.hold = []string{"a"}, make(chan struct{})
	s.begin()
	s.make("Plan", "one", fields{})
	p := s.awaitPlan("one", v1alpha1.PlanPlanned)
	s.approve("yes", "one", p.Status.Digest, "ann")
	s.make("Apply", "go", fields{"plan": "one", "digest": p.Status.Digest})
	s.awaitApply("go", v1alpha1.ApplyRunning, v1alpha1.ReasonRunning)
	fakeapi.Until(t, "the engine applies", func() bool { return len(s.engine.done()) > 0 })
	s.stop()
	s.server.Delete(v1alpha1.ApprovalResource, "shop", "yes") // approvals are not checked after the start
	s.engine.set(func() { s.engine.hold = nil })
	s.begin()
	a := s.awaitApply("go", v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded)
	for _, what := range s.engine.done() {
		if what.ApplyUID != string(a.UID) {
			t.Errorf("it was applied as %s", what.ApplyUID)
		}
	}
	if !slices.Equal(a.Status.ApprovedBy, []string{"ann"}) {
		t.Errorf("approved by %v", a.Status.ApprovedBy)
	}
}

// The next leader computes an unfinished plan from scratch.
func TestNextLeaderRestartsPlan(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a"}
	s.make("Plan", "one", fields{})
	if _, err := s.api.plans.UpdateStatus(t.Context(), "shop", "one", "", func(p *v1alpha1.Plan) bool { p.Status.Phase = v1alpha1.PlanPlanning; return true }); err != nil {
		t.Fatal(err)
	}
	store := apistore.NewPlanStore(s.dyn, s.plan("one"))
	if err := store.Put(t.Context(), 0, [][]byte{[]byte("x"), []byte("y"), []byte("z")}, nil); err != nil {
		t.Fatal(err)
	}
	s.begin()
	s.awaitPlan("one", v1alpha1.PlanPlanned)
	if pieces, err := store.Shown(t.Context(), 0); err != nil || len(pieces) != 1 {
		t.Errorf("%d pieces, %v: leftover pieces remain", len(pieces), err)
	}
}

func TestInvalidPlans(t *testing.T) {
	s := newTestEnv(t)
	s.begin()
	for name, c := range map[string]struct {
		spec       fields
		field, say string
	}{
		"nokind":    {fields{"targets": []fields{{"kind": "Boat", "name": "a"}}}, "spec.targets[0]", "no Provider serves kind Boat"},
		"nogroup":   {fields{"exclude": []fields{{"group": other, "kind": "Disk", "name": "a"}}}, "spec.exclude[0]", "kind Disk not found in group " + other},
		"noobject":  {fields{"replace": []fields{{"kind": "Disk", "name": "a"}}}, "spec.replace[0]", "Disk a not found in namespace shop"},
		"rollback":  {fields{"rollback": "before"}, "spec.rollback", "Apply before not found"},
		"mode":      {fields{"rollback": "before", "mode": "Destroy"}, "spec.mode", "requires mode Normal"},
		"badgroup":  {fields{"objects": []fields{{"apiVersion": "v1", "kind": "Pod", "metadata": fields{"name": "a"}}}}, "spec.objects[0].apiVersion", "is not a provider's API version"},
		"elsewhere": {fields{"objects": []fields{{"apiVersion": demo + "/v1", "kind": "Disk", "metadata": fields{"name": "a", "namespace": "b"}}}}, "spec.objects[0].metadata.namespace", "must be shop, the namespace of the plan"},
	} {
		s.make("Plan", name, c.spec)
		p := s.awaitPlan(name, v1alpha1.PlanFailed)
		if len(p.Status.Problems) != 1 || p.Status.Problems[0].Field != c.field || !strings.Contains(p.Status.Problems[0].Message, c.say) {
			t.Errorf("%s: problems %+v", name, p.Status.Problems)
		}
	}
	if len(s.engine.asked()) != 0 {
		t.Error("the engine planned an invalid plan")
	}
}

func TestPlanIsRetried(t *testing.T) {
	s := newTestEnv(t)
	s.engine.fails = errors.New("the network is gone")
	s.begin()
	s.make("Plan", "one", fields{})
	fakeapi.Until(t, "the condition has the error", func() bool {
		c := meta.FindStatusCondition(s.plan("one").Status.Conditions, v1alpha1.PlanComplete)
		return c != nil && strings.Contains(c.Message, "the network is gone")
	})
	s.engine.set(func() { s.engine.fails = nil })
	s.awaitPlan("one", v1alpha1.PlanPlanned)
}

func TestPlanBecomesStale(t *testing.T) {
	s := newTestEnv(t)
	ref := expr.Ref{Type: "demo_disk", Namespace: "shop", Name: "a"}
	s.inventory.SetObject(&infra.Object{Ref: ref, Group: demo, UID: "u", Generation: 1})
	s.engine.creates, s.engine.before = []string{"a"}, []string{"object u@1", "state none"}
	s.begin()
	s.make("Plan", "one", fields{})
	s.awaitPlan("one", v1alpha1.PlanPlanned)
	s.reconciler.observeWrite("shop", false)
	s.inventory.SetObject(&infra.Object{Ref: ref, Group: demo, UID: "u", Generation: 2})
	s.reconciler.observeWrite("shop", false)
	fakeapi.Until(t, "the plan is no longer current", func() bool { return is(s.plan("one").Status.Conditions, v1alpha1.PlanCurrent, v1alpha1.ReasonMoved) })
}

// An Auto policy plans writes and applies the plans that its rules approve. Other plans wait for users.
func TestAutoPolicy(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a"}
	s.make("SyncPolicy", "auto", fields{"mode": "Auto", "appliesTo": []string{"Infrastructure"}, "approval": fields{
		"auto": []fields{{"name": "few", "expression": "plan.status.summary.create < 2 && plan.status.summary.delete == 0"}}}})
	s.begin()
	s.reconciler.observeWrite("shop", false)
	fakeapi.Until(t, "the write is applied", func() bool {
		all := s.server.List(v1alpha1.ApplyResource)
		if len(all) != 1 {
			return false
		}
		a := s.apply(all[0].GetName())
		return a.Status.Phase == v1alpha1.ApplySucceeded && slices.Equal(a.Status.ApprovedBy, []string{"SyncPolicy auto: few"})
	})
	s.engine.set(func() { s.engine.creates = []string{"a", "b"} })
	s.reconciler.observeWrite("shop", false)
	fakeapi.Until(t, "the larger plan waits for approval", func() bool {
		for _, item := range s.server.List(v1alpha1.PlanResource) {
			if p := s.plan(item.GetName()); p.Status.Summary.Create == 2 && is(p.Status.Conditions, v1alpha1.PlanApproved, v1alpha1.ReasonWaiting) {
				return true
			}
		}
		return false
	})
	if n := s.count(v1alpha1.ApplyResource); n != 1 {
		t.Errorf("%d applies", n)
	}
}

func TestInvalidPolicy(t *testing.T) {
	s := newTestEnv(t)
	s.make("SyncPolicy", "bad", fields{"mode": "Auto", "approval": fields{"auto": []fields{{"name": "x", "expression": "plan.status +"}}}})
	s.begin()
	fakeapi.Until(t, "the condition Valid has the error", func() bool {
		p, err := s.api.policies.Get(t.Context(), "shop", "bad")
		c := (*metav1.Condition)(nil)
		if err == nil {
			c = meta.FindStatusCondition(p.Status.Conditions, policyValid)
		}
		return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "spec.approval.auto[0].expression (x)")
	})
}

func TestPlanTTL(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a"}
	s.begin()
	s.make("Plan", "one", fields{"ttlSecondsAfterFinished": 1})
	fakeapi.Until(t, "the plan is computed", func() bool { return s.plan("one").Name == "" || s.plan("one").Status.Phase == v1alpha1.PlanPlanned })
	fakeapi.Until(t, "the plan is deleted", func() bool { return s.count(v1alpha1.PlanResource) == 0 })
}
