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

// limit is the least and the most replicas of one cluster.
type limit struct{ min, max int64 }

// unmoved returns limits for the shares of the clusters with these ranges, with which no replica moves to
// another cluster or gets another name, the best ones first. A replica's data is in its cluster, under
// its name, so that matters more than even shares.
//
// Fewer replicas: the highest ordinals go, as in one cluster. More: they fill gaps, and then follow the
// highest ordinal, in its cluster or in one that has none.
func unmoved(ranges []Range, total int64) [][]limit {
	var have int64
	var order []int // those with replicas, by ordinal
	for i, r := range ranges {
		have += int64(r.Count)
		if r.Count > 0 {
			order = append(order, i)
		}
	}
	if have == 0 {
		return nil
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(ranges[a].Start, ranges[b].Start) })
	for n, i := range order[1:] {
		if ranges[order[n]].end() > ranges[i].Start {
			return nil // the copies of an object that was not divided until now
		}
	}
	out := make([]limit, len(ranges))
	for i, r := range ranges {
		out[i] = limit{int64(r.Count), int64(r.Count)}
	}
	if total <= have {
		for _, i := range slices.Backward(order) {
			fewer := min(have-total, int64(ranges[i].Count))
			out[i].min, out[i].max = out[i].min-fewer, out[i].max-fewer
			have -= fewer
		}
		return [][]limit{out}
	}
	// A gap belongs to the range before it, and the one at 0 to the first range. A cluster without
	// replicas may take any.
	var gaps, widest int64
	widen := func(i int, gap int64) {
		out[i].max += gap
		gaps, widest = gaps+gap, max(widest, gap)
	}
	widen(order[0], int64(ranges[order[0]].Start))
	for n, i := range order[:len(order)-1] {
		widen(i, int64(ranges[order[n+1]].Start-ranges[i].end()))
	}
	need, last := total-have, order[len(order)-1]
	filling := slices.Clone(out)
	filling[last].max += max(0, need-gaps)
	out[last].max = unbounded
	for i, r := range ranges {
		if r.Count == 0 {
			filling[i].max, out[i].max = max(widest, need-gaps), unbounded
		}
	}
	return [][]limit{filling, out}
}

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
