package scheduler

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// hindrance says why volumes cannot go along with the pods of an object to the clusters of a decision; "" if they can.
func (snap *Snapshot) hindrance(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, v *volumes.Verdict, h *volumes.Holding) string {
	if volumes.Repeats(h.Shares) || volumes.Repeats(a.Shares) {
		return "several clusters run all replicas, each with volumes of its own"
	}
	if v.CarriesMounted() {
		if why := whyNotTogether(a, k, obj, v, b.Decided()); why != "" {
			return why
		}
		for _, c := range v.Carried {
			if other := snap.otherMounter(k, obj, c.Name); other != "" && !c.Template {
				return fmt.Sprintf("%s mounts claim %s too", other, c.Name)
			}
		}
	}
	for _, share := range h.Shares {
		if c, joined := snap.Fleet.Cluster(share.Name); !joined || c.IsSilent() {
			return "cluster " + share.Name + " does not answer, and may still use them"
		}
	}
	return ""
}

// whyNotTogether says why claims that all pods of an object mount cannot go along with them; "" if they can.
func whyNotTogether(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, v *volumes.Verdict, before []v1alpha1.ClusterShare) string {
	_, divisible := k.Replicas(obj)
	switch {
	case !divisible || !k.Divided || transition.IsExclusive(k.GroupKind()):
		return fmt.Sprintf("a %s cannot be stopped before its volumes leave, because it has no replicas", k.GroupVersionKind.Kind)
	case a.Autoscaler != nil:
		return fmt.Sprintf("%s %s sets its replicas, which have to stop before its volumes leave", a.Autoscaler.GetKind(), a.Autoscaler.GetName())
	case len(before) > 1 || len(a.Shares) > 1:
		return "all of its replicas mount the same volume, so they run in one cluster"
	case len(claimsTogether(k, obj, v)) > v1alpha1.MaxVolumeTransfers:
		return fmt.Sprintf("at most %d claims go along at the same time", v1alpha1.MaxVolumeTransfers)
	}
	return ""
}

// claimsTogether returns the claims that go along with replicas which share some of them.
func claimsTogether(k interpret.KindInfo, obj *unstructured.Unstructured, v *volumes.Verdict) []string {
	replicas, _ := k.Replicas(obj)
	return v.ClaimsOfAll(obj.GetName(), firstOrdinal(obj), min(replicas, v1alpha1.MaxVolumeTransfers+1))
}

// firstOrdinal returns the ordinal of the first pod of a StatefulSet. The ordinals of shares begin with 0.
func firstOrdinal(obj *unstructured.Unstructured) int32 {
	start, _, _ := unstructured.NestedInt64(obj.Object, "spec", "ordinals", "start")
	return int32(start)
}

// volumesAlong returns the volumes that go along with the replicas of an object to a decision, and their transfers.
func (snap *Snapshot) volumesAlong(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, goal []v1alpha1.ClusterShare) transition.Volumes {
	var out transition.Volumes
	for _, t := range b.Spec.Volumes {
		out.Transfers = append(out.Transfers, transition.Transfer{Claim: t.Claim, Ordinal: t.Ordinal, From: t.From, To: t.To, Phase: t.Phase, Revision: t.Revision, Made: t.Made})
		out.Together = out.Together || t.ClaimUID != ""
	}
	v := snap.volumesOf(k, obj)
	switch {
	case len(v.Carried) == 0:
	case v.CarriesMounted():
		if len(goal) == 1 && (len(b.Decided()) == 1 || out.Together) {
			out.Together, out.Claims = true, map[int32][]string{0: claimsTogether(k, obj, &v)}
		}
	case hasOrdinals(k):
		out.Claims = map[int32][]string{}
		for _, ordinal := range ordinalsOf(k, obj, b.Spec.Clusters) {
			out.Claims[ordinal] = v.ClaimsOfReplica(obj.GetName(), firstOrdinal(obj)+ordinal)
		}
	}
	return out
}

// ordinalsOf returns the ordinals of shares.
func ordinalsOf(k interpret.KindInfo, obj *unstructured.Unstructured, shares []v1alpha1.ClusterShare) (out []int32) {
	for i := range shares {
		start := int32(0)
		if shares[i].OrdinalStart != nil {
			start = *shares[i].OrdinalStart
		}
		for ordinal := range sizeOf(&shares[i], k, obj) {
			out = append(out, start+ordinal)
		}
	}
	return out
}

// transfers returns the transfers of a step as a binding has them, with the volumes as their clusters describe them.
func (snap *Snapshot) transfers(b *v1alpha1.ResourceBinding, obj *unstructured.Unstructured, v *volumes.Verdict, next []transition.Transfer) []v1alpha1.VolumeTransfer {
	var out []v1alpha1.VolumeTransfer
	for _, t := range next {
		o := v1alpha1.VolumeTransfer{Claim: t.Claim, Ordinal: t.Ordinal, From: t.From, To: t.To, Phase: t.Phase, Revision: t.Revision, Made: t.Made}
		at := slices.IndexFunc(b.Spec.Volumes, func(was v1alpha1.VolumeTransfer) bool { return was.Claim == t.Claim })
		if at >= 0 { // the way in which a transfer began is the one in which it ends
			was := &b.Spec.Volumes[at]
			o.Volume, o.Replication, o.ClaimUID = was.Volume, was.Replication, was.ClaimUID
		} else if o.Replication = v.Replication(t.Claim, obj.GetName()); v.Carries(t.Claim) {
			if claim, exists := snap.Claim(obj.GetNamespace(), t.Claim); exists {
				o.ClaimUID = claim.GetUID()
			}
		}
		if o.Volume == nil && o.Replication == nil {
			o.Volume = described(b, &t)
		}
		out = append(out, o)
	}
	return out
}

// described returns the volume of a transfer as the cluster describes it that has it.
func described(b *v1alpha1.ResourceBinding, t *transition.Transfer) *v1alpha1.VolumeDescription {
	state, _ := b.State(t.From)
	for i := range state.Volumes {
		r := &state.Volumes[i]
		if r.Claim == t.Claim && r.Revision == t.Revision && r.Volume != nil && volumes.Problem(r.Volume) == "" {
			return r.Volume
		}
	}
	return nil
}

// takesAlong returns the claims that an object takes along if it moves: those in the cluster where it runs that nothing
// else mounts. Copies of a volume in several clusters keep no object in one of them.
func (snap *Snapshot) takesAlong(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, r *placement.Request, claims []string) (out []string) {
	v := snap.volumesOf(k, obj)
	for _, claim := range claims {
		if !v.Carries(claim) {
			continue
		}
		in := snap.claimIn(obj.GetNamespace(), claim)
		runs := b != nil && len(r.Previous) == 1 && (len(b.Spec.Volumes) > 0 || slices.Contains(in, r.Previous[0].Cluster))
		if runs && snap.otherMounter(k, obj, claim) == "" || len(in) > 1 && v.Replication(claim, obj.GetName()) != nil {
			out = append(out, claim)
		}
	}
	return out
}

// otherMounter names an object, other than a given one, whose pods mount a claim; "" if no other one does.
func (snap *Snapshot) otherMounter(k interpret.KindInfo, obj *unstructured.Unstructured, claim string) string {
	if snap.Groups == nil {
		return ""
	}
	for _, o := range snap.Groups.MountedBy(obj.GetNamespace(), claim) {
		if o != refOf(k.GroupKind(), obj) {
			return o.Kind + " " + o.Name
		}
	}
	return ""
}

// claimsGoing returns the keys of the claims that are where the pods are that mount them, in the one cluster of a decision,
// or go there.
func (snap *Snapshot) claimsGoing(k interpret.KindInfo, obj *unstructured.Unstructured, shares []v1alpha1.ClusterShare) (keys []string) {
	v := snap.volumesOf(k, obj)
	for _, c := range v.Carried {
		if !c.Template && c.Replication == nil && len(shares) == 1 && snap.otherMounter(k, obj, c.Name) == "" {
			keys = append(keys, KeyOf(claimKind(), obj.GetNamespace(), c.Name))
		}
	}
	return keys
}
