package placement

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// lostAt returns clusters that became unreachable, each after so many seconds; those with -1 are Ready.
func lostAt(seconds ...int) []Cluster {
	out := make([]Cluster, len(seconds))
	for i, s := range seconds {
		out[i] = Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i) * time.Minute), Ready: s < 0, Since: start, Confirmed: true, EvictAfter: 5 * time.Minute}
		if s >= 0 {
			out[i].Since, out[i].Why = start.Add(time.Duration(s)*time.Second), v1alpha1.ReasonClusterUnreachable
		}
	}
	return out
}

// heldIn returns the numbers of the clusters whose failover is held.
func heldIn(clusters []Cluster) string {
	var out []string
	for _, name := range NewFleet(clusters).Names() {
		if _, _, held := NewFleet(clusters).Hold(name); held {
			out = append(out, strings.TrimPrefix(name, "c"))
		}
	}
	return strings.Join(out, " ")
}

func TestHoldFailovers(t *testing.T) {
	for _, tt := range []struct {
		what     string
		clusters []Cluster
		want     string
	}{
		{"one of one", lostAt(0), ""},
		{"one of two", lostAt(0, -1), ""},
		{"both of two", lostAt(0, 30), "0 1"},
		{"both of two, one after the other", lostAt(0, 100), ""},
		{"two of three", lostAt(0, 30, -1), "0 1"},
		{"two of four", lostAt(0, 30, -1, -1), ""},
		{"three of four", lostAt(0, -1, 60, 30), "0 2 3"},
		{"one after the other", lostAt(0, 61, 122, -1, -1, -1), ""},
		{"two that had been lost for long do not count", lostAt(0, 0, 3600, 3610, -1), "2 3"},
		{"nor do they count against a failover", lostAt(0, 0, 3600, -1, -1), ""},
	} {
		if got := heldIn(tt.clusters); got != tt.want {
			t.Errorf("%s: held are %q, want %q", tt.what, got, tt.want)
		}
	}
	refused := lostAt(0, 0, 0)
	for i := range refused {
		refused[i].Why = v1alpha1.ReasonInvalidKubeConfig
	}
	if got := heldIn(refused); got != "" {
		t.Errorf("clusters with refused credentials are held: %s", got)
	}
	leaves := lostAt(0, 0, -1)
	leaves[0].Leaving = true
	if got := heldIn(leaves); got != "" {
		t.Errorf("one of two that stay: held are %s", got)
	}
}

// TestHeldClustersKeepTheirShare through the whole course of a fault, and after it until the time has passed again.
func TestHeldClustersKeepTheirShare(t *testing.T) {
	clusters := lostAt(0, 10, -1)
	now := start.Add(time.Hour)
	decide := func() Decision {
		return Decide(Request{Object: Object{Key: "one", Mode: v1alpha1.ModeSingle}, Fleet: NewFleet(clusters), Previous: []Share{{Cluster: "c0", Whole: true}}, Now: now})
	}
	expect := func(what, cluster, reason string) {
		t.Helper()
		if d := decide(); line(d) != cluster || d.Chosen[0].Reason != reason {
			t.Errorf("%s: %+v, want %s: %s", what, d.Chosen, cluster, reason)
		}
	}
	expect("two of three", "c0", ReasonKeptFailoverHeld)
	if m := decide().Chosen[0].Message; !strings.Contains(m, "2 of 3 clusters") || !strings.Contains(m, "NoExecute") {
		t.Errorf("message %q", m)
	}
	clusters[0].HoldRecorded, clusters[1].HoldRecorded = true, true
	clusters[1] = lostAt(-1, -1)[1]
	expect("one is back, and the end is not recorded", "c0", ReasonKeptFailoverHeld)
	clusters[0].HoldRecorded, clusters[0].HeldUntil = false, now
	expect("the end is recorded: the time counts again", "c0", ReasonKeptNotReady)
	if d := decide(); !d.Recheck.Equal(now.Add(5 * time.Minute)) {
		t.Errorf("to be decided again at %s", d.Recheck)
	}
	now = now.Add(5 * time.Minute)
	expect("it is over", line(decide()), ReasonChosen)

	clusters = lostAt(0, 10, -1)
	clusters[0].Taints = []v1alpha1.Taint{{Key: "gone", Effect: v1alpha1.TaintNoExecute}}
	expect("a user says that it is lost", "c2", ReasonChosen)
	clusters[0].Taints, clusters[0].Leaving = nil, true
	expect("a user lets it leave", "c2", ReasonChosen)
}

// TestLeastTolerated: however short evictAfter or a toleration is, a cluster keeps its share until others with the same
// fault are noticed, too.
func TestLeastTolerated(t *testing.T) {
	second := int64(1)
	policy, err := Compile(&v1alpha1.PlacementSpec{Mode: v1alpha1.ModeSingle,
		Tolerations: []v1alpha1.Toleration{{Key: v1alpha1.TaintNotReady, Operator: "Exists", TolerationSeconds: &second}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Policy{nil, policy} {
		clusters := lostAt(0, -1, -1)
		clusters[0].EvictAfter = time.Second
		decide := func(after time.Duration) Decision {
			return Decide(Request{Object: Object{Key: "one", Mode: v1alpha1.ModeSingle}, Policy: p, Fleet: NewFleet(clusters), Previous: []Share{{Cluster: "c0", Whole: true}}, Now: start.Add(after)})
		}
		if d := decide(19 * time.Second); line(d) != "c0" || !d.Recheck.Equal(start.Add(leastTolerated)) || p.HasLost(&clusters[0], &Object{}, start.Add(19*time.Second)) {
			t.Errorf("after 19 s: %+v, to be decided again at %s", d.Chosen, d.Recheck)
		}
		if d := decide(leastTolerated); line(d) == "c0" || !p.HasLost(&clusters[0], &Object{}, start.Add(leastTolerated)) {
			t.Errorf("after %s: %+v", leastTolerated, d.Chosen)
		}
		clusters[1] = lostAt(-1, 15, -1)[1]
		if d := decide(time.Hour); line(d) != "c0" || d.Chosen[0].Reason != ReasonKeptFailoverHeld {
			t.Errorf("another one was lost: %+v", d.Chosen)
		}
	}
}

// TestHoldProperties checks random fleets against the definition, pair by pair.
func TestHoldProperties(t *testing.T) {
	for seed := range uint64(20000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		seconds := make([]int, 1+rng.IntN(9))
		for i := range seconds {
			seconds[i] = rng.IntN(240)
			if rng.IntN(3) == 0 {
				seconds[i] = -1
			}
		}
		clusters := lostAt(seconds...)
		want := make([]bool, len(seconds))
		for _, first := range seconds { // a minute that begins with a loss
			var in []int
			reachable := 0
			for i, s := range seconds {
				if s < 0 || s >= first {
					reachable++
				}
				if s >= first && s <= first+60 {
					in = append(in, i)
				}
			}
			if first >= 0 && len(in) > 1 && 2*len(in) > reachable {
				for _, i := range in {
					want[i] = true
				}
			}
		}
		var expected []string
		for i, held := range want {
			if held {
				expected = append(expected, fmt.Sprint(i))
			}
		}
		got := heldIn(clusters)
		if got != strings.Join(expected, " ") {
			t.Fatalf("seed %d, %v: held are %q, want %v", seed, seconds, got, expected)
		}
		rng.Shuffle(len(clusters), func(i, j int) { clusters[i], clusters[j] = clusters[j], clusters[i] })
		if again := heldIn(clusters); again != got {
			t.Fatalf("seed %d: the order of the clusters matters: %s and %s", seed, got, again)
		}
		r := Request{Object: dividedObject(12), Fleet: NewFleet(clusters), Now: start.Add(time.Hour)}
		for i := range clusters {
			r.Previous = append(r.Previous, Share{Cluster: clusters[i].Name, Replicas: 2})
		}
		d := Decide(r)
		for i := range clusters {
			if _, _, held := r.Fleet.Hold(clusters[i].Name); held && !chosen(d, clusters[i].Name).Chosen {
				t.Fatalf("seed %d, %v: the object leaves %s", seed, seconds, clusters[i].Name)
			}
		}
	}
}
