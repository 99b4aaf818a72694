package scheduler

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// fail makes a cluster unreachable since a time, and evictAfter is how long that is tolerated.
func (c *control) fail(cluster, reason, evictAfter string, since time.Time) {
	c.Merge(v1alpha1.ClusterResource, "", cluster, fmt.Sprintf(`{"spec":{"evictAfter":%q},"status":{"conditions":[{"type":"Ready","status":"False","reason":%q,"message":"","lastTransitionTime":%q}],"lastProbeTime":"2099-01-01T00:00:00Z"}}`,
		evictAfter, reason, since.UTC().Format(time.RFC3339)))
}

// clusterCondition returns a condition of a cluster; nil if it has none of that type.
func clusterCondition(c *control, cluster, kind string) *metav1.Condition {
	var of v1alpha1.Cluster
	c.Read(v1alpha1.ClusterResource, "", cluster, &of)
	return meta.FindStatusCondition(of.Status.Conditions, kind)
}

// reasonsOf returns the reason of each share of an object: east=Scheduled west=….
func reasonsOf(c *control, name string) string {
	var b v1alpha1.ResourceBinding
	out := ""
	if !c.Read(v1alpha1.ResourceBindingResource, "shop", name, &b) {
		return out
	}
	for _, share := range b.Decided() {
		out += share.Name + "=" + share.Reason + " "
	}
	return out
}

// TestFailoverIsHeld: two of three clusters become unreachable at the same time, and nothing leaves them, also when
// another server leads. One comes back, and the time of the other one begins again.
func TestFailoverIsHeld(t *testing.T) {
	c := newControl(t, threeClusters+webOfThree)
	const all = "east=KeptWhileFailoverHeld west=KeptWhileFailoverHeld south=Scheduled "
	since := time.Now().Add(-time.Minute)
	held := func() bool {
		for _, cluster := range []string{"east", "west"} {
			is := clusterCondition(c, cluster, v1alpha1.ClusterFailoverHeld)
			if is == nil || is.Status != metav1.ConditionTrue || is.Reason != v1alpha1.ReasonManyUnreachable {
				return false
			}
		}
		return reasonsOf(c, "deployment.apps-web") == all
	}
	t.Run("the first leader", func(t *testing.T) {
		c.start(t, Config{})
		fakeapi.Until(t, "placed", func() bool {
			return reasonsOf(c, "deployment.apps-web") == "east=Scheduled west=Scheduled south=Scheduled "
		})
		c.fail("east", v1alpha1.ReasonClusterUnreachable, "1h", since)
		c.fail("west", v1alpha1.ReasonClusterUnreachable, "1h", since.Add(20*time.Second))
		fakeapi.Until(t, "held", held)
		c.fail("east", v1alpha1.ReasonClusterUnreachable, "1s", since)
		c.fail("west", v1alpha1.ReasonClusterUnreachable, "1s", since.Add(20*time.Second))
		agreesWithPreview(t, c)
	})
	t.Run("the next leader", func(t *testing.T) {
		c.start(t, Config{})
		c.Merge(deployments, "shop", "web", `{"spec":{"replicas":6}}`)
		fakeapi.Until(t, "a new decision", func() bool {
			var b v1alpha1.ResourceBinding
			c.Read(v1alpha1.ResourceBindingResource, "shop", "deployment.apps-web", &b)
			return describe(b.Spec.Clusters) == "east 1, west 1, south 4"
		})
		fakeapi.Until(t, "held", held)
		if south := clusterCondition(c, "south", v1alpha1.ClusterFailoverHeld); south != nil {
			t.Errorf("south has the condition %+v", south)
		}
		c.Merge(v1alpha1.ClusterResource, "", "west", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"ClusterReady","message":"","lastTransitionTime":"2026-01-06T00:00:00Z"}]}}`)
		fakeapi.Until(t, "east's share moves when it may", func() bool {
			return reasonsOf(c, "deployment.apps-web") == "west=Scheduled south=Scheduled "
		})
		east := clusterCondition(c, "east", v1alpha1.ClusterFailoverHeld)
		if east == nil || east.Status != metav1.ConditionFalse || east.Reason != v1alpha1.ReasonFewUnreachable || time.Since(east.LastTransitionTime.Time) > time.Minute {
			t.Errorf("east has the condition %+v", east)
		}
	})
}

// TestOnlyUnreachableClustersLoseObjects: with refused credentials an object stays, and an unreachable cluster loses it.
func TestOnlyUnreachableClustersLoseObjects(t *testing.T) {
	c := begin(t, threeClusters+webOfThree)
	fakeapi.Until(t, "placed", func() bool {
		return reasonsOf(c, "deployment.apps-web") == "east=Scheduled west=Scheduled south=Scheduled "
	})
	for _, reason := range []string{v1alpha1.ReasonInvalidKubeConfig, v1alpha1.ReasonErrorStartingSyncer, v1alpha1.ReasonClusterNotReady, v1alpha1.ReasonClusterSlow} {
		c.fail("east", reason, "1s", time.Now().Add(-time.Hour))
		fakeapi.Until(t, "kept: "+reason, func() bool {
			return reasonsOf(c, "deployment.apps-web") == "east=KeptWhileWorkloadsMayRun west=Scheduled south=Scheduled "
		})
	}
	c.fail("east", v1alpha1.ReasonClusterUnreachable, "1s", time.Now().Add(-time.Hour))
	fakeapi.Until(t, "moved", func() bool { return reasonsOf(c, "deployment.apps-web") == "west=Scheduled south=Scheduled " })
}
