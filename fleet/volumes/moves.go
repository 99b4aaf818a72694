package volumes

import (
	"cmp"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Holding has where an object and its volumes are.
type Holding struct {
	// Clusters that have the object: it is decided there, or runs there still. Those that leave the fleet do not count.
	Clusters []string
	// Shares of the decision in these clusters.
	Shares []v1alpha1.ClusterShare
	// Replicas of the object, for shares of the whole.
	Replicas int32
}

// Has reports whether a cluster has the object.
func (h *Holding) Has(cluster string) bool { return slices.Contains(h.Clusters, cluster) }

// Moves reports whether a decision would take an object away from its volumes, so that it begins with empty ones:
//
//   - no cluster would keep it, of those that have it;
//   - each replica has volumes of its own, and some replicas would not run any more in their cluster, under their
//     ordinals, while others begin. More replicas may begin in any cluster, and fewer replicas are no move;
//   - the pods of a cluster share a volume, the object is divided, and replicas would be in a cluster without it.
//
// An object that each cluster runs as a whole may come to further clusters: each copy has volumes of its own.
func (v *Verdict) Moves(h *Holding, after []v1alpha1.ClusterShare) bool {
	if !v.Stays || len(h.Clusters) == 0 || len(after) == 0 {
		return false
	}
	if !slices.ContainsFunc(after, func(s v1alpha1.ClusterShare) bool { return h.Has(s.Name) }) {
		return true
	}
	divided := isDivided(after)
	if v.Mounted && divided && slices.ContainsFunc(after, func(s v1alpha1.ClusterShare) bool {
		return !h.Has(s.Name) && s.Replicas != nil && *s.Replicas > 0
	}) {
		return true
	}
	if !v.Templates || !divided && !isDivided(h.Shares) {
		return false
	}
	before, next := rangesOf(h.Shares, h.Replicas), rangesOf(after, h.Replicas)
	return exceeds(before, next) && exceeds(next, before)
}

func isDivided(shares []v1alpha1.ClusterShare) bool {
	return slices.ContainsFunc(shares, func(s v1alpha1.ClusterShare) bool { return s.Replicas != nil })
}

// ordinals are the replicas of a cluster, from start to end, exclusive.
type ordinals struct {
	cluster    string
	start, end int32
}

// rangesOf returns the ordinals of some shares. A cluster that runs the whole object has all of them. Replicas without
// ordinals count from 0 in each cluster.
func rangesOf(shares []v1alpha1.ClusterShare, replicas int32) []ordinals {
	out := make([]ordinals, 0, len(shares))
	for _, s := range shares {
		r := ordinals{cluster: s.Name, end: replicas}
		if s.Replicas != nil {
			if s.OrdinalStart != nil {
				r.start = *s.OrdinalStart
			}
			r.end = r.start + *s.Replicas
		}
		out = append(out, r)
	}
	return out
}

// exceeds reports whether some ordinals of a are in no range of b of the same cluster.
func exceeds(a, b []ordinals) bool {
	return slices.ContainsFunc(a, func(r ordinals) bool {
		covered := int32(0)
		for _, o := range b {
			if o.cluster == r.cluster {
				covered = max(covered, min(r.end, o.end)-max(r.start, o.start))
			}
		}
		return r.end-r.start > covered
	})
}

// Kept returns the shares in effect, without replicas that exceed a total: those with the highest ordinals go first.
func (h *Holding) Kept(total int32) []v1alpha1.ClusterShare {
	out := make([]v1alpha1.ClusterShare, len(h.Shares))
	var order []int // the divided ones, by ordinal
	sum := int32(0)
	for i := range h.Shares {
		h.Shares[i].DeepCopyInto(&out[i])
		if out[i].Replicas != nil {
			order = append(order, i)
			sum += *out[i].Replicas
		}
	}
	start := func(i int) int32 {
		if out[i].OrdinalStart == nil {
			return 0
		}
		return *out[i].OrdinalStart
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(start(b), start(a)) })
	for _, i := range order {
		fewer := min(max(0, sum-total), *out[i].Replicas)
		*out[i].Replicas -= fewer
		sum -= fewer
	}
	return out
}
