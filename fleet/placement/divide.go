package placement

import (
	"cmp"
	"slices"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// share divides the replicas among the members, and counts those without a cluster.
//
// A cluster without a share is not chosen, with two exceptions. If it has the object already, the
// object stays with zero replicas. If the object asks for zero replicas, it is in every cluster, so
// that scaling up from zero finds everything in place.
func (d *decider) share(members []member) outcome {
	if d.mode != divided {
		return outcome{members: members}
	}
	// The order decides who gets the remainder of a division. Ranked, the few replicas of an
	// application's parts are in the same clusters.
	members = d.rank(members)
	items := make([]item, len(members))
	total := int64(d.r.Object.Replicas)
	for i, m := range members {
		items[i] = d.item(m)
	}
	d.limitShares(items, total)
	if len(d.r.Pending) > 0 {
		d.onlyIntoRoom(members, items, total)
	}
	switch {
	case d.consolidating:
		d.intoEarlierGroups(members, items, total)
	case d.steady:
		keepShares(items, total)
	}
	left := d.divide(members, items, total)
	for _, limits := range unmoved(d.rangesOf(members), total) {
		bounded := slices.Clone(items)
		if !restrict(bounded, limits) {
			continue
		}
		if l := d.divide(members, bounded, total); l <= left {
			items, left = bounded, l
			break
		}
	}
	left = leaveWhereTheyRun(items, left)
	var o outcome
	left, o.stays = leavePending(members, items, left)
	o.unplaced = int32(left)
	for i, m := range members {
		if left > 0 && items[i].crowded && items[i].share == items[i].max {
			d.marks[m.at] = markNoMoreRoom
		}
		if m.replica = int32(items[i].share); items[i].left && m.reason == ReasonChosen {
			m.reason = ReasonKeptNoAlternative
		}
		if m.replica == 0 && !m.had && total > 0 {
			switch {
			case d.marks[m.at] != unmarked:
			case d.view.clusters[m.at].group > 0 && left == 0:
				d.marks[m.at] = markOtherGroup
			default:
				d.marks[m.at] = markNoReplicas
			}
			continue
		}
		o.members = append(o.members, m)
	}
	slices.SortStableFunc(o.members, func(a, b member) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.at, b.at))
	})
	return o
}

// keepShares keeps replicas from moving just because there is room somewhere else: only new ones are divided, or
// surplus ones removed.
func keepShares(items []item, total int64) {
	running := int64(0)
	for _, it := range items {
		running += it.prev
	}
	for i := range items {
		it := &items[i]
		switch {
		case total < running:
			it.max = max(it.min, min(it.max, it.prev))
		case it.weight == 0: // its replicas leave when others have room
		case it.prev > 0:
			it.min, it.max = it.prev, max(it.max, it.prev)
		case it.min > total-running: // so many are not new
			it.min, it.max = 0, 0
		default:
			running += it.min
		}
	}
}

// leaveWhereTheyRun leaves replicas that no cluster with a weight takes in the clusters without a weight that have
// them. It returns how many have no cluster then.
func leaveWhereTheyRun(items []item, unplaced int64) int64 {
	for i := range items {
		it := &items[i]
		if n := min(unplaced, min(it.prev, it.max)-it.share); n > 0 && it.weight == 0 {
			it.share, it.left = it.share+n, true
			unplaced -= n
		}
	}
	return unplaced
}

// onlyIntoRoom keeps pending replicas out of clusters whose room is unknown: they might wait there, too, and come back.
func (d *decider) onlyIntoRoom(members []member, items []item, total int64) {
	added := total
	for _, it := range items {
		added -= it.prev + it.pending
	}
	for i, m := range members {
		if _, known := d.nodes.replicas(&d.r.Object, m.at); !known {
			items[i].max = max(items[i].min, min(items[i].max, items[i].prev+max(0, added)))
		}
	}
}

// leavePending leaves pending replicas that no other cluster has room for where they are. It returns how many have no
// cluster then, and the clusters where some stay.
func leavePending(members []member, items []item, unplaced int64) (left int64, stays map[int32]bool) {
	for i := range items {
		it := &items[i]
		n := min(unplaced, it.pending)
		if n == 0 {
			continue
		}
		if stays == nil {
			stays = map[int32]bool{}
		}
		it.share, stays[members[i].at] = it.share+n, true
		unplaced -= n
	}
	return unplaced, stays
}

// divide sets the shares of the items, and returns the number of replicas that none of them takes. The first of the
// policy's groups gets as many as it can take, apart from those that others must have.
func (d *decider) divide(members []member, items []item, total int64) (left int64) {
	if len(d.policy.groups) < 2 {
		return d.divideAll(members, items, total)
	}
	left = total
	for g := range int32(len(d.policy.groups)) {
		var of []int
		later := int64(0)
		for i, m := range members {
			switch group := d.view.clusters[m.at].group; {
			case group == g:
				of = append(of, i)
			case group > g:
				later += min(items[i].min, items[i].max)
			}
		}
		if len(of) == 0 {
			continue
		}
		part, shares := make([]member, len(of)), make([]item, len(of))
		for j, i := range of {
			part[j], shares[j] = members[i], items[i]
		}
		mine := max(0, left-later)
		left -= mine - d.divideAll(part, shares, mine)
		for j, i := range of {
			items[i].share = shares[j].share
		}
	}
	return left
}

// divideAll divides without regard to groups.
func (d *decider) divideAll(members []member, items []item, total int64) (left int64) {
	switch d.policy.by {
	case v1alpha1.DivideCapacity:
		return d.byCapacity(members, items, total)
	case v1alpha1.DivideFewest:
		return d.inFewest(members, items, total)
	}
	return d.overGroups(0, pointers(items), members, total)
}

// rangesOf returns the current ordinals of the members, nil if the replicas are not numbered.
func (d *decider) rangesOf(members []member) []Range {
	if len(d.r.Ordinals) == 0 {
		return nil
	}
	out := make([]Range, len(members))
	for i, m := range members {
		name := d.fleet.clusters[m.at].Name
		for _, r := range d.r.Ordinals {
			if r.Cluster == name {
				out[i] = r
			}
		}
		out[i].Cluster = name
	}
	return out
}

// restrict narrows the bounds of shares, and reports whether that is possible.
func restrict(items []item, limits []limit) bool {
	for i, l := range limits {
		items[i].min, items[i].max = max(items[i].min, l.min), min(items[i].max, l.max)
		if items[i].min > items[i].max {
			return false
		}
	}
	return true
}

// item is a cluster, or a group of clusters, that replicas are divided among.
type item struct {
	weight   int64
	min, max int64
	prev     int64
	had      bool
	share    int64
	left     bool  // it keeps replicas although it has no weight
	crowded  bool  // free room bounds max
	pending  int64 // replicas that have no node there, not part of prev
	pos      int   // position in the list of members
}

func pointers(items []item) []*item {
	out := make([]*item, len(items))
	for i := range items {
		items[i].pos = i
		out[i] = &items[i]
	}
	return out
}

func (d *decider) item(m member) item {
	it := item{weight: int64(d.view.clusters[m.at].divisionWeight), max: unbounded, prev: int64(m.prev), had: m.had}
	if most := d.policy.spec.Division; most != nil && most.MaxPerCluster != nil {
		it.max = int64(*most.MaxPerCluster)
	}
	if room := d.room(m.at, d.r.Object.Needs); room < unbounded {
		it.max = min(it.max, max(room, it.prev)) // limits reject new replicas and remove none
	}
	if room, known := d.nodes.replicas(&d.r.Object, m.at); known && it.prev+room < it.max {
		it.max, it.crowded = it.prev+room, true
	}
	d.atHome(&it, m.at)
	if n := min(int64(d.r.Pending[d.fleet.clusters[m.at].Name]), it.prev); n > 0 && !m.capped {
		it.pending, it.prev = n, it.prev-n
		it.max = min(it.max, it.prev)
	}
	if p, is := d.preemption(m.at); is {
		it.prev = min(it.prev, int64(p.Left))
		it.max, it.crowded = min(it.max, int64(p.Left)), true
	}
	if fixed, ok := d.fixedAt(m.at); ok {
		it.pending = 0
		it.min, it.max, it.weight = int64(fixed), int64(fixed), max(it.weight, 1)
	}
	if m.capped {
		it.max = min(it.max, it.prev)
		it.min = min(it.min, it.max)
	}
	return it
}

// limitShares restricts the division to so many clusters that no share is smaller than the policy's
// minPerCluster. Clusters that have replicas come first.
func (d *decider) limitShares(items []item, total int64) {
	if d.policy.spec.Division == nil || d.policy.spec.Division.MinPerCluster == nil || total == 0 {
		return
	}
	least := int64(*d.policy.spec.Division.MinPerCluster)
	sharing := int(max(1, total/least))
	order := pointers(items)
	slices.SortStableFunc(order, func(a, b *item) int { return cmp.Compare(min(b.prev, 1), min(a.prev, 1)) })
	for _, it := range order {
		switch {
		case it.min > 0 || it.weight == 0 || it.max == 0: // fixed by an override, or without a share anyway
		case it.crowded && it.prev == 0 && it.max < min(least, total): // no room for so many
			it.max = 0
		case sharing > 0:
			sharing--
			it.min = min(least, it.max)
		default:
			it.max = 0
		}
	}
}

// overGroups divides among the groups of the constraints with a maxSkew, one constraint within the
// other, and then among clusters.
func (d *decider) overGroups(j int, items []*item, members []member, total int64) (left int64) {
	for j < len(d.policy.spread) && d.policy.spread[j].skew == 0 {
		j++
	}
	if j >= len(d.policy.spread) {
		return apportion(total, items)
	}
	byGroup := make([][]*item, len(d.view.names[j])+1)
	for _, it := range items {
		id := d.view.groups[j][members[it.pos].at]
		byGroup[id+1] = append(byGroup[id+1], it) // clusters without a group form one
	}
	byGroup = slices.DeleteFunc(byGroup, func(g []*item) bool { return len(g) == 0 })
	groups := make([]item, len(byGroup))
	for i, g := range byGroup {
		groups[i].pos = i
		for _, it := range g {
			groups[i].add(it)
		}
	}
	left = apportionWithin(total, int64(d.policy.spread[j].skew), groups)
	for i, g := range byGroup {
		left += d.overGroups(j+1, g, members, groups[i].share)
	}
	return left
}

func (g *item) add(it *item) {
	g.weight += it.weight
	g.min += it.min
	if it.weight > 0 {
		g.max = min(unbounded, g.max+it.max)
	} else {
		g.max = min(unbounded, g.max+it.min) // it takes no more
	}
	g.prev += it.prev
	g.had = g.had || it.had
}

// apportionWithin is apportion with shares that differ by at most skew, as far as the bounds of the
// groups allow.
func apportionWithin(total, skew int64, groups []item) (left int64) {
	ptrs := make([]*item, len(groups))
	for i := range groups {
		ptrs[i] = &groups[i]
	}
	if left = apportion(total, ptrs); len(groups) < 2 {
		return left
	}
	shares := func(i int) int64 { return groups[i].share }
	low, high := shares(0), shares(0)
	for i := range groups {
		low, high = min(low, shares(i)), max(high, shares(i))
	}
	if high-low <= skew {
		return left
	}
	// The lowest window with room for all moves the fewest replicas.
	fits := func(lo int64) bool {
		sum := int64(0)
		for i := range groups {
			sum += min(lo+skew, groups[i].max)
		}
		return sum >= total-left
	}
	window := int64(0)
	for step := int64(1) << 32; step > 0; step /= 2 {
		if !fits(window + step - 1) {
			window += step
		}
	}
	bounded := slices.Clone(groups)
	for i := range bounded {
		bounded[i].max = min(groups[i].max, window+skew)
		bounded[i].min = max(groups[i].min, min(window, groups[i].max))
		bounded[i].weight = max(bounded[i].weight, 1)
		ptrs[i] = &bounded[i]
	}
	left = apportion(total, ptrs)
	for i := range groups {
		groups[i].share = bounded[i].share
	}
	return left
}

// apportion divides in proportion to weights, within bounds. Shares are the exact quotas, rounded.
// The remainder of rounding goes first to items that would otherwise lose a replica, then to the
// largest fractions, then to the first items. So as few replicas move as the weights allow.
func apportion(total int64, items []*item) (left int64) {
	left = total
	var open []*item
	for _, it := range items {
		it.share = 0
		it.min = min(it.min, it.max)
		switch {
		case it.min == it.max || it.weight == 0:
			it.share = min(it.min, left)
			left -= it.share
		default:
			open = append(open, it)
		}
	}
	for len(open) > 0 {
		var weights, over, under int64
		for _, it := range open {
			weights += it.weight
		}
		for _, it := range open {
			over += max(0, quota(left, it, weights)-it.max)
			under += max(0, it.min-quota(left, it, weights))
		}
		// An item that cannot take its quota takes its bound, and the rest is divided again. Of
		// excess and shortage, the greater is settled first.
		settled := false
		before, all := left, weights
		open = slices.DeleteFunc(open, func(it *item) bool {
			q := quota(before, it, all)
			exact := before*it.weight%all == 0
			switch {
			case over >= under && (q > it.max || q == it.max && !exact):
				it.share = it.max
			case under > over && q < it.min:
				it.share = min(it.min, left)
			default:
				return false
			}
			left -= it.share
			settled = true
			return true
		})
		if !settled {
			round(left, weights, open)
			return 0
		}
	}
	return left
}

func quota(total int64, it *item, weights int64) int64 { return total * it.weight / weights }

// round gives each item the floor of its quota, and distributes the rest one by one.
func round(total, weights int64, items []*item) {
	rest := total
	for _, it := range items {
		it.share = quota(total, it, weights)
		rest -= it.share
	}
	order := slices.Clone(items)
	slices.SortStableFunc(order, func(a, b *item) int {
		return cmp.Or(compareBool(b.had && b.prev > b.share, a.had && a.prev > a.share),
			cmp.Compare(total*b.weight%weights, total*a.weight%weights))
	})
	for _, it := range order {
		if rest == 0 {
			return
		}
		if it.share < it.max && total*it.weight%weights != 0 {
			it.share++
			rest--
		}
	}
}
