package preemption

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// needs returns what reports whether so many replicas left one of some clusters, or with none any of them.
func needs(candidates []Candidate, n int32, clusters ...string) Fits {
	return func(leaving []int32) bool {
		in := map[string]int32{}
		for i, l := range leaving {
			cluster := candidates[i].Cluster
			if len(clusters) == 0 {
				cluster = ""
			} else if !slices.Contains(clusters, cluster) {
				continue
			}
			in[cluster] += l
		}
		for _, l := range in {
			if l >= n {
				return true
			}
		}
		return n == 0
	}
}

// TestChoose: budgets come first, then priorities, then the time of placement; and all leave one cluster if that
// suffices.
func TestChoose(t *testing.T) {
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	for name, tt := range map[string]struct {
		candidates []Candidate
		need       int32
		clusters   []string
		want       string
	}{
		"the lowest priority": {[]Candidate{{"a", "east", 5, start, 4, false, 9}, {"b", "east", 1, start, 4, false, 9}}, 3, nil, "[0 3]"},
		"then the next one":   {[]Candidate{{"a", "east", 5, start, 4, false, 9}, {"b", "east", 1, start, 4, false, 9}}, 6, nil, "[2 4]"},
		"the last placed":     {[]Candidate{{"a", "east", 1, at(1), 4, false, 9}, {"b", "east", 1, at(2), 4, false, 9}}, 1, nil, "[0 1]"},
		"within its budget":   {[]Candidate{{"a", "east", 5, start, 4, false, 9}, {"b", "east", 1, start, 4, false, 1}}, 3, nil, "[2 1]"},
		"against a budget":    {[]Candidate{{"a", "east", 1, start, 4, false, 0}}, 3, nil, "[3]"},
		"as a whole":          {[]Candidate{{"a", "east", 1, start, 4, true, 9}}, 1, nil, "[4]"},
		"a whole may stay":    {[]Candidate{{"a", "east", 1, start, 4, true, 9}, {"b", "east", 2, start, 4, false, 9}}, 4, nil, "[4 0]"},
		"never an equal":      {[]Candidate{{"a", "east", 10, start, 4, false, 9}, {"b", "east", 11, start, 4, false, 9}}, 1, nil, "[]"},
		"not enough":          {[]Candidate{{"a", "east", 1, start, 4, false, 9}}, 5, nil, "[]"},
		"one cluster": {[]Candidate{{"a", "east", 1, at(9), 2, false, 9}, {"b", "west", 1, start, 4, false, 9}}, 3,
			[]string{"east", "west"}, "[0 3]"},
		"the cluster with fewer objects": {[]Candidate{{"a", "east", 1, at(9), 2, false, 9}, {"c", "east", 1, at(9), 2, false, 9}, {"b", "west", 1, start, 4, false, 9}}, 3,
			[]string{"east", "west"}, "[0 0 3]"},
		"one budget in two clusters": {[]Candidate{{"a", "east", 1, start, 2, false, 2}, {"a", "west", 1, start, 2, false, 2}, {"b", "west", 3, start, 2, false, 9}}, 4,
			nil, "[2 0 2]"},
	} {
		if got := fmt.Sprint(Choose(10, tt.candidates, needs(tt.candidates, tt.need, tt.clusters...))); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestChoiceIsMinimal: no victim has the same or a higher priority, none could stay, a whole object leaves as a whole,
// and something leaves if all together make room.
func TestChoiceIsMinimal(t *testing.T) {
	chosen := 0
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 3))
		var candidates []Candidate
		weights := map[string]int32{}
		for i := range 1 + r.IntN(8) {
			key := fmt.Sprint("o", r.IntN(6))
			weights[key] = 1 + r.Int32N(4)
			candidates = append(candidates, Candidate{key, fmt.Sprint("c", i%3), r.Int32N(12), start.Add(time.Duration(r.IntN(3)) * time.Hour), r.Int32N(5), r.IntN(3) == 0, r.Int32N(5)})
		}
		need := 1 + r.Int32N(12)
		fits := func(leaving []int32) bool {
			in := map[string]int32{}
			for i, l := range leaving {
				in[candidates[i].Cluster] += l * weights[candidates[i].Key]
			}
			return in["c0"] >= need || in["c1"]+in["c2"] >= need
		}
		all := make([]int32, len(candidates))
		for i, c := range candidates {
			if c.Priority < 10 {
				all[i] = c.Replicas
			}
		}
		got := Choose(10, candidates, fits)
		if (got != nil) != fits(all) {
			t.Fatalf("seed %d: %v of %+v", seed, got, candidates)
		}
		if got == nil {
			continue
		}
		chosen++
		if !fits(got) {
			t.Fatalf("seed %d: %v of %+v make no room", seed, got, candidates)
		}
		for i, n := range got {
			switch c := candidates[i]; {
			case n == 0:
				continue
			case c.Priority >= 10 || n > c.Replicas || c.Whole && n != c.Replicas:
				t.Fatalf("seed %d: %d leave of %+v", seed, n, c)
			case c.Whole:
				got[i] = 0
			default:
				got[i]--
			}
			if fits(got) {
				t.Fatalf("seed %d: fewer could leave of %+v", seed, candidates[i])
			}
			got[i] = n
		}
	}
	if chosen < 5000 {
		t.Errorf("only %d choices", chosen)
	}
}
