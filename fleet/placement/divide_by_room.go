package placement

import (
	"cmp"
	"slices"
)

// byCapacity keeps existing replicas and divides new ones by free room. A surplus is removed in
// proportion to the shares. So a decision does not change when free room changes, and stale figures
// affect only new replicas.
func (d *decider) byCapacity(members []member, items []item, total int64) (left int64) {
	known := false
	rooms := make([]int64, len(items))
	unknown := make([]bool, len(items))
	for i, m := range members {
		room, ok := d.free(m.at)
		rooms[i], unknown[i] = room, !ok
		known = known || ok
	}
	base := make([]int64, len(items))
	left = total
	for i := range items {
		base[i] = max(items[i].min, min(items[i].prev, items[i].max))
		if d.rebalances {
			rooms[i] += base[i] - items[i].min
			base[i] = items[i].min
		}
		left -= base[i]
	}
	if left < 0 {
		reduce := make([]item, len(items))
		for i := range items {
			reduce[i] = item{weight: base[i], min: items[i].min, max: base[i], prev: base[i], had: true}
		}
		rest := apportion(total, pointers(reduce))
		for i := range items {
			items[i].share = reduce[i].share
		}
		return rest
	}
	for _, byRoom := range []bool{true, false} {
		more := make([]item, len(items))
		for i := range items {
			it := item{weight: 1, max: items[i].max - base[i]}
			switch {
			case known && unknown[i]:
				it.max = 0
				if !members[i].had {
					d.marks[members[i].at] = markCapacityUnknown
				}
			case known && byRoom:
				it.weight, it.max = rooms[i], min(it.max, rooms[i])
			}
			more[i] = it
		}
		left = apportion(left, pointers(more))
		for i := range items {
			base[i] += more[i].share
			rooms[i] -= more[i].share
		}
	}
	for i := range items {
		items[i].share = base[i]
	}
	return left
}

// inFewest keeps existing replicas, and gives new ones to clusters that have some or, if these are too few, to those
// with the most room. A surplus leaves the smallest shares first.
func (d *decider) inFewest(members []member, items []item, total int64) (left int64) {
	left = total
	for i := range items {
		it := &items[i]
		it.min = min(it.min, it.max)
		it.share = max(it.min, min(it.prev, it.max))
		if d.rebalances {
			it.share = it.min
		}
		left -= it.share
	}
	order := pointers(items)
	slices.SortStableFunc(order, func(a, b *item) int { return cmp.Compare(a.share, b.share) })
	for _, it := range order {
		if left >= 0 {
			break
		}
		n := min(-left, it.share-it.min)
		it.share, left = it.share-n, left+n
	}
	more := func(it *item) int64 {
		n := it.max - it.share
		if free, known := d.free(members[it.pos].at); known && it.max >= unbounded {
			n = min(n, free)
		}
		return n
	}
	slices.Reverse(order) // those with the largest shares first
	for left > 0 {
		var best *item
		for _, it := range order {
			n := more(it)
			switch {
			case n <= 0 || it.weight == 0:
			case best == nil, it.share > 0 && best.share == 0:
				best = it
			case it.share == 0 && best.share > 0:
			case more(best) >= left && n >= left && it.pos < best.pos, more(best) < left && n > more(best):
				best = it
			}
		}
		if best == nil {
			return left
		}
		n := min(left, more(best))
		best.share, left = best.share+n, left-n
	}
	return left
}
