package join

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// TestToTakeOver: right after its first start on copied data, a control plane has not probed any cluster, and the
// conditions say what the first one knew.
func TestToTakeOver(t *testing.T) {
	cluster := func(name, holder, reason string) (c v1alpha1.Cluster) {
		c.Name = name
		if holder != "" {
			c.Status.Claim = &v1alpha1.ClusterClaim{Holder: holder}
		}
		if reason != "" {
			status := metav1.ConditionFalse
			if reason == v1alpha1.ReasonClusterReady {
				status = metav1.ConditionTrue
			}
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: status, Reason: reason}}
		}
		return c
	}
	all := []v1alpha1.Cluster{
		cluster("own", "second/b", v1alpha1.ReasonClusterReady),
		cluster("own-elsewhere", "second/a", v1alpha1.ReasonClusterReady), // the database failed over
		cluster("copied-file", "second/a", v1alpha1.ReasonOtherControlPlane),
		cluster("not-probed-since", "first/a", v1alpha1.ReasonClusterReady),
		cluster("first's", "first/a", v1alpha1.ReasonOtherControlPlane),
		cluster("new", "", ""),
	}
	tests := []struct {
		name    string
		named   []string
		want    []string
		problem string
	}{
		{"all", nil, []string{"copied-file", "not-probed-since", "first's"}, ""},
		{"named", []string{"first's"}, []string{"first's"}, ""},
		{"named, before a probe", []string{"not-probed-since"}, []string{"not-probed-since"}, ""},
		{"one that belongs to this one", []string{"own"}, nil, "cluster own belongs to no other control plane, as far as this one knows: its condition Ready is true, reason ClusterReady"},
		{"one that was never probed", []string{"new"}, nil, "it has not been probed"},
		{"unknown", []string{"nowhere"}, nil, "cluster nowhere not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			chosen, err := toTakeOver(fleet.ControlPlane{ID: "second", Database: "b"}, all, tt.named)
			var names []string
			for _, c := range chosen {
				names = append(names, c.Name)
			}
			if !slices.Equal(names, tt.want) {
				t.Errorf("chosen: %q", names)
			}
			if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("error: %v", err)
			}
		})
	}
	if chosen, err := toTakeOver(fleet.ControlPlane{}, all, nil); err != nil || len(chosen) != 2 || chosen[0].Name != "copied-file" || chosen[1].Name != "first's" {
		t.Errorf("a control plane that does not know which one it is takes over %v: %v", chosen, err)
	}
}
