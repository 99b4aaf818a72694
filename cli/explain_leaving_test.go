package cli

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestExplainLeavingCopies: an explanation names the copies that are to leave, and what their removal waits for.
func TestExplainLeavingCopies(t *testing.T) {
	b := &v1alpha1.ResourceBinding{}
	b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: "west"}}
	b.Status.Clusters = []v1alpha1.ClusterState{{Name: "west"}, {Name: "east", Reason: v1alpha1.StateAwaitsReplacement, Message: "in west, it is Progressing there"},
		{Name: "south", Stale: &v1alpha1.Staleness{Reason: v1alpha1.ReasonClusterUnreachable}}, {Name: "north"}}
	var out strings.Builder
	(&explanation{Leaving: leavingCopies(b)}).printLeaving(&out)
	if want := `Still in east: AwaitsReplacement: in west, it is Progressing there
Still in south: ClusterUnreachable: it is removed when the cluster is back
Still in north: it is being removed
`; out.String() != want {
		t.Errorf("it says\n%s", out.String())
	}
	if leavingCopies(nil) != nil {
		t.Error("an object without a binding leaves clusters")
	}
}
