package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// scenario is a random fleet with an object and a policy.
type scenario struct {
	clusters []Cluster
	spec     v1alpha1.PlacementSpec
	request  Request
}

func (w *scenario) decide(t *testing.T) (Decision, []Verdict) {
	t.Helper()
	p, err := Compile(&w.spec)
	if err != nil {
		t.Fatal(err)
	}
	w.request.Policy, w.request.Fleet = p, NewFleet(w.clusters)
	return Explain(w.request)
}

func pointer[T any](v T) *T { return &v }

func selectLabel(key, value string) *v1alpha1.ClusterSelector {
	return &v1alpha1.ClusterSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
}

func randomCluster(rng *rand.Rand, i int, now time.Time) Cluster {
	c := Cluster{
		Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(rng.IntN(3)) * time.Minute),
		Ready: rng.IntN(4) > 0, Since: now.Add(-time.Duration(rng.IntN(10)) * time.Minute), Confirmed: rng.IntN(3) > 0,
		EvictAfter: 5 * time.Minute, Unschedulable: rng.IntN(6) == 0, Leaving: rng.IntN(9) == 0,
		Labels: map[string]string{"tier": []string{"a", "b"}[rng.IntN(2)]},
	}
	c.Confirmed = c.Confirmed || c.Ready
	c.Draining, c.DrainPaused = (i+rngOf(c))%7 == 0, rngOf(c)%2 == 0
	if !c.Ready {
		c.Why = []string{v1alpha1.ReasonClusterUnreachable, v1alpha1.ReasonInvalidKubeConfig, v1alpha1.ReasonClusterUnreachable}[i%3]
	}
	if rng.IntN(4) > 0 {
		c.Labels[v1alpha1.TopologyRegion] = []string{"eu", "us", "asia"}[rng.IntN(3)]
	}
	if rng.IntN(5) == 0 {
		effects := []v1alpha1.TaintEffect{v1alpha1.TaintNoSchedule, v1alpha1.TaintPreferNoSchedule, v1alpha1.TaintNoExecute}
		c.Taints = []v1alpha1.Taint{{Key: "t", Effect: effects[rng.IntN(3)]}}
	}
	if rng.IntN(2) == 0 {
		c.Allocatable = &Resources{CPU: int64(rng.IntN(20)) * 1000, Memory: 1 << 40, Pods: 100}
	}
	if rng.IntN(6) == 0 {
		c.Limits = &v1alpha1.ClusterLimits{Pods: pointer(int64(rng.IntN(8)))}
	}
	return c
}

// rngOf returns a number that a random cluster has anyway: further random numbers would change all scenarios.
func rngOf(c Cluster) int { return int(c.Since.Unix() / 60) }

func randomSpec(rng *rand.Rand) v1alpha1.PlacementSpec {
	var s v1alpha1.PlacementSpec
	one := func(n int) bool { return rng.IntN(n) == 0 }
	if one(3) {
		s.Clusters = selectLabel("tier", "a")
	}
	if one(3) {
		s.Affinity = []v1alpha1.ClusterPreference{{Weight: 10, Clusters: *selectLabel("tier", "b")}}
	}
	if one(3) {
		s.Spread = []v1alpha1.SpreadConstraint{{TopologyKey: "region"}}
		if one(2) {
			s.Spread[0].MinGroups = pointer(1 + rng.Int32N(2))
		}
		if one(2) {
			s.Spread[0].MaxGroups = pointer(2 + rng.Int32N(2))
		}
		if one(2) {
			s.Spread[0].MaxSkew = pointer(1 + rng.Int32N(2))
		}
	}
	if one(3) {
		s.ClusterCount = &v1alpha1.CountRange{Max: pointer(1 + rng.Int32N(4))}
	}
	if one(6) {
		s.ClusterCount = &v1alpha1.CountRange{Min: pointer(1 + rng.Int32N(3))}
	}
	if one(4) {
		s.Tolerations = []v1alpha1.Toleration{{Key: "t", Operator: corev1.TolerationOpExists}}
	}
	if one(2) {
		s.Mode = []v1alpha1.PlacementMode{v1alpha1.ModeDivided, v1alpha1.ModeDuplicated, v1alpha1.ModeSingle}[rng.IntN(3)]
	}
	if one(3) {
		s.Division = &v1alpha1.ReplicaDivision{By: []v1alpha1.DivisionBy{v1alpha1.DivideEven, v1alpha1.DivideWeighted, v1alpha1.DivideCapacity}[rng.IntN(3)]}
		if s.Division.By == v1alpha1.DivideWeighted {
			s.Division.Weights = []v1alpha1.ClusterWeight{{Clusters: *selectLabel("tier", "a"), Weight: 3}, {Clusters: *selectLabel("tier", "b"), Weight: rng.Int32N(2)}}
		}
		if one(3) {
			s.Division.MaxPerCluster = pointer(1 + rng.Int32N(10))
		}
		if one(3) {
			s.Division.MinPerCluster = pointer(1 + rng.Int32N(3))
		}
	}
	return s
}

func randomScenario(rng *rand.Rand, plain bool) *scenario {
	w := &scenario{request: Request{Object: Object{Key: fmt.Sprint("k", rng.IntN(100)), Mode: divided, Divisible: true,
		Replicas: rng.Int32N(30), Needs: Resources{CPU: 1000, Pods: 1}}, Now: start.Add(time.Hour), Allocations: NewAllocations(), Obstacles: map[string]Obstacle{}}}
	for i := range 1 + rng.IntN(7) {
		c := randomCluster(rng, i, w.request.Now)
		if plain {
			c.Taints, c.Limits, c.Draining = nil, nil, false
		}
		w.clusters = append(w.clusters, c)
		if rng.IntN(2) == 0 {
			w.request.Previous = append(w.request.Previous, Share{Cluster: c.Name, Replicas: rng.Int32N(10), Whole: !plain && rng.IntN(8) == 0})
		}
		if !plain && rng.IntN(8) == 0 {
			w.request.Obstacles[c.Name] = Obstacle{Reason: "Obstacle", Message: "cannot", Keeps: rng.IntN(2) == 0}
		}
	}
	w.request.Allocations.Set(w.request.Object, w.request.Previous)
	if !plain {
		w.spec = randomSpec(rng)
	}
	return w
}

// TestProperties checks invariants on random fleets, without policies.
func TestProperties(t *testing.T) {
	for seed := range uint64(10000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := randomScenario(rng, true)
		d, _ := w.decide(t)
		check := func(ok bool, what string) {
			t.Helper()
			if !ok {
				t.Fatalf("seed %d: %s\nclusters %+v\nrequest  %+v\ndecision %+v", seed, what, w.clusters, w.request.Previous, d)
			}
		}
		check(sum(d)+d.Unplaced == w.request.Object.Replicas, "replicas are lost or added")
		alternative := false
		for _, c := range w.clusters {
			alternative = alternative || c.Ready && !c.Unschedulable && !c.Leaving
		}
		check(!alternative || d.Unplaced == 0, "replicas wait although a cluster can take them")
		var free []int32
		for _, c := range w.clusters {
			v := chosen(d, c.Name)
			if c.Ready && !c.Unschedulable && !c.Leaving {
				free = append(free, v.Replicas)
			}
		}
		for _, a := range free {
			for _, b := range free {
				check(a-b <= 1, "shares are uneven")
			}
		}
	}
}

func chosen(d Decision, name string) Verdict {
	for _, v := range d.Chosen {
		if v.Cluster == name {
			return v
		}
	}
	return Verdict{}
}

// TestPolicyProperties checks the invariants that no policy can break.
func TestPolicyProperties(t *testing.T) {
	unsteady := 0
	for seed := range uint64(10000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := randomScenario(rng, false)
		d, verdicts := w.decide(t)
		check := func(ok bool, what string) {
			t.Helper()
			if !ok {
				t.Fatalf("seed %d: %s\nclusters %+v\npolicy %+v\nprevious %+v\nobstacles %+v\nobject %+v\ndecision %+v\nverdicts %+v",
					seed, what, w.clusters, w.spec, w.request.Previous, w.request.Obstacles, w.request.Object, d, verdicts)
			}
		}
		had := map[string]Share{}
		for _, s := range w.request.Previous {
			had[s.Cluster] = s
		}
		well := false
		for _, v := range d.Chosen {
			well = well || v.Reason == ReasonChosen
		}
		for _, c := range w.clusters {
			v := chosen(d, c.Name)
			before, was := had[c.Name]
			check(v.Replicas >= 0, "a share is negative")
			check(!c.Leaving || !v.Chosen, "a leaving cluster is chosen")
			check(!v.Chosen || c.Ready || was, "a cluster that is not Ready gets a new object")
			check(!v.Chosen || !c.Unschedulable || was, "a cordoned cluster gets a new object")
			check(!v.Chosen || !c.Draining || was, "a drained cluster gets a new object")
			check(!v.Chosen || was || w.request.Obstacles[c.Name].Reason == "", "an obstacle was ignored")
			if v.Chosen && v.Counted && (!c.Ready || c.Unschedulable) {
				prev := before.Replicas
				if before.Whole {
					prev = w.request.Object.Replicas
				}
				check(v.Replicas <= prev, "a cluster that may not grow grows")
			}
			// The rules that take precedence.
			if was && !v.Chosen {
				check(c.Leaving || c.Ready || c.Confirmed, "an object is removed from a cluster with unknown state")
				check(c.Leaving || well, "an object is removed and no cluster takes over")
			}
		}
		// An object that may not leave yet stays, and departures name those that it left.
		turn := w.request
		turn.Awaits = map[string]bool{}
		for _, left := range d.Departures {
			turn.Awaits[left.Cluster] = true
			check(!chosen(d, left.Cluster).Chosen && had[left.Cluster].Cluster != "", "a departure from a cluster that it is in")
		}
		waits, turns := Explain(turn)
		for _, v := range turns { // a policy may permit fewer clusters
			check(!turn.Awaits[v.Cluster] || v.Reason == ReasonKeptUntilItsTurn || v.Reason == ReasonEnough || v.Reason == ReasonOtherGroups || waits.Reason == Unsatisfied, "an object leaves before its turn")
		}
		for _, left := range waits.Departures {
			check(!turn.Awaits[left.Cluster], "an object leaves before its turn")
		}
		if d.Mode == divided {
			check(sum(d)+d.Unplaced == w.request.Object.Replicas || d.Reason == Unsatisfied, "replicas are lost or added")
		}
		if d.Scheduled && d.Mode == v1alpha1.ModeSingle {
			known := 0
			for _, v := range d.Chosen {
				if v.Reason == ReasonChosen {
					known++
				}
			}
			check(known <= 1, "a Single object is in two healthy clusters")
		}
		check(len(verdicts) == len(w.clusters), "a cluster has no verdict")
		for _, v := range verdicts {
			check(v.Reason != "" && v.Message != "", "a verdict without a reason")
			check(v.Chosen == chosen(d, v.Cluster).Chosen, "verdicts and decision differ")
		}
		plain := Decide(w.request)
		check(fmt.Sprint(plain) == fmt.Sprint(d), "Explain and Decide differ")
		rng.Shuffle(len(w.clusters), func(i, j int) { w.clusters[i], w.clusters[j] = w.clusters[j], w.clusters[i] })
		again, _ := w.decide(t)
		check(fmt.Sprint(again) == fmt.Sprint(d), "the order of the clusters matters")
		// Stickiness: repeating a decision without a change gives the same result. If a policy
		// removes the object from several unhealthy clusters, it may take several steps, because
		// other clusters have to become healthy first. The number of steps is bounded.
		steps := []string{line(d)}
		for len(steps) < 2 || steps[len(steps)-1] != steps[len(steps)-2] {
			w.request.Previous = d.Shares()
			w.request.Allocations.Set(w.request.Object, d.Shares())
			d, verdicts = w.decide(t)
			steps = append(steps, line(d))
			check(len(steps) < 6, "decisions do not converge: "+fmt.Sprint(steps))
		}
		if len(steps) > 2 {
			unsteady++
		}
	}
	if unsteady > 20 {
		t.Errorf("%d of 10000 decisions take another step", unsteady)
	}
}

// TestSmallCauses limits what an added cluster, or one label, may move.
func TestSmallCauses(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 4))
		n := 2 + rng.IntN(6)
		w := &scenario{request: Request{Object: dividedObject(rng.Int32N(60)), Now: start}}
		for i := range n {
			w.clusters = append(w.clusters, Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i)), Ready: true, Labels: map[string]string{"tier": "a"}})
		}
		w.spec.Clusters = selectLabel("tier", "a")
		before, _ := w.decide(t)
		w.request.Previous = before.Shares()

		more := *w
		more.clusters = append(append([]Cluster(nil), w.clusters...), Cluster{Name: "new", Joined: start.Add(time.Hour), Ready: true, Labels: map[string]string{"tier": "a"}})
		after, _ := more.decide(t)
		if moved, fair := movedBetween(before, after), w.request.Object.Replicas/int32(n+1)+1; moved > fair {
			t.Fatalf("seed %d: a new cluster moves %d replicas of %d, its fair share is %d: %s -> %s", seed, moved, w.request.Object.Replicas, fair, line(before), line(after))
		}

		less := *w
		less.clusters = append([]Cluster(nil), w.clusters...)
		i := rng.IntN(n)
		less.clusters[i].Labels = map[string]string{"tier": "b"}
		after, _ = less.decide(t)
		if moved, had := movedBetween(before, after), chosen(before, less.clusters[i].Name).Replicas; moved != had {
			t.Fatalf("seed %d: a label of one cluster moves %d replicas, it had %d: %s -> %s", seed, moved, had, line(before), line(after))
		}
	}
}

// movedBetween returns the number of replicas that clusters gave up.
func movedBetween(a, b Decision) (n int32) {
	for _, v := range a.Chosen {
		n += max(0, v.Replicas-chosen(b, v.Cluster).Replicas)
	}
	return n
}

// TestSinglesSpread: objects that run in one cluster each spread over all clusters by size. An
// added cluster gets its part of new objects, and changes nothing between the others.
func TestSinglesSpread(t *testing.T) {
	clusters := make([]Cluster, 10)
	for i := range clusters {
		clusters[i] = Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i)), Ready: true, Allocatable: &Resources{CPU: 10000}}
	}
	clusters[9].Allocatable = &Resources{CPU: 90000} // half of all
	where := func(f *Fleet, i int) string {
		return line(Decide(Request{Object: Object{Key: fmt.Sprint("o", i), Mode: v1alpha1.ModeSingle}, Fleet: f, Now: start}))
	}
	f, larger := NewFleet(clusters), NewFleet(append(clusters, Cluster{Name: "new", Joined: start.Add(time.Hour), Ready: true, Allocatable: &Resources{CPU: 10000}}))
	count := map[string]int{}
	for i := range 10000 {
		count[where(f, i)]++
		if now := where(larger, i); now != where(f, i) && now != "new" {
			t.Fatalf("object %d moves from %s to %s because a cluster was added", i, where(f, i), now)
		}
	}
	if len(count) != 10 || count["c9"] < 4700 || count["c9"] > 5300 || count["c0"] < 450 || count["c0"] > 670 {
		t.Errorf("not in proportion to size: %v", count)
	}
}

// TestMovesLittle: of all even divisions, the one that moves the fewest replicas is chosen.
func TestMovesLittle(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := 1 + rng.IntN(6)
		var clusters []Cluster
		r := Request{Object: dividedObject(rng.Int32N(30)), Now: start}
		prev := make([]int32, n)
		for i := range n {
			prev[i] = rng.Int32N(12)
			clusters = append(clusters, Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i)), Ready: true})
			r.Previous = append(r.Previous, Share{Cluster: fmt.Sprintf("c%d", i), Replicas: prev[i]})
		}
		r.Fleet = NewFleet(clusters)
		var moved int32
		for i, v := range Decide(r).Chosen {
			moved += max(0, prev[i]-v.Replicas)
		}
		if best := fewestMoves(r.Object.Replicas, prev); moved != best {
			t.Fatalf("seed %d: %v to %s moves %d replicas, want %d", seed, prev, line(Decide(r)), moved, best)
		}
	}
}

// fewestMoves tries every distribution of the remainder.
func fewestMoves(replicas int32, prev []int32) int32 {
	n := int32(len(prev))
	even, surplus := replicas/n, int(replicas%n)
	best := int32(1 << 30)
	for set := range 1 << n {
		var bits int
		var moved int32
		for i := range prev {
			share := even
			if set>>i&1 == 1 {
				bits++
				share++
			}
			moved += max(0, prev[i]-share)
		}
		if bits == surplus {
			best = min(best, moved)
		}
	}
	return best
}

// TestOrdinalsNeverTwice: no ordinal ever exists in two clusters.
func TestOrdinalsNeverTwice(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var ranges []Range
		for range 8 {
			var shares []Share
			for i := range 4 {
				if rng.IntN(4) > 0 {
					shares = append(shares, Share{Cluster: fmt.Sprint("c", i), Replicas: rng.Int32N(5)})
				}
			}
			now := Ordinals(shares, ranges)
			for i, a := range now {
				if a.Start < 0 || a.Count != shares[i].Replicas {
					t.Fatalf("seed %d: %+v for %+v", seed, a, shares[i])
				}
				for _, b := range now[i+1:] {
					if a.overlap(b) > 0 {
						t.Fatalf("seed %d: %+v and %+v share an identity", seed, a, b)
					}
				}
				for _, was := range ranges {
					if was.Cluster == a.Cluster && a.Count <= was.Count && a.Count > 0 && a.Start != was.Start {
						t.Fatalf("seed %d: %+v moved from %+v without growing", seed, a, was)
					}
				}
			}
			ranges = now
		}
	}
}

// TestOrdinalsStay: as long as no cluster leaves, scaling moves no replica, and the ordinals have no gaps.
func TestOrdinalsStay(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 6))
		var ranges []Range
		clusters := "abc"
		for range 12 {
			if rng.IntN(6) == 0 && len(clusters) < 6 {
				clusters += string(rune('a' + len(clusters)))
			}
			total := rng.Int32N(12)
			now := renumber(t, clusters, ranges, total)
			ordinals := map[int32]string{}
			for _, r := range now {
				for o := r.Start; o < r.end(); o++ {
					ordinals[o] = r.Cluster
				}
			}
			if len(ordinals) != int(total) {
				t.Fatalf("seed %d: %d ordinals for %d replicas: %s", seed, len(ordinals), total, formatRanges(now))
			}
			for _, was := range ranges {
				for o := was.Start; o < min(was.end(), total); o++ {
					if ordinals[o] != was.Cluster {
						t.Fatalf("seed %d: %d left %s for %q: %s, then %s", seed, o, was.Cluster, ordinals[o], formatRanges(ranges), formatRanges(now))
					}
				}
			}
			for o := range total {
				if ordinals[o] == "" {
					t.Fatalf("seed %d: %d is missing in %s", seed, o, formatRanges(now))
				}
			}
			ranges = now
		}
	}
}

// TestApplicationsStayTogether: the few replicas of an application's objects are in the same clusters,
// divided or not, and applications spread.
func TestApplicationsStayTogether(t *testing.T) {
	clusters := make([]Cluster, 10)
	for i := range clusters {
		clusters[i] = Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i)), Ready: true}
	}
	f := NewFleet(clusters)
	used := map[string]bool{}
	for app := range 100 {
		namespace := fmt.Sprint("app-", app)
		decide := func(o Object) Decision {
			o.Together = namespace
			return Decide(Request{Object: o, Fleet: f, Now: start})
		}
		single := line(decide(Object{Key: namespace + "/database", Mode: v1alpha1.ModeSingle}))
		used[single] = true
		for part := range 5 {
			key := fmt.Sprint(namespace, "/part-", part)
			if got := line(decide(Object{Key: key, Mode: divided, Divisible: true, Replicas: 1})); got != single+" 1" {
				t.Fatalf("%s, of one replica, is in %s, and the database in %s", key, got, single)
			}
			if got := decide(Object{Key: key, Mode: divided, Divisible: true, Replicas: 12}); share(got, single) != 2 {
				t.Fatalf("%s is divided into %s, without the remainder in %s", key, line(got), single)
			}
		}
	}
	if len(used) < 10 {
		t.Errorf("100 applications use only %d of 10 clusters", len(used))
	}
}

func share(d Decision, cluster string) int32 {
	for _, c := range d.Chosen {
		if c.Cluster == cluster {
			return c.Replicas
		}
	}
	return 0
}
