package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// divide shares replicas among the chosen candidates, which are in order of
// joining, and gives how many found no place.
//
// Shares differ by one at most, except that a cluster which may not grow keeps no
// more than it had. Where replicas do not divide evenly, the surplus goes to
// clusters that would otherwise have to give one up, then to the first: so as few
// replicas move as an even division allows.
//
// A cluster without a share is not chosen, unless it has the object already (it
// stays, with zero replicas) or the object asks for no replicas at all (then it
// is everywhere, so that scaling up from zero finds all in place).
func divide(replicas int32, candidates []candidate) (unplaced int32) {
	var open []*candidate
	for i := range candidates {
		if candidates[i].verdict.Chosen {
			open = append(open, &candidates[i])
		}
	}
	chosen := slices.Clone(open)
	left := replicas
	// Who cannot take an even share takes what it can; the rest divide anew, which
	// raises the even share, so others may hit their limit in turn.
	for {
		full := slices.IndexFunc(open, func(c *candidate) bool {
			return c.capped && int64(c.prev)*int64(len(open)) < int64(left)
		})
		if full < 0 {
			break
		}
		open[full].verdict.Replicas = open[full].prev
		left -= open[full].prev
		open = slices.Delete(open, full, full+1)
	}
	if len(open) > 0 {
		spread(left, open)
		left = 0
	}
	for _, c := range chosen {
		if c.verdict.Replicas > 0 || c.had || replicas == 0 {
			continue
		}
		c.verdict.Chosen = false
		c.verdict.Reason = ReasonNoReplicas
		c.verdict.Message = fmt.Sprintf("%d replicas are fewer than the clusters", replicas)
	}
	return left
}

// spread divides evenly, with the surplus as divide says. A capped candidate
// gets a surplus replica only if it has it already.
func spread(replicas int32, among []*candidate) {
	even, surplus := replicas/int32(len(among)), int(replicas%int32(len(among)))
	bySurplus := slices.Clone(among)
	rank := func(c *candidate) int {
		switch {
		case c.had && c.prev > even:
			return 0
		case c.capped:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(bySurplus, func(a, b *candidate) int { return cmp.Compare(rank(a), rank(b)) })
	for i, c := range bySurplus {
		c.verdict.Replicas = even
		if i < surplus {
			c.verdict.Replicas++
		}
	}
}
