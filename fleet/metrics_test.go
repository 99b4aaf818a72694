package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestMetricsOfTheLeader: clusters and objects are counted while this server leads, and not before
// and after. A state that a member invents and a cluster that has not joined get no series.
func TestMetricsOfTheLeader(t *testing.T) {
	cluster := func(name string, conditions ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
			"metadata": map[string]any{"name": name}, "status": map[string]any{"conditions": conditions}}}
	}
	condition := func(kind, status string) any { return map[string]any{"type": kind, "status": status} }
	binding := func(name, scheduled string, shares []any, entries ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ResourceBinding",
			"metadata": map[string]any{"namespace": "shop", "name": name},
			"spec":     map[string]any{"clusters": shares},
			"status":   map[string]any{"conditions": []any{condition("Scheduled", scheduled)}, "clusters": entries}}}
	}
	share := func(name string) any { return map[string]any{"name": name, "reason": "Scheduled"} }
	entry := func(name, reason, health string) any {
		return map[string]any{"name": name, "reason": reason, "health": health, "lastUpdateTime": "2026-01-01T00:00:00Z"}
	}
	session, _ := openSession(t, nil,
		cluster("east", condition("Ready", "True")), cluster("west", condition("Ready", "False"), condition("DeletionsHalted", "True")),
		binding("a", "True", []any{share("east"), share("west")}, entry("east", "", "Healthy")),
		binding("b", "True", []any{share("east")}, entry("east", "", "Healthy"), entry("west", "RemovalHeld", "Degraded")),
		binding("c", "False", []any{share("gone")}, entry("gone", "", "Healthy"), entry("east", "Invented-17", "Great")))

	m := NewMetrics()
	expect := func(want string) {
		t.Helper()
		var text strings.Builder
		for line := range strings.Lines(want) {
			name, _, _ := strings.Cut(line, "{")
			name, _, _ = strings.Cut(name, " ")
			if !strings.Contains(text.String(), "# TYPE "+name+" ") {
				fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s gauge\n", name, helpOf(t, m, name), name)
			}
			text.WriteString(line)
		}
		if err := testutil.CollectAndCompare(m, strings.NewReader(text.String()),
			"atoll_fleet_leader", "atoll_fleet_cluster_ready", "atoll_fleet_cluster_deletions_halted", "atoll_fleet_cluster_objects", "atoll_fleet_bindings"); err != nil {
			t.Error(err)
		}
	}
	expect("atoll_fleet_leader 0\n")
	end := m.lead(session)
	expect(`atoll_fleet_leader 1
atoll_fleet_cluster_ready{cluster="east"} 1
atoll_fleet_cluster_ready{cluster="west"} 0
atoll_fleet_cluster_deletions_halted{cluster="east"} 0
atoll_fleet_cluster_deletions_halted{cluster="west"} 1
atoll_fleet_cluster_objects{cluster="east",health="Healthy",state="Synced"} 2
atoll_fleet_cluster_objects{cluster="east",health="Unknown",state="Other"} 1
atoll_fleet_cluster_objects{cluster="west",health="Degraded",state="RemovalHeld"} 1
atoll_fleet_cluster_objects{cluster="west",health="Unknown",state="Pending"} 1
atoll_fleet_bindings{scheduled="false"} 1
atoll_fleet_bindings{scheduled="true"} 2
`)
	end()
	expect("atoll_fleet_leader 0\n")
	var none *Metrics
	none.lead(session)()
}

// helpOf returns the help of one of the metrics, which is not what the test is about.
func helpOf(t *testing.T, m *Metrics, name string) string {
	t.Helper()
	for _, d := range []fmt.Stringer{m.ready, m.halted, m.objects, m.bindings, m.leader.Desc()} {
		if _, rest, found := strings.Cut(d.String(), fmt.Sprintf("fqName: %q, help: \"", name)); found {
			help, _, _ := strings.Cut(rest, `"`)
			return help
		}
	}
	t.Fatalf("no metric %s", name)
	return ""
}

// TestErrorsByReason: errors of reconciles are counted by a reason out of a closed set.
func TestErrorsByReason(t *testing.T) {
	m := NewMetrics()
	invented := apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	invented.ErrStatus.Reason = "Invented-17"
	for want, err := range map[string]error{
		"Conflict":    fmt.Errorf("write: %w", apierrors.NewConflict(schema.GroupResource{}, "a", nil)),
		"Other":       invented,
		"Timeout":     fmt.Errorf("read: %w", context.DeadlineExceeded),
		"Unreachable": &url.Error{Op: "Get", URL: "https://member", Err: errors.New("connection refused")},
	} {
		reconcile := Measured(m, "test", func(_ context.Context, fails bool) error {
			if fails {
				return err
			}
			return nil
		})
		if got := reconcile(t.Context(), true); !errors.Is(got, err) {
			t.Errorf("returned %v", got)
		}
		if err := reconcile(t.Context(), false); err != nil {
			t.Error(err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		_ = reconcile(ended, true) // it failed because its context ended
		if n := testutil.ToFloat64(m.errors.WithLabelValues("test", want)); n != 1 {
			t.Errorf("%s was counted %v times", want, n)
		}
	}
	if n := testutil.CollectAndCount(m.errors); n != 4 {
		t.Errorf("%d series", n)
	}
}
