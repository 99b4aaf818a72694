package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// attempt chooses clusters: those that have the object, without those that should give it up unless
// stay is set, and as many others as the policy wants.
func (d *decider) attempt(fresh []member, stay, avoid bool) outcome {
	kept := d.keeping(stay)
	members := append(make([]member, 0, len(kept)+len(fresh)), kept...)
	for _, m := range fresh {
		if avoid && d.view.clusters[m.at].avoided && !m.near {
			d.marks[m.at] = markAvoided
			continue
		}
		members = append(members, m)
	}
	if len(members) == 0 && len(fresh) > 0 {
		return outcome{problem: "every cluster has a PreferNoSchedule taint", unplaced: noLimit}
	}
	members = d.inFirstGroup(members)
	problem := ""
	for j := range d.policy.spread {
		if members, problem = d.inGroups(j, members); problem != "" {
			return outcome{problem: problem, unplaced: noLimit}
		}
	}
	if members, problem = d.count(members); problem != "" {
		return outcome{problem: problem, unplaced: noLimit}
	}
	o := d.share(members)
	if lost := len(d.holders) - holding(o.members); lost > d.goneHolders() && !slices.ContainsFunc(o.members, func(m member) bool { return !m.capped }) {
		return outcome{problem: "no other cluster can take over", unplaced: noLimit}
	}
	if d.losesCopies(o.members) {
		return outcome{problem: "no other cluster takes the copy that is not Healthy", unplaced: noLimit}
	}
	return o
}

// inFirstGroup chooses one of the policy's groups for an object that clusters run as a whole: the one where it runs, or
// else the first one with enough clusters. The others get it nowhere new.
func (d *decider) inFirstGroup(members []member) []member {
	if len(d.policy.groups) < 2 || d.mode == divided {
		return members
	}
	counts, chosen := make([]int, len(d.policy.groups)), int32(-1)
	for _, m := range members {
		g := d.view.clusters[m.at].group
		counts[g]++
		if m.had && !m.capped && (chosen < 0 || g < chosen) {
			chosen = g
		}
	}
	if chosen < 0 {
		enough := max(1, d.policy.least)
		chosen = int32(slices.IndexFunc(counts, func(n int) bool { return n >= enough }))
	}
	if chosen < 0 {
		return members
	}
	return slices.DeleteFunc(members, func(m member) bool {
		other := !m.had && d.view.clusters[m.at].group != chosen
		if other {
			d.marks[m.at] = markOtherGroup
		}
		return other
	})
}

func holding(members []member) (n int) {
	for _, m := range members {
		if m.had {
			n++
		}
	}
	return n
}

func (d *decider) goneHolders() (n int) {
	for _, h := range d.holders {
		if h.gone {
			n++
		}
	}
	return n
}

// mayGo reports whether a decision may remove a member: it does not have the object, or the state
// of the cluster is known.
func (d *decider) mayGo(m member) bool {
	return !m.had || d.holders[d.holds[m.at]-1].known
}

// groupInfo has the criteria for choosing a group.
type groupInfo struct {
	id          int32
	fixed       bool // some cluster of the group cannot be removed
	held, fresh int
	weight      int32
	score       uint64
}

// rankKey returns the hash by which the object ranks equally good clusters.
func (d *decider) rankKey() uint64 {
	if d.r.Object.Together != "" {
		return hash(d.r.Object.Together)
	}
	return hash(d.r.Object.Key)
}

// inGroups applies a spread constraint: enough groups, and not too many. Groups that have the
// object come first, then preferred ones, then by a hash with what the object belongs to.
func (d *decider) inGroups(j int, members []member) ([]member, string) {
	c, groupOf, names := &d.policy.spread[j], d.view.groups[j], d.view.names[j]
	groups := make([]groupInfo, len(names))
	for i := range groups {
		groups[i] = groupInfo{id: int32(i), weight: math.MinInt32}
	}
	for _, m := range members {
		if id := groupOf[m.at]; id >= 0 {
			g := &groups[id]
			g.weight = max(g.weight, m.weight)
			if m.had {
				g.held++
				g.fixed = g.fixed || !d.mayGo(m)
			} else {
				g.fresh++
			}
		}
	}
	groups = slices.DeleteFunc(groups, func(g groupInfo) bool { return g.held+g.fresh == 0 })
	if len(groups) < c.least {
		return nil, fmt.Sprintf("the policy spreads over at least %d values of %s, and %s", c.least, c.key, canTake(len(groups)))
	}
	if len(groups) <= c.most {
		return members, ""
	}
	key := d.rankKey()
	for i := range groups {
		groups[i].score = mix(key ^ hash(names[groups[i].id]))
	}
	slices.SortFunc(groups, func(a, b groupInfo) int {
		return cmp.Or(compareBool(b.fixed, a.fixed), compareBool(b.held > 0, a.held > 0), cmp.Compare(b.held, a.held),
			cmp.Compare(b.weight, a.weight), cmp.Compare(b.score, a.score))
	})
	allowed := make([]bool, len(names))
	for _, g := range groups[:c.most] {
		allowed[g.id] = true
	}
	return slices.DeleteFunc(members, func(m member) bool {
		id := groupOf[m.at]
		if id >= 0 && allowed[id] || !d.mayGo(m) || id < 0 && m.had {
			return false
		}
		d.marks[m.at] = markOtherGroups
		return true
	}), ""
}

func canTake(n int) string {
	if n == 0 {
		return "none has a cluster that can take the object"
	}
	return fmt.Sprintf("only %d have a cluster that can take the object", n)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// count limits the number of clusters to the wanted number.
func (d *decider) count(members []member) ([]member, string) {
	held := holding(members)
	kept, fresh := members[:held:held], members[held:]
	if held > d.most {
		kept = d.surplus(kept)
	}
	picked := d.pick(kept, fresh, d.most-len(kept))
	out := append(kept, picked...)
	if len(out) < d.policy.least {
		return nil, fmt.Sprintf("the policy requires at least %d clusters, and %d can take the object", d.policy.least, len(kept)+len(fresh))
	}
	for j, c := range d.policy.spread {
		if n := d.groupsOf(j, out); n < c.least {
			return nil, fmt.Sprintf("the policy spreads over at least %d values of %s, which is impossible with at most %d clusters", c.least, c.key, d.most)
		}
	}
	return out, ""
}

func (d *decider) groupsOf(j int, members []member) (n int) {
	seen := make([]bool, len(d.view.names[j]))
	for _, m := range members {
		if id := d.view.groups[j][m.at]; id >= 0 && !seen[id] {
			seen[id] = true
			n++
		}
	}
	return n
}

// surplus removes the object from surplus clusters. Clusters with an unknown state stay first, then
// healthy ones, then those with the most replicas. One healthy cluster stays, if there is one, no
// matter how many are unknown.
func (d *decider) surplus(kept []member) []member {
	order := slices.Clone(kept)
	slices.SortStableFunc(order, func(a, b member) int {
		return cmp.Or(compareBool(d.mayGo(a), d.mayGo(b)), compareBool(a.capped, b.capped), cmp.Compare(b.prev, a.prev),
			cmp.Compare(b.weight, a.weight), cmp.Compare(a.at, b.at))
	})
	unknown := 0
	for unknown < len(order) && !d.mayGo(order[unknown]) {
		unknown++
	}
	stay := min(len(order), max(d.most, unknown+1))
	if !slices.ContainsFunc(order[:stay], func(m member) bool { return !m.capped }) {
		return kept // otherwise no healthy cluster would have it
	}
	for _, m := range order[stay:] {
		d.marks[m.at] = markEnough
	}
	return order[:stay:stay]
}

// pick returns the clusters that newly get the object: preferred ones first, then by a hash with
// what the object belongs to, so that applications spread in proportion to the clusters' sizes.
// With groups, clusters are taken from the groups in turn.
func (d *decider) pick(kept, fresh []member, room int) []member {
	skew := 0
	if d.mode != divided && len(d.policy.spread) > 0 {
		skew = int(d.policy.spread[0].skew)
	}
	if room >= len(fresh) && skew == 0 {
		return fresh
	}
	if room <= 0 {
		d.markAll(fresh, markEnough)
		return nil
	}
	if room == 1 && len(d.policy.spread) == 0 { // the most frequent case, which needs no sorting
		return d.pickOne(fresh)
	}
	if len(d.policy.spread) == 0 {
		best := d.best(fresh, room)
		d.markAll(fresh, markEnough)
		d.markAll(best, unmarked)
		return best
	}
	return d.inTurn(kept, d.rank(fresh), room, skew)
}

// inTurn repeatedly takes a cluster from the group that has the fewest.
func (d *decider) inTurn(kept, ranked []member, room, skew int) []member {
	groupOf := d.view.groups[0]
	queues, counts := make([][]member, len(d.view.names[0])), make([]int, len(d.view.names[0]))
	for _, m := range kept {
		if id := groupOf[m.at]; id >= 0 {
			counts[id]++
		}
	}
	var order []int32 // groups, those with the best clusters first
	for _, m := range ranked {
		id := groupOf[m.at]
		if len(queues[id]) == 0 {
			order = append(order, id)
		}
		queues[id] = append(queues[id], m)
	}
	used := slices.Clone(order)
	for id, n := range counts {
		if n > 0 && !slices.Contains(used, int32(id)) {
			used = append(used, int32(id))
		}
	}
	var out []member
	for len(out) < room {
		best := int32(-1)
		for _, id := range order {
			if len(queues[id]) > 0 && (best < 0 || counts[id] < counts[best]) {
				best = id
			}
		}
		if best < 0 {
			return out
		}
		least := counts[best]
		for _, id := range used {
			least = min(least, counts[id])
		}
		if skew > 0 && counts[best]+1-least > skew {
			break
		}
		out = append(out, queues[best][0])
		queues[best] = queues[best][1:]
		counts[best]++
	}
	left := markEnough
	if len(out) < room {
		left = markSkew
	}
	for _, queue := range queues {
		d.markAll(queue, left)
	}
	return out
}

// scored is a cluster with its rank for an object.
type scored struct {
	*member
	group          int32
	avoided, tight bool
	score          float64
}

// scored ranks a cluster. Among equally preferred clusters, each is first for a part of all objects
// in proportion to its size (weighted rendezvous hashing). Adding or removing a cluster changes
// nothing between the others.
func (d *decider) scored(m *member, key uint64) scored {
	// A number between 0 and 1, exclusive.
	u := (float64(mix(key^d.fleet.hashes[m.at])>>11) + 0.5) / (1 << 53)
	return scored{m, d.view.clusters[m.at].group, d.view.clusters[m.at].avoided && !m.near, d.isTight(m.at), -d.size(m.at) / math.Log(u)}
}

func (s scored) before(o scored) int {
	switch {
	case s.avoided != o.avoided:
		return compareBool(s.avoided, o.avoided)
	case s.group != o.group:
		return cmp.Compare(s.group, o.group)
	case s.tight != o.tight:
		return compareBool(s.tight, o.tight)
	case s.weight != o.weight:
		return cmp.Compare(o.weight, s.weight)
	case s.score != o.score:
		return cmp.Compare(o.score, s.score)
	}
	return cmp.Compare(s.at, o.at)
}

func (d *decider) pickOne(fresh []member) []member {
	key := d.rankKey()
	best := d.scored(&fresh[0], key)
	for i := range fresh[1:] {
		if s := d.scored(&fresh[i+1], key); s.before(best) < 0 {
			best = s
		}
	}
	d.markAll(fresh, markEnough)
	d.marks[best.at] = unmarked
	return []member{*best.member}
}

// best returns the n best clusters for an object, which has more to choose from. A few are found without sorting all.
func (d *decider) best(fresh []member, n int) []member {
	const few = 32
	if n > few {
		return d.rank(fresh)[:n]
	}
	key := d.rankKey()
	list := make([]scored, 0, n+1)
	for i := range fresh {
		s := d.scored(&fresh[i], key)
		at := len(list)
		for at > 0 && s.before(list[at-1]) < 0 {
			at--
		}
		if at < n {
			list = slices.Insert(list, at, s)[:min(n, len(list)+1)]
		}
	}
	out := make([]member, len(list))
	for i := range list {
		out[i] = *list[i].member
	}
	return out
}

// rank orders clusters for an object.
func (d *decider) rank(fresh []member) []member {
	list := make([]scored, len(fresh))
	key := d.rankKey()
	for i := range fresh {
		list[i] = d.scored(&fresh[i], key)
	}
	slices.SortFunc(list, scored.before)
	out := make([]member, len(list))
	for i := range list {
		out[i] = *list[i].member
	}
	return out
}

// size returns the CPU of a cluster, or a small default if it is unknown.
func (d *decider) size(at int32) float64 {
	if a := d.fleet.clusters[at].Allocatable; a != nil && a.CPU > 0 {
		return float64(a.CPU)
	}
	return 4000
}
