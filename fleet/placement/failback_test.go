package placement

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestObjectsReturnOnce: after random failures and recoveries of clusters, an object that failed over returns to all
// clusters that it left or to none, not before they have been Ready for long enough, with all of its replicas, and the
// next decision moves nothing back.
func TestObjectsReturnOnce(t *testing.T) {
	returned, waited := 0, 0
	for seed := range uint64(6000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		w := randomScenario(rng, seed%3 == 0)
		for i := range w.clusters { // at first, all are well
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
		if d := settle(); d.Unplaced > 0 || len(d.Chosen) == 0 {
			continue
		}
		home := &Home{Shares: w.request.Previous, After: time.Duration(rng.IntN(3)) * time.Minute}
		failed := map[string]bool{}
		for i := range w.clusters {
			if c := &w.clusters[i]; rng.IntN(2) == 0 {
				c.Ready, c.Since = false, w.request.Now.Add(-time.Hour)
				failed[c.Name] = true
			}
		}
		d, _ := w.decide(t)
		for _, name := range d.Evicted {
			if !failed[name] || slices.ContainsFunc(d.Chosen, func(v Verdict) bool { return v.Cluster == name }) {
				t.Fatalf("seed %d: %s failed over, and is Ready or chosen: %s", seed, name, line(d))
			}
		}
		if len(d.Evicted) == 0 {
			continue
		}
		settle()
		w.request.Now = w.request.Now.Add(time.Minute)
		for i := range w.clusters {
			if c := &w.clusters[i]; failed[c.Name] && rng.IntN(4) > 0 {
				c.Ready, c.Since = true, w.request.Now
			}
		}
		w.request.Home, w.request.Now = home, w.request.Now.Add(time.Duration(rng.IntN(3))*time.Minute)
		before := w.request.Previous
		d, _ = w.decide(t)
		for _, name := range d.Home.To {
			c, _ := w.request.Fleet.Cluster(name)
			in := slices.ContainsFunc(d.Chosen, func(v Verdict) bool { return v.Cluster == name })
			early := !c.Ready || w.request.Now.Sub(c.Since) < home.After
			if d.Home.Returned && (early || !in) {
				t.Fatalf("seed %d: it returns to %s, Ready %v since %s: %s", seed, name, c.Ready, c.Since, line(d))
			}
		}
		if !d.Home.Returned {
			if d.Home.Waits == "" && len(d.Home.To) > 0 && (d.Recheck.IsZero() || d.Recheck.After(d.Home.At)) {
				t.Fatalf("seed %d: it returns at %s, and is checked at %s", seed, d.Home.At, d.Recheck)
			}
			without := w.request
			without.Home = nil
			if plain := Decide(without); line(plain) != line(d) {
				t.Fatalf("seed %d: it does not return, and %s becomes %s", seed, line(plain), line(d))
			}
			waited++
			continue
		}
		if d.Unplaced > 0 || d.Mode == v1alpha1.ModeDivided && sum(d) != w.request.Object.Replicas {
			t.Fatalf("seed %d: it returns with %d of %d replicas: %s", seed, sum(d), w.request.Object.Replicas, line(d))
		}
		for _, name := range d.Home.Left {
			if !slices.ContainsFunc(before, func(s Share) bool { return s.Cluster == name }) {
				t.Fatalf("seed %d: it leaves %s, where it was not", seed, name)
			}
		}
		w.request.Home, w.request.Previous, w.request.Inputs = nil, d.Shares(), d.Inputs
		w.request.Allocations.Set(w.request.Object, w.request.Previous)
		again, _ := w.decide(t)
		for _, name := range d.Home.To {
			if !slices.ContainsFunc(again.Chosen, func(v Verdict) bool { return v.Cluster == name }) {
				t.Fatalf("seed %d: it returned, %s, and leaves again, %s", seed, line(d), line(again))
			}
		}
		returned++
	}
	if returned < 200 || waited < 200 {
		t.Errorf("only %d returned, and %d waited", returned, waited)
	}
}

// TestHomeInputs: an edit of where objects run is another home; one of how they move is not.
func TestHomeInputs(t *testing.T) {
	base := policy(t, `{clusterCount: {max: 1}}`)
	for text, same := range map[string]bool{
		`{clusterCount: {max: 1}, failback: {after: 1m}}`:        true,
		`{clusterCount: {max: 1}, transition: {paused: true}}`:   true,
		`{clusterCount: {max: 2}}`:                               false,
		`{clusterCount: {max: 1}, clusters: {names: [a, east]}}`: false,
	} {
		if got := policy(t, text); (got.HomeInputs() == base.HomeInputs()) != same {
			t.Errorf("%s: equal is %v", text, !same)
		}
	}
	if base.Pinned("east").HomeInputs() == base.HomeInputs() {
		t.Error("a label changes nothing")
	}
	if _, returns := base.Failback(); returns {
		t.Error("objects return although the policy does not say so")
	}
}
