package placement

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestDegradedObjectsLoseNothing: an object leaves only Ready clusters in which it is not Healthy, with all of its replicas
// and copies, and not before its turn. While it avoids them, it does not return.
func TestDegradedObjectsLoseNothing(t *testing.T) {
	left, stayed := 0, 0
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 17))
		w := randomScenario(rng, seed%3 == 0)
		for i := range w.clusters { // all are well, so nothing else moves the object
			c := &w.clusters[i]
			c.Ready, c.Confirmed, c.Leaving, c.Unschedulable, c.Since, c.Taints = true, true, false, false, start, nil
		}
		w.request.Previous = nil
		settle := func() (d Decision) {
			for range 4 {
				d, _ = w.decide(t)
				w.request.Previous, w.request.Inputs = d.Shares(), d.Inputs
				w.request.Allocations.Set(w.request.Object, w.request.Previous)
			}
			return d
		}
		before := settle()
		if before.Unplaced > 0 || len(before.Chosen) == 0 || !before.Scheduled {
			continue
		}
		w.request.Degraded, w.request.Awaits = map[string]time.Time{}, map[string]bool{}
		for _, v := range before.Chosen {
			if rng.IntN(2) == 0 {
				w.request.Degraded[v.Cluster] = start
				if rng.IntN(3) == 0 {
					w.request.Awaits[v.Cluster] = true
				}
			}
		}
		d, _ := w.decide(t)
		for _, name := range d.Degraded {
			_, is := w.request.Degraded[name]
			if !is || w.request.Awaits[name] || slices.ContainsFunc(d.Chosen, func(v Verdict) bool { return v.Cluster == name }) || !slices.Contains(d.Departures, Departure{Cluster: name}) {
				t.Fatalf("seed %d: it leaves %s: %s", seed, name, line(d))
			}
		}
		if d.Mode == v1alpha1.ModeDivided && (d.Unplaced > 0 || sum(d) != sum(before)) || d.Mode != v1alpha1.ModeDivided && len(d.Chosen) < len(before.Chosen) {
			t.Fatalf("seed %d: %s becomes %s", seed, line(before), line(d))
		}
		if len(d.Degraded) == 0 {
			stayed++
			continue
		}
		left++
		for _, name := range d.Degraded { // as the scheduler records it
			w.request.Obstacles = withObstacle(w.request.Obstacles, name)
		}
		w.request.Degraded = nil
		w.request.Previous, w.request.Inputs = d.Shares(), d.Inputs
		w.request.Allocations.Set(w.request.Object, w.request.Previous)
		after := settle()
		for _, name := range d.Degraded {
			if slices.ContainsFunc(after.Chosen, func(v Verdict) bool { return v.Cluster == name }) {
				t.Fatalf("seed %d: it left %s, %s, and returns, %s", seed, name, line(d), line(after))
			}
		}
	}
	if left < 500 || stayed < 500 {
		t.Errorf("only %d left, and %d stayed", left, stayed)
	}
}

func withObstacle(obstacles map[string]Obstacle, cluster string) map[string]Obstacle {
	out := map[string]Obstacle{cluster: {Reason: ReasonDegraded, Message: "did not keep it Healthy"}}
	for name, o := range obstacles {
		if name != cluster {
			out[name] = o
		}
	}
	return out
}
