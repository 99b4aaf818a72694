package placement

import (
	"cmp"
	"slices"
)

// Range is the ordinals of one cluster: Count of them from Start on.
type Range struct {
	Cluster string
	Start   int32
	Count   int32
}

func (r Range) end() int32 { return r.Start + r.Count }

// overlap counts the ordinals that two ranges share.
func (r Range) overlap(o Range) int32 { return max(0, min(r.end(), o.end())-max(r.Start, o.Start)) }

// Ordinals gives each cluster a range of its own for its share of numbered
// replicas, so that no identity exists twice. shares are in a stable order;
// previous are the ranges as they are.
//
// A replica that has an identity keeps it and stays where it is as far as ranges
// without holes allow: a range shrinks from its end, and grows into free ordinals
// after it or before it. Only who has no room there moves, to the first gap that
// is wide enough. So ordinals may have gaps, as they have while Kubernetes scales a
// StatefulSet; they begin at 0 and are without gaps where nothing was there before.
func Ordinals(shares []Share, previous []Range) []Range {
	out := make([]Range, len(shares))
	settled := make([]Range, 0, len(shares))
	var waiting []int
	had := map[string]Range{}
	for _, p := range previous {
		had[p.Cluster] = p
	}
	// Who does not grow stays. Nobody else's growth may push him.
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
	// Then those who grow, the largest first: most is lost if they move.
	slices.SortStableFunc(waiting, func(a, b int) int {
		return cmp.Compare(had[shares[b].Cluster].Count, had[shares[a].Cluster].Count)
	})
	for n, i := range waiting {
		reserved := slices.Clone(settled)
		for _, other := range waiting[n+1:] {
			// What others have is theirs while they wait.
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

// place finds the start of a range of n ordinals: the one that shares most with
// what was, of equals the lowest.
func place(taken []Range, was Range, n int32) int32 {
	// Ranges worth a look begin at 0, after a taken one, where this one was, or end
	// where it ended or where the next one begins.
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
