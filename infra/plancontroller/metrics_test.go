package plancontroller

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/applier"
	"github.com/atoll-dev/atoll/infra/feed"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/planstore"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestPlansAndAppliesAreCounted(t *testing.T) {
	s := newTestEnv(t)
	s.engine.creates = []string{"a", "b"}
	s.engine.fails = fmt.Errorf("read: %w", providerapi.ErrUnavailable)
	s.begin()
	m := s.reconciler.metrics
	s.make("Plan", "one", fields{})
	fakeapi.Until(t, "the failed attempt is counted", func() bool {
		return testutil.ToFloat64(m.errors.WithLabelValues(operationPlan, "ProviderUnavailable")) == 1
	})
	s.engine.set(func() { s.engine.fails = nil })
	p := s.awaitPlan("one", v1alpha1.PlanPlanned)
	fakeapi.Until(t, "the plan is counted", func() bool { return testutil.ToFloat64(m.plans.WithLabelValues("complete")) == 1 })
	if n := testutil.ToFloat64(m.planned.WithLabelValues("create")); n != 2 || testutil.CollectAndCount(m.planned) != 1 {
		t.Errorf("%v creations are planned", n)
	}
	s.make("Plan", "invalid", fields{"rollback": "before", "mode": "Destroy"})
	s.awaitPlan("invalid", v1alpha1.PlanFailed)
	fakeapi.Until(t, "the invalid plan is counted", func() bool { return testutil.ToFloat64(m.plans.WithLabelValues("failed")) == 1 })
	if n := testutil.CollectAndCount(m.planSeconds); n != 2 {
		t.Errorf("durations of %d results", n)
	}

	s.approve("right", "one", p.Status.Digest, "ann")
	s.make("Apply", "go", fields{"plan": "one", "digest": p.Status.Digest})
	s.awaitApply("go", v1alpha1.ApplySucceeded, v1alpha1.ReasonSucceeded)
	fakeapi.Until(t, "the apply is counted", func() bool { return testutil.ToFloat64(m.applies.WithLabelValues("succeeded")) == 1 })
	if n := testutil.ToFloat64(m.applied.WithLabelValues("create")); n != 1 || testutil.CollectAndCount(m.applySeconds) != 1 {
		t.Errorf("%v resources were created", n)
	}
	s.make("Apply", "again", fields{"plan": "one", "digest": p.Status.Digest})
	s.awaitApply("again", v1alpha1.ApplyFailed, v1alpha1.ReasonFailed)
	fakeapi.Until(t, "the refused apply is counted", func() bool { return testutil.ToFloat64(m.applies.WithLabelValues("failed")) == 1 })

	// What the leader has in its caches.
	end := m.lead(&measuredSession{s.reconciler.caches, feed.New(feed.Config{})})
	fakeapi.Until(t, "Plans and Applies are counted by phase", func() bool {
		return testutil.CollectAndCompare(m, strings.NewReader(`# HELP atoll_infra_applies Stored Applies by phase.
# TYPE atoll_infra_applies gauge
atoll_infra_applies{phase="Failed"} 1
atoll_infra_applies{phase="Succeeded"} 1
# HELP atoll_infra_leader 1 if this server runs plans and applies.
# TYPE atoll_infra_leader gauge
atoll_infra_leader 1
# HELP atoll_infra_plans Stored Plans by phase.
# TYPE atoll_infra_plans gauge
atoll_infra_plans{phase="Applied"} 1
atoll_infra_plans{phase="Failed"} 1
`), "atoll_infra_plans", "atoll_infra_applies", "atoll_infra_leader") == nil
	})
	end()
	if n := testutil.CollectAndCount(m, "atoll_infra_plans", "atoll_infra_applies"); n != 0 || testutil.ToFloat64(m.leader) != 0 {
		t.Errorf("%d series after this server stopped leading", n)
	}
}

// TestFailedChangesAreCounted: by why an apply did not carry them out.
func TestFailedChangesAreCounted(t *testing.T) {
	m := NewMetrics()
	m.applyFinished(&v1alpha1.Apply{Status: v1alpha1.ApplyStatus{Phase: v1alpha1.ApplyFailed}}, &applier.Result{Failed: 1, Refused: 2, Blocked: 3, Canceled: 4})
	for reason, want := range map[string]float64{"failed": 1, "stale": 2, "blocked": 3, "canceled": 4} {
		if n := testutil.ToFloat64(m.notApplied.WithLabelValues(reason)); n != want {
			t.Errorf("%s: %v, want %v", reason, n, want)
		}
	}
	m.planFinished(&v1alpha1.Plan{}, &planner.Result{Contents: &planstore.Contents{}, NotPlanned: 3})
	if n := testutil.ToFloat64(m.notPlanned); n != 3 || testutil.ToFloat64(m.plans.WithLabelValues("incomplete")) != 1 {
		t.Errorf("%v resources were not planned", n)
	}
	m.failed(operationApply, errors.New("anything"))
	if n := testutil.ToFloat64(m.errors.WithLabelValues(operationApply, "Other")); n != 1 {
		t.Errorf("counted %v times", n)
	}
}
