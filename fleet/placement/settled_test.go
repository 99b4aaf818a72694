package placement

import (
	"math/rand/v2"
	"testing"
)

// TestSettledSharesStay: with autoscalers, only the object's count changes nothing. Whatever else
// changes, the shares follow the count of that moment.
func TestSettledSharesStay(t *testing.T) {
	kept, moved := 0, 0
	for seed := range uint64(10000) {
		rng := rand.New(rand.NewPCG(seed, 9))
		w := randomScenario(rng, seed%2 == 0)
		for range 6 { // several steps, if a policy removes the object from unhealthy clusters
			d, _ := w.decide(t)
			w.request.Previous = d.Shares()
			w.request.Allocations.Set(w.request.Object, w.request.Previous)
		}
		was, _ := w.decide(t)
		if was.Mode != divided || was.Unplaced > 0 || sum(was) == 0 || sum(was) != w.request.Object.Replicas {
			continue
		}
		w.request.Settled, w.request.Object.Replicas = sum(was), 1+rng.Int32N(40)
		is, _ := w.decide(t)
		if line(is) != line(was) {
			t.Fatalf("seed %d: %d replicas change %s to %s\npolicy %+v\nclusters %+v", seed, w.request.Object.Replicas, line(was), line(is), w.spec, w.clusters)
		}
		kept++
		// The same as without Settled, if a cluster with a share leaves.
		for i := range w.clusters {
			if chosen(was, w.clusters[i].Name).Replicas > 0 {
				w.clusters[i].Leaving = true
				break
			}
		}
		is, _ = w.decide(t)
		w.request.Settled = 0
		plain, _ := w.decide(t)
		if line(is) != line(plain) {
			t.Fatalf("seed %d: a cluster leaves, and %s becomes %s, want %s", seed, line(was), line(is), line(plain))
		}
		moved++
	}
	if kept < 1000 || moved < 1000 {
		t.Errorf("only %d decisions were kept, and %d changed", kept, moved)
	}
}
