package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// inGroups returns how many pods of an object each of its policy's groups has, and which of them have clusters that gain
// pods and clusters that lose some.
func (w *world) inGroups(o *worldObject, before []Share) (was, is []int, shuffled bool) {
	n := len(o.policy.groups)
	was, is = make([]int, n), make([]int, n)
	gains, loses := make([]bool, n), make([]bool, n)
	view := w.fleet.view(o.policy)
	old := worldObject{Object: o.Object, shares: before}
	for at, name := range w.fleet.Names() {
		g := view.clusters[at].group
		if g < 0 {
			continue
		}
		a, b := old.podsIn(name), o.podsIn(name)
		was[g], is[g] = was[g]+a, is[g]+b
		gains[g], loses[g] = gains[g] || b > a, loses[g] || b < a
	}
	for g := range n {
		shuffled = shuffled || gains[g] && loses[g]
	}
	return was, is, shuffled
}

// TestConsolidationOfRandomFleets: when others leave the clusters, objects go back to earlier groups only, within the room
// that there is, not before the time, and no pods move within a group. Then nothing moves any more.
func TestConsolidationOfRandomFleets(t *testing.T) {
	fleets := 1500
	if testing.Short() {
		fleets = 500
	}
	const after = 3 * time.Minute
	returned := 0
	for seed := range uint64(fleets) {
		w := newWorld(t, seed)
		for i := range w.objects {
			rest := []string{``, `, division: {by: Capacity}`, `, division: {by: Fewest}`, `, mode: Single`, `, clusterCount: {max: 2}`, `, division: {by: Even, minPerCluster: 2}`, `, division: {by: Even, maxPerCluster: 3}`}[w.r.IntN(7)]
			w.objects[i].policy = policy(t, `{consolidation: {after: 3m}, clusterGroups: [{name: a, clusters: {names: [c1]}}, {name: b, clusters: {names: [c0, c2]}}, {name: c, clusters: {}}]`+rest+`}`)
		}
		w.report()
		w.decide()
		w.report()
		for _, name := range w.fleet.Names() {
			for i := range w.nodes[name] {
				if n := &w.nodes[name][i]; n.others > 0 && w.r.IntN(2) == 0 {
					n.others -= 1 + w.r.IntN(n.others)
				}
			}
		}
		w.report()
		since := make([]time.Time, len(w.objects))
		last := 0
		for round := range 40 {
			for i := range w.objects {
				o := &w.objects[i]
				before := o.shares
				request := Request{Object: o.Object, Fleet: w.fleet, Policy: o.policy, Previous: before, Inputs: o.inputs, Now: w.now, Consolidate: &Consolidation{After: after, Since: since[i]}}
				request.Room = w.rooms.For(w.fleet, &request.Object, nil, before)
				d := Decide(request)
				w.rooms.Grant(&request.Object, before, d.Shares(), w.now)
				o.shares, o.inputs = d.Shares(), d.Inputs
				was, is, shuffled := w.inGroups(o, before)
				if !d.Consolidation.Returned {
					since[i] = d.Consolidation.Since
					for _, s := range before { // it may only grow
						if old := (worldObject{Object: o.Object, shares: before}); o.podsIn(s.Cluster) < old.podsIn(s.Cluster) {
							t.Fatalf("seed %d, round %d: %v becomes %v without a reason", seed, round, before, o.shares)
						}
					}
					continue
				}
				if since[i].IsZero() || w.now.Sub(since[i]) < after {
					t.Fatalf("seed %d, round %d: %v becomes %v too early", seed, round, before, o.shares)
				}
				since[i], last = time.Time{}, round
				returned++
				a, b := 0, 0
				for g := range was {
					if a, b = a+was[g], b+is[g]; b < a {
						t.Fatalf("seed %d, round %d: %v becomes %v: pods go to a later group", seed, round, before, o.shares)
					}
				}
				if a != b || shuffled || d.keeps(before) {
					t.Fatalf("seed %d, round %d: %v becomes %v", seed, round, before, o.shares)
				}
			}
			w.report() // fails if the shares do not fit
		}
		if last > 30 {
			t.Fatalf("seed %d: objects still move in round %d", seed, last)
		}
	}
	if returned < fleets/10 {
		t.Errorf("only %d objects went back", returned)
	}
}

// TestConsolidationIsValidated: a policy without groups has nothing to consolidate.
func TestConsolidationIsValidated(t *testing.T) {
	spec := v1alpha1.PlacementSpec{Consolidation: &v1alpha1.ConsolidationPolicy{}}
	if _, err := Compile(&spec); err == nil || !strings.Contains(err.Error(), "spec.consolidation.after is 0s: set it to 1m0s or longer") {
		t.Errorf("error %v", err)
	}
	spec.Consolidation.After.Duration = time.Minute
	if _, err := Compile(&spec); err == nil || !strings.Contains(err.Error(), "spec.consolidation requires spec.clusterGroups") {
		t.Errorf("error %v", err)
	}
	p := policy(t, `{consolidation: {after: 2m}, clusterGroups: [{name: a, clusters: {names: [c0]}}, {name: b, clusters: {}}]}`)
	if after, returns := p.Consolidation(); !returns || after != 2*time.Minute {
		t.Errorf("objects go back %v after %s", returns, after)
	}
	if _, returns := p.Pinned("c0").Consolidation(); returns {
		t.Error("an object with a label goes to another cluster")
	}
	if p.HomeInputs() != policy(t, `{clusterGroups: [{name: a, clusters: {names: [c0]}}, {name: b, clusters: {}}]}`).HomeInputs() {
		t.Error("the setting changes where objects are at home")
	}
}
