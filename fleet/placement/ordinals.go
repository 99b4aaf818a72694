package placement

import (
	"cmp"
	"slices"
)

// Range is the ordinals of one cluster: Count ordinals from Start.
type Range struct {
	Cluster string
	Start   int32
	Count   int32
}

func (r Range) end() int32 { return r.Start + r.Count }

// overlap returns the number of ordinals in both ranges.
func (r Range) overlap(o Range) int32 { return max(0, min(r.end(), o.end())-max(r.Start, o.Start)) }

// Ordinals assigns each cluster a range for its share of numbered replicas, so that no ordinal
// exists twice. shares are in a stable order, and previous are the current ranges.
//
// A replica keeps its identity and its cluster as far as contiguous ranges allow: a range shrinks
// from its end, and grows into free ordinals after or before it. Only a range without room there
// moves, to the first gap that is wide enough. So ordinals may have gaps, as while Kubernetes
// scales a StatefulSet. Without previous ranges, they start at 0 and have no gaps.
func Ordinals(shares []Share, previous []Range) []Range {
	out := make([]Range, len(shares))
	settled := make([]Range, 0, len(shares))
	var waiting []int
	had := map[string]Range{}
	for _, p := range previous {
		had[p.Cluster] = p
	}
	// Ranges that do not grow stay. No growing range may displace them.
	for i, s := range shares {
		was, ok := had[s.Cluster]
		out[i] = Range{Cluster: s.Cluster, Count: s.Replicas}
		switch {
		case ok && s.Replicas <= was.Count && free(settled, Range{Start: was.Start, Count: s.Replicas}):
			out[i].Start = was.Start
			settled = append(settled, out[i])
		default:
			waiting = append(waiting, i)
		}
	}
	// Then the growing ranges, the largest first, because moving it costs the most.
	slices.SortStableFunc(waiting, func(a, b int) int {
		return cmp.Compare(had[shares[b].Cluster].Count, had[shares[a].Cluster].Count)
	})
	for n, i := range waiting {
		reserved := slices.Clone(settled)
		for _, other := range waiting[n+1:] {
			// The other waiting ranges keep their current ordinals meanwhile.
			if r := had[shares[other].Cluster]; r.Count > 0 && free(settled, r) {
				reserved = append(reserved, r)
			}
		}
		out[i].Start = place(reserved, had[shares[i].Cluster], shares[i].Replicas)
		settled = append(settled, out[i])
	}
	return out
}

func free(taken []Range, r Range) bool {
	return !slices.ContainsFunc(taken, func(t Range) bool { return t.overlap(r) > 0 })
}

// place returns the start of a range of n ordinals: the one with the largest overlap with the
// previous range, of equals the lowest.
func place(taken []Range, was Range, n int32) int32 {
	// Candidates start at 0, at the previous start, or after a taken range; or they end at the
	// previous end, or before a taken range.
	starts := []int32{0, was.Start, was.end() - n}
	for _, t := range taken {
		starts = append(starts, t.end(), t.Start-n)
	}
	best, most := int32(-1), int32(-1)
	slices.Sort(starts)
	for _, s := range starts {
		r := Range{Start: s, Count: n}
		if s < 0 || !free(taken, r) {
			continue
		}
		if o := r.overlap(was); o > most {
			best, most = s, o
		}
	}
	return best
}
