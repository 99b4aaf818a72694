package syncer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

func (s *fixture) written(operation string) float64 {
	return testutil.ToFloat64(s.syncer.metrics.writes.WithLabelValues("east", operation))
}

// TestSyncDurationIsMeasured: from a change in the control plane, and not for what a syncer finds when
// it starts.
func TestSyncDurationIsMeasured(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.waitForConf()
	m := s.syncer.metrics
	if n := testutil.CollectAndCount(m.seconds); n != 0 || s.written(operationApply) != 1 {
		t.Errorf("after the start, %d series of durations and %v applies", n, s.written(operationApply))
	}
	s.control.Merge(configMaps, "shop", "conf", `{"data":{"a":"c"}}`)
	s.eventually("the duration is recorded", func() bool { return testutil.CollectAndCount(m.seconds) == 1 })
	s.settle() // which has a marker applied and corrected
	s.eventually("all applies are counted", func() bool { return s.written(operationApply) == 2+2 })
	if n := testutil.ToFloat64(m.corrections.WithLabelValues("east")); n != 1 {
		t.Errorf("%v corrections", n)
	}
	s.eventually("no changes are waiting", func() bool {
		s.syncer.changes.mu.Lock()
		defer s.syncer.changes.mu.Unlock()
		return len(s.syncer.changes.heard) == 0
	})
}

func TestCorrectionsAreCounted(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	s.waitForConf()
	s.edit("kubectl", configMaps, "conf", func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"a": "by hand"} })
	s.eventually("the correction is counted", func() bool {
		return testutil.ToFloat64(s.syncer.metrics.corrections.WithLabelValues("east")) == 1
	})
	if n := testutil.CollectAndCount(s.syncer.metrics.seconds); n != 0 {
		t.Error("a correction counts as the synchronization of a change")
	}
}

// TestHeldRemovalsAreCounted: also while they are held, and the deletions once they are allowed.
func TestHeldRemovalsAreCounted(t *testing.T) {
	control, member := unchosenBindings(v1alpha1.MinDeletions + 1)
	s := newFixture(t, control, member)
	held := func(n int) string {
		return fmt.Sprintf("# HELP atoll_fleet_sync_held_removals Removals that the syncer holds because there are too many.\n"+
			"# TYPE atoll_fleet_sync_held_removals gauge\natoll_fleet_sync_held_removals{cluster=\"east\"} %d\n", n)
	}
	s.eventually("all are counted", func() bool {
		return testutil.CollectAndCompare(s.syncer.metrics, strings.NewReader(held(v1alpha1.MinDeletions+1)), "atoll_fleet_sync_held_removals") == nil
	})
	if n := s.written(operationDelete); n != 0 {
		t.Errorf("%v deletions", n)
	}
	s.allowDeletions()
	s.eventually("the deletions are counted", func() bool { return s.written(operationDelete) == v1alpha1.MinDeletions+1 })
	s.eventually("none is held", func() bool {
		return testutil.CollectAndCompare(s.syncer.metrics, strings.NewReader(held(0)), "atoll_fleet_sync_held_removals") == nil
	})
}

func TestFailuresAreCounted(t *testing.T) {
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), objects(configMap("theirs")))
	s.eventually("the foreign object is counted", func() bool {
		return testutil.ToFloat64(s.syncer.metrics.errors.WithLabelValues("east", "ForeignObject")) > 0
	})
}

// TestLeftClustersHaveNoSeries: the number of series is that of the clusters that are joined.
func TestLeftClustersHaveNoSeries(t *testing.T) {
	m := NewMetrics()
	s := newFixture(t, objects(configMap("source"), binding(true, nil)), nil)
	end := m.begin(s.syncer)
	m.wrote("east", operationApply)
	end()
	if n := testutil.CollectAndCount(m); n != 1 {
		t.Errorf("%d series after the syncer ended, want the counter", n)
	}
	s.control.Delete(v1alpha1.ClusterResource, "", "east")
	s.eventually("the Cluster is gone", func() bool { _, joined := s.syncer.Cluster(); return !joined })
	end = m.begin(s.syncer)
	m.wrote("east", operationApply)
	m.synced("east", 1)
	end()
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d series of a cluster that has left", n)
	}
}
