package scheduler

import (
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// electsLeader reports whether a divided workload elects a leader, by a Lease in its own cluster.
func (snap *Snapshot) electsLeader(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return k.DefaultMode == interpret.Divided && interpret.ElectsLeader(interpret.PodSpec(obj.Object), func() interpret.Rights {
		if snap.Rights == nil {
			return interpret.Rights{}
		}
		return snap.Rights(k, obj)
	})
}

// rightsTimeout is how long after the first decision about a workload the rights of its account may arrive,
// which people apply together with it.
const rightsTimeout = 10 * time.Second

// staysDivided reports whether a workload has run in several clusters for so long that it stays there.
func (snap *Snapshot) staysDivided(b *v1alpha1.ResourceBinding) bool {
	return b != nil && len(b.Decided()) > 1 && snap.Now.Sub(b.CreationTimestamp.Time) > rightsTimeout
}

// electionMessage explains why a workload is not divided.
func (snap *Snapshot) electionMessage(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured) string {
	if a.Decision.Mode != v1alpha1.ModeSingle || a.Choice.Policy.Mode() != "" || a.Choice.Policy.NeedsSeveral() || !snap.electsLeader(k, obj) {
		return ""
	}
	return "; not divided: its containers elect a leader, and each cluster would have one. The mode of a policy says otherwise"
}
