package placement

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// notLost are the reasons why a cluster is not Ready, without the one for which its workloads are lost.
var notLost = []string{v1alpha1.ReasonClusterStatusUnknown, v1alpha1.ReasonClusterNotReady, v1alpha1.ReasonClusterSlow, v1alpha1.ReasonInvalidServerCertificate,
	v1alpha1.ReasonInvalidKubeConfig, v1alpha1.ReasonErrorCreatingClient, v1alpha1.ReasonErrorInstallingSyncer, v1alpha1.ReasonErrorStartingSyncer,
	v1alpha1.ReasonWrongCluster, v1alpha1.ReasonOtherControlPlane, ""}

// TestOnlyUnreachableClustersLoseWork: for all other reasons, nothing moves after twice the time that is tolerated.
func TestOnlyUnreachableClustersLoseWork(t *testing.T) {
	tolerates := policy(t, "tolerations: [{key: fleet.atoll.dev/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]")
	for _, why := range notLost {
		for _, p := range []*Policy{nil, tolerates} {
			for _, o := range []Object{dividedObject(6), {Key: "one", Mode: v1alpha1.ModeSingle}, {Key: "all"}} {
				clusters := threeClusters()
				previous := Decide(Request{Object: o, Policy: p, Fleet: NewFleet(clusters[:1]), Now: start}).Shares()
				clusters[0].Ready, clusters[0].Why, clusters[0].Since = false, why, start
				r := Request{Object: o, Policy: p, Fleet: NewFleet(clusters), Previous: previous, Now: start.Add(2 * clusters[0].EvictAfter)}
				d, verdicts := Explain(r)
				if v := chosen(d, "east"); v.Reason != ReasonKeptMayRun || v.Replicas > previous[0].Replicas || !d.Recheck.IsZero() {
					t.Errorf("%s, %s: %+v, to be decided again at %s", why, o.Key, v, d.Recheck)
				}
				if len(verdicts[0].Message) < 20 {
					t.Errorf("%s: message %q", why, verdicts[0].Message)
				}
				// The credentials are refused for long, and then the network is cut: the time counts from then.
				clusters[0].Why, clusters[0].Since = v1alpha1.ReasonClusterUnreachable, r.Now
				r.Fleet = NewFleet(clusters)
				if v := chosen(Decide(r), "east"); v.Reason != ReasonKeptNotReady {
					t.Errorf("%s and then unreachable: %+v", why, v)
				}
				r.Now = r.Now.Add(2 * clusters[0].EvictAfter)
				if v := chosen(Decide(r), "east"); v.Chosen {
					t.Errorf("%s: keeps its share though unreachable: %+v", why, v)
				}
			}
		}
	}
}

// TestSinceUnreachable: the time counts from the recorded moment, for a new leader too.
func TestSinceUnreachable(t *testing.T) {
	c := &v1alpha1.Cluster{}
	refused, cut := start, start.Add(time.Hour)
	ready := func(reason string) {
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterReady, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(refused)}}
	}
	ready(v1alpha1.ReasonClusterUnreachable)
	if f := FromCluster(c, start); !f.Since.Equal(refused) {
		t.Errorf("without a recorded moment: %s", f.Since)
	}
	c.Status.UnreachableSince = pointer(metav1.NewTime(cut))
	if f := FromCluster(c, start); !f.Since.Equal(cut) {
		t.Errorf("with one: %s", f.Since)
	}
	ready(v1alpha1.ReasonInvalidKubeConfig)
	if f := FromCluster(c, start); !f.Since.Equal(refused) {
		t.Errorf("with refused credentials: %s", f.Since)
	}
}
