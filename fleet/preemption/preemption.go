// Package preemption chooses which replicas of objects leave clusters, so that waiting pods of a higher priority have
// room there.
//
// It follows Kubernetes' scheduler, which does the same with the pods of one node: all that may leave does, and then as
// many as possible return, the most important ones first.
package preemption

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Candidate is an object in one cluster that may leave it.
type Candidate struct {
	Key, Cluster string
	Priority     int32
	// Since is when the object was placed first.
	Since time.Time
	// Replicas are those that it has in the cluster. With Whole, they leave together.
	Replicas int32
	Whole    bool
	// Spare is how many of its replicas in all clusters together may leave before a disruption budget is violated.
	Spare int32
}

// Fits reports whether the waiting pods have room when so many replicas of each candidate left. More that leave never
// make less room.
type Fits func(leaving []int32) bool

// mostClusters bounds the clusters that are tried alone.
const mostClusters = 16

// lot is a part of a candidate's replicas that are equally important.
type lot struct {
	of       int // position of the candidate
	replicas int32
	whole    bool
	violates bool // a disruption budget
}

// Choose returns how many replicas of each candidate leave, nil if even all of them make no room. No replica that leaves
// could stay. Those whose disruption budgets permit it leave first, then those of the lowest priority, then those that
// were placed last. All leave one cluster, if that suffices.
func Choose(priority int32, candidates []Candidate, fits Fits) []int32 {
	c := &chooser{candidates: candidates, fits: fits}
	c.divide(priority)
	if !fits(c.leaving(c.lots)) {
		return nil
	}
	best := c.fewest(c.lots)
	var tried []string
	for _, l := range c.lots {
		name := candidates[l.of].Cluster
		if len(tried) == mostClusters {
			break
		}
		if slices.Contains(tried, name) {
			continue
		}
		tried = append(tried, name)
		in := slices.DeleteFunc(slices.Clone(c.lots), func(o lot) bool { return candidates[o.of].Cluster != name })
		if len(in) == len(c.lots) || !fits(c.leaving(in)) {
			continue
		}
		if one := c.fewest(in); c.compare(one, best) < 0 {
			best = one
		}
	}
	return best
}

type chooser struct {
	candidates []Candidate
	fits       Fits
	lots       []lot // the least important ones first
}

// divide makes the lots.
func (c *chooser) divide(priority int32) {
	spare := map[string]int32{}
	for i, x := range c.candidates {
		if x.Priority >= priority || x.Replicas <= 0 {
			continue
		}
		left, known := spare[x.Key]
		if !known {
			left = max(0, x.Spare)
		}
		permitted := min(left, x.Replicas)
		if x.Whole && permitted < x.Replicas {
			permitted = 0
		}
		spare[x.Key] = left - permitted
		if permitted > 0 {
			c.lots = append(c.lots, lot{of: i, replicas: permitted, whole: x.Whole})
		}
		if rest := x.Replicas - permitted; rest > 0 {
			c.lots = append(c.lots, lot{of: i, replicas: rest, whole: x.Whole, violates: true})
		}
	}
	slices.SortStableFunc(c.lots, func(a, b lot) int {
		x, y := &c.candidates[a.of], &c.candidates[b.of]
		if a.violates != b.violates {
			if b.violates {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), y.Since.Compare(x.Since), strings.Compare(x.Key, y.Key), strings.Compare(x.Cluster, y.Cluster))
	})
}

func (c *chooser) leaving(lots []lot) []int32 {
	out := make([]int32, len(c.candidates))
	for _, l := range lots {
		out[l.of] += l.replicas
	}
	return out
}

// fewest returns how many replicas of each candidate leave, if only those in some lots may.
func (c *chooser) fewest(lots []lot) []int32 {
	// The smallest number of the least important lots.
	n, all := 0, len(lots)
	for n < all {
		if half := (n + all) / 2; c.fits(c.leaving(lots[:half])) {
			all = half
		} else {
			n = half + 1
		}
	}
	chosen := slices.Clone(lots[:n])
	// The most important ones stay if they can.
	for i := len(chosen) - 1; i >= 0; i-- {
		l := &chosen[i]
		least, most := int32(0), l.replicas
		for least < most {
			l.replicas = (least + most) / 2
			if l.whole {
				l.replicas = 0
			}
			switch {
			case c.fits(c.leaving(chosen)):
				most = l.replicas
			case l.whole:
				least = most
			default:
				least = l.replicas + 1
			}
		}
		l.replicas = most
	}
	return c.leaving(chosen)
}

// compare compares two choices: fewer violations of budgets are better, then a lower priority of the most important
// replica, fewer objects, fewer replicas, and those that were placed last.
func (c *chooser) compare(a, b []int32) int {
	x, y := c.cost(a), c.cost(b)
	return cmp.Or(cmp.Compare(x.violations, y.violations), cmp.Compare(x.priority, y.priority), cmp.Compare(x.objects, y.objects),
		cmp.Compare(x.replicas, y.replicas), y.oldest.Compare(x.oldest))
}

type cost struct {
	violations, objects, replicas int64
	priority                      int32
	oldest                        time.Time
}

func (c *chooser) cost(leaving []int32) (out cost) {
	by := map[string]int64{}
	for i, n := range leaving {
		if n == 0 {
			continue
		}
		x := &c.candidates[i]
		if out.objects == 0 || x.Priority > out.priority {
			out.priority = x.Priority
		}
		if out.objects == 0 || x.Since.Before(out.oldest) {
			out.oldest = x.Since
		}
		out.objects++
		out.replicas += int64(n)
		before := by[x.Key]
		by[x.Key] = before + int64(n)
		spare := int64(max(0, x.Spare))
		out.violations += max(0, by[x.Key]-spare) - max(0, before-spare)
	}
	return out
}
