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
//   - clusters run it as a whole, and it would leave one while it comes to another. It may come to further clusters,
//     where the copy has volumes of its own;
//   - each replica has volumes of its own, and some replicas would not run any more in their cluster, under their
//     ordinals, while others begin. More replicas may begin in any cluster, and fewer replicas are no move;
//   - each replica has volumes of its own, in several clusters, and these would run it as a whole: they have some of the
//     volumes only;
//   - the pods of a cluster share a volume, the object is divided, and replicas would be in a cluster without it.
func (v *Verdict) Moves(h *Holding, after []v1alpha1.ClusterShare) bool {
	if !v.Stays && len(v.Carried) == 0 || len(h.Clusters) == 0 || len(after) == 0 {
		return false
	}
	if !slices.ContainsFunc(after, func(s v1alpha1.ClusterShare) bool { return h.Has(s.Name) }) {
		return true
	}
	if !isDivided(after) {
		if v.Templates && isDivided(h.Shares) && len(h.Shares) > 1 {
			return true
		}
		return h.ends(after) && h.begins(after)
	}
	if v.Mounted && slices.ContainsFunc(after, func(s v1alpha1.ClusterShare) bool {
		return !h.Has(s.Name) && s.Replicas != nil && *s.Replicas > 0
	}) {
		return true
	}
	before, next := rangesOf(h.Shares, h.Replicas), rangesOf(after, h.Replicas)
	return v.Templates && exceeds(before, next) && exceeds(next, before)
}

// ends reports whether the object would leave a cluster that it is decided in.
func (h *Holding) ends(after []v1alpha1.ClusterShare) bool {
	return slices.ContainsFunc(h.Shares, func(s v1alpha1.ClusterShare) bool {
		return !slices.ContainsFunc(after, func(o v1alpha1.ClusterShare) bool { return o.Name == s.Name })
	})
}

// begins reports whether the object would come to a cluster that does not have it.
func (h *Holding) begins(after []v1alpha1.ClusterShare) bool {
	return slices.ContainsFunc(after, func(s v1alpha1.ClusterShare) bool { return !h.Has(s.Name) })
}

// Repeats reports whether several clusters run the whole object.
func Repeats(shares []v1alpha1.ClusterShare) bool { return len(shares) > 1 && !isDivided(shares) }

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

// Ends reports whether a decision would end replicas that run, although there are not too many of them.
func (h *Holding) Ends(after []v1alpha1.ClusterShare, total int32) bool {
	before, next := rangesOf(h.Shares, h.Replicas), rangesOf(after, h.Replicas)
	running, stay := int32(0), int32(0)
	for _, r := range before {
		running += r.end - r.start
		stay += covered(r, next)
	}
	return stay < min(running, total)
}

// exceeds reports whether some ordinals of a are in no range of b of the same cluster.
func exceeds(a, b []ordinals) bool {
	return slices.ContainsFunc(a, func(r ordinals) bool {
		return r.end-r.start > covered(r, b)
	})
}

// covered returns how many ordinals of a range are in one of others of its cluster.
func covered(r ordinals, others []ordinals) (n int32) {
	for _, o := range others {
		if o.cluster == r.cluster {
			n = max(n, min(r.end, o.end)-max(r.start, o.start))
		}
	}
	return n
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
