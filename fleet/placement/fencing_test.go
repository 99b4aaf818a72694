package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestFencedObjectsWait: an object with fencing leaves an unreachable cluster only when the cluster has had the time to stop
// it, and a cluster that cannot stop it never loses it.
func TestFencedObjectsWait(t *testing.T) {
	p := policy(t, "fencing: {lease: 45s, grace: 30s}\ntolerations: [{key: fleet.atoll.dev/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]")
	takeover := 45*time.Second + 30*time.Second + v1alpha1.FencingMargin
	for name, tt := range map[string]struct {
		object  Object
		fences  bool
		after   time.Duration
		stays   bool
		message string
	}{
		"before the lease and the grace are over": {dividedObject(6), true, takeover - time.Second, true, "keeps its share until"},
		"after that":                    {dividedObject(6), true, takeover, false, ""},
		"a cluster that does not fence": {dividedObject(6), false, time.Hour, true, "does not stop the replicas itself"},
		"an object without replicas":    {Object{Key: "one", Mode: v1alpha1.ModeSingle}, true, time.Hour, true, "does not stop the replicas itself"},
	} {
		clusters := threeClusters()
		previous := Decide(Request{Object: tt.object, Policy: p, Fleet: NewFleet(clusters[:1]), Now: start}).Shares()
		clusters[0].Ready, clusters[0].Why, clusters[0].Since = false, v1alpha1.ReasonClusterUnreachable, start
		clusters[0].Object = &v1alpha1.Cluster{Status: v1alpha1.ClusterStatus{Fences: tt.fences}}
		d, verdicts := Explain(Request{Object: tt.object, Policy: p, Fleet: NewFleet(clusters), Previous: previous, Now: start.Add(tt.after)})
		if stays := chosen(d, "east").Chosen; stays != tt.stays || !strings.Contains(verdicts[0].Message, tt.message) {
			t.Errorf("%s: stays %v, %q", name, stays, verdicts[0].Message)
		}
		if lost := p.HasLost(&clusters[0], &tt.object, start.Add(tt.after)); lost == tt.stays {
			t.Errorf("%s: lost %v", name, lost)
		}
	}
	if p.Fencing(&Object{}) != nil {
		t.Error("an object without replicas is fenced")
	}
}
