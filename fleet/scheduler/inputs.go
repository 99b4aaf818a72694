package scheduler

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// obstaclesTo returns why clusters cannot accept an object, and what the control plane lacks for it.
func (snap *Snapshot) obstaclesTo(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) (out map[string]placement.Obstacle, lacks []missing) {
	if snap.Obstacles != nil {
		out = snap.Obstacles(k, obj, b)
	}
	if snap.Missing != nil && k.MakesPods() {
		lacks = snap.Missing(k, obj)
	}
	out = snap.withinBounds(out, k, obj)
	return snap.noNodeFits(madeElsewhere(out, lacks, snap.Fleet, b), k, obj), lacks
}

// request assembles the input of placement. It also returns what the control plane lacks for the object.
func (snap *Snapshot) request(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, policy *placement.Policy, autoscaler *unstructured.Unstructured) (placement.Request, []missing) {
	r := placement.Request{Object: objectOf(k, obj), Fleet: snap.Fleet, Policy: policy, Allocations: snap.Allocations, Now: snap.Now, Previous: previous(b)}
	r.Object.Stays = r.Object.Stays && snap.staysPut(k, obj)
	if b != nil {
		r.Inputs = b.Spec.Inputs
		if snap.Pending != nil && snap.movesPods(k, obj) {
			r.Pending = snap.Pending(k, obj, b)
		}
	}
	if snap.electsLeader(k, obj) && !snap.staysDivided(b) && !policy.NeedsSeveral() {
		r.Object.Mode = v1alpha1.ModeSingle // several clusters would have several leaders
	}
	r.Object.Replicas = withinScaleBounds(r.Object.Replicas, autoscaler)
	r.Settled = settledTotal(&r, autoscaler, b)
	r.Running = stillRunning(b, &r.Object)
	var lacks []missing
	r.Obstacles, lacks = snap.obstaclesTo(k, obj, b)
	if hasOrdinals(k) {
		r.Ordinals = ordinals(b)
	}
	if near, apart := policy.Terms(); len(near)+len(apart) > 0 && snap.Peers != nil {
		r.Affinity, r.AntiAffinity = snap.neighbours(r.Object.Key, obj, near), snap.neighbours(r.Object.Key, obj, apart)
	}
	return r, lacks
}

// withinScaleBounds limits a replica count to the autoscaler's bounds for all clusters together: the
// bounds are divided by the shares, so the shares start with the count that the autoscaler
// would set. With zero replicas an autoscaler is inactive.
func withinScaleBounds(replicas int32, autoscaler *unstructured.Unstructured) int32 {
	if autoscaler == nil || replicas == 0 {
		return replicas
	}
	least, most := interpret.ScaleBounds(autoscaler)
	return min(max(replicas, least), most)
}

// settledTotal returns the total of the previous shares if an autoscaler owns the counts since then
// and would not change the total because of its bounds; otherwise 0. With zero replicas, a user
// stops or starts the object.
func settledTotal(r *placement.Request, autoscaler *unstructured.Unstructured, b *v1alpha1.ResourceBinding) (total int32) {
	if autoscaler == nil || b == nil || b.Spec.ScaledBy == nil || b.Spec.ScaledBy.Name != autoscaler.GetName() || r.Object.Replicas == 0 {
		return 0
	}
	for _, share := range r.Previous {
		if share.Whole {
			return 0
		}
		total += share.Replicas
	}
	if withinScaleBounds(total, autoscaler) != total {
		return 0
	}
	return total
}

func previous(b *v1alpha1.ResourceBinding) []placement.Share {
	if b == nil {
		return nil
	}
	out := make([]placement.Share, 0, len(b.Decided()))
	for _, c := range b.Decided() {
		share := placement.Share{Cluster: c.Name, Whole: c.Replicas == nil}
		if c.Replicas != nil {
			share.Replicas = *c.Replicas
		}
		out = append(out, share)
	}
	return out
}
