package placement

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// three are clusters that joined one after another.
func three() []Cluster {
	var out []Cluster
	for i, name := range []string{"east", "west", "north"} {
		out = append(out, Cluster{Name: name, Joined: start.Add(time.Duration(i) * time.Minute), Ready: true,
			Since: start, EvictAfter: 5 * time.Minute, Confirmed: true})
	}
	return out
}

// line writes a decision as "east 4, west 3".
func line(d Decision, divided bool) string {
	var parts []string
	for _, v := range d.Chosen() {
		part := v.Cluster
		if divided {
			part += fmt.Sprintf(" %d", v.Replicas)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func shares(d Decision) []Share {
	var out []Share
	for _, v := range d.Chosen() {
		out = append(out, Share{v.Cluster, v.Replicas})
	}
	return out
}

// TestStory plays one object through what happens to a fleet.
func TestStory(t *testing.T) {
	clusters := three()
	now := start.Add(time.Hour)
	var previous []Share
	replicas := int32(9)
	step := func(what, want string) Decision {
		t.Helper()
		d := Decide(Request{Object: Object{Divided: true, Replicas: replicas}, Clusters: clusters, Previous: previous, Now: now})
		if got := line(d, true); got != want {
			t.Fatalf("%s: %s, want %s (%s)", what, got, want, d.Message)
		}
		if d.Unplaced == 0 && sum(d) != replicas {
			t.Fatalf("%s: %d replicas placed, want %d", what, sum(d), replicas)
		}
		previous = shares(d)
		return d
	}
	set := func(name string, f func(*Cluster)) {
		for i := range clusters {
			if clusters[i].Name == name {
				f(&clusters[i])
			}
		}
	}
	step("nine divide evenly", "east 3, west 3, north 3")
	replicas = 10
	step("the remainder goes to the first", "east 4, west 3, north 3")

	set("east", func(c *Cluster) { c.Ready, c.Since, c.Confirmed = false, now, true })
	d := step("not Ready keeps its share", "east 4, west 3, north 3")
	if want := now.Add(5 * time.Minute); !d.Recheck.Equal(want) {
		t.Errorf("recheck at %v, want %v", d.Recheck, want)
	}
	replicas = 16
	step("not Ready does not grow", "east 4, west 6, north 6")
	replicas = 10
	step("and shrinks with the rest", "east 4, west 3, north 3")

	now = now.Add(5 * time.Minute)
	set("east", func(c *Cluster) { c.Confirmed = false })
	step("hearsay evicts nobody", "east 4, west 3, north 3")
	set("east", func(c *Cluster) { c.Confirmed = true })
	d = step("after its toleration the share moves", "west 5, north 5")
	if v := d.Verdicts[0]; v.Reason != ReasonEvicted || v.Message == "" {
		t.Errorf("east: %+v, want evicted with a message", v)
	}
	set("east", func(c *Cluster) { c.Ready, c.Since = true, now })
	step("it takes its share again", "east 3, west 4, north 3")

	clusters = append(clusters, Cluster{Name: "south", Joined: start.Add(time.Hour), Ready: true, Since: now, Confirmed: true})
	step("who joins gets its share", "east 3, west 3, north 2, south 2")
	set("west", func(c *Cluster) { c.Leaving = true })
	step("who leaves gives up its share", "east 4, north 3, south 3")
	set("north", func(c *Cluster) { c.Unschedulable = true })
	step("a cordon moves nothing", "east 4, north 3, south 3")
	replicas = 13
	step("and takes nothing new", "east 5, north 3, south 5")
	replicas = 2
	step("a share may become zero without the object going", "east 1, north 1, south 0")
	replicas = 0
	step("and all of them", "east 0, north 0, south 0")

	for i := range clusters {
		clusters[i].Ready, clusters[i].Since, clusters[i].Confirmed = false, now, true
	}
	now = now.Add(24 * time.Hour)
	step("with nobody to take over, nothing moves", "east 0, north 0, south 0")
}

func sum(d Decision) (n int32) {
	for _, v := range d.Verdicts {
		if v.Chosen {
			n += v.Replicas
		}
	}
	return n
}

func TestWhere(t *testing.T) {
	edit := func(f func(c []Cluster)) []Cluster {
		c := three()
		f(c)
		return c
	}
	now := start.Add(time.Hour)
	tests := []struct {
		name      string
		request   Request
		want      string
		scheduled bool
		reason    string
	}{
		{"whole objects go everywhere", Request{Clusters: three()}, "east, west, north", true, Placed},
		{"no clusters", Request{}, "", false, NoClusters},
		{"none Ready, new object", Request{Clusters: edit(func(c []Cluster) {
			for i := range c {
				c[i].Ready = false
			}
		})}, "", false, NoReadyClusters},
		{"none schedulable", Request{Object: Object{Divided: true, Replicas: 3}, Clusters: edit(func(c []Cluster) {
			for i := range c {
				c[i].Unschedulable = true
			}
		})}, "", false, NoReadyClusters},
		{"fewer replicas than clusters", Request{Object: Object{Divided: true, Replicas: 2}, Clusters: three()}, "east 1, west 1", true, Placed},
		{"no replicas at all", Request{Object: Object{Divided: true}, Clusters: three()}, "east 0, west 0, north 0", true, Placed},
		{"one Ready takes all", Request{Object: Object{Divided: true, Replicas: 7}, Clusters: edit(func(c []Cluster) { c[0].Ready, c[2].Ready = false, false })}, "west 7", true, Placed},
		{"finished where it ran", Request{Object: Object{Finished: true}, Clusters: three(), Previous: []Share{{Cluster: "west"}}}, "west", true, Placed},
		{"finished stays in a cluster that is down", Request{Object: Object{Finished: true}, Previous: []Share{{Cluster: "west"}},
			Clusters: edit(func(c []Cluster) { c[1].Ready, c[1].Since = false, start })}, "west", true, Placed},
		{"the only cluster with it is down for long", Request{Clusters: edit(func(c []Cluster) {
			c[0].Unschedulable, c[2].Unschedulable = true, true
			c[1].Ready = false
		}), Previous: []Share{{Cluster: "west"}}}, "west", true, Placed},
		{"scaled up with only cordoned clusters", Request{Object: Object{Divided: true, Replicas: 9}, Previous: []Share{{"east", 3}},
			Clusters: edit(func(c []Cluster) {
				for i := range c {
					c[i].Unschedulable = true
				}
			})}, "east 3", false, NoReadyClusters},
		{"joined at the same time, by name", Request{Object: Object{Divided: true, Replicas: 4}, Clusters: edit(func(c []Cluster) {
			for i := range c {
				c[i].Joined = start
			}
		})}, "east 2, north 1, west 1", true, Placed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.request.Now = now
			d := Decide(tt.request)
			if got := line(d, tt.request.Object.Divided); got != tt.want {
				t.Errorf("placed on %q, want %q", got, tt.want)
			}
			if d.Scheduled != tt.scheduled || d.Reason != tt.reason || d.Message == "" {
				t.Errorf("%v %s %q, want %v %s and a message", d.Scheduled, d.Reason, d.Message, tt.scheduled, tt.reason)
			}
			for _, v := range d.Verdicts {
				if v.Reason == "" || v.Message == "" {
					t.Errorf("verdict without a reason: %+v", v)
				}
			}
		})
	}
}

// TestProperties checks on random fleets what must always hold.
func TestProperties(t *testing.T) {
	for seed := range uint64(20000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := randomRequest(rng)
		d := Decide(r)
		check := func(ok bool, what string) {
			t.Helper()
			if !ok {
				t.Fatalf("seed %d: %s\nrequest  %+v\ndecision %+v", seed, what, r, d)
			}
		}
		check(sum(d)+d.Unplaced == r.Object.Replicas, "replicas are lost or made up")
		had := map[string]int32{}
		for _, s := range r.Previous {
			had[s.Cluster] = s.Replicas
		}
		free := []int32{}
		byName := map[string]Cluster{}
		alternative := false
		for _, c := range r.Clusters {
			byName[c.Name] = c
			alternative = alternative || c.Ready && !c.Unschedulable && !c.Leaving
		}
		check(!alternative || d.Unplaced == 0, "replicas wait although a cluster can take them")
		for _, v := range d.Verdicts {
			c := byName[v.Cluster]
			prev, was := had[v.Cluster]
			check(v.Replicas >= 0, "a share is negative")
			check(v.Chosen || v.Replicas == 0, "a cluster has replicas and is not chosen")
			check(!c.Leaving || !v.Chosen, "a leaving cluster is chosen")
			check(!v.Chosen || c.Ready || was, "a cluster that is not Ready gets something new")
			check(!v.Chosen || !c.Unschedulable || was, "a cordoned cluster gets something new")
			if v.Chosen && (!c.Ready || c.Unschedulable) {
				check(v.Replicas <= prev, "a cluster that may not grow grows")
			}
			// The rule above all others.
			if was && !v.Chosen {
				lost := !c.Ready && c.Confirmed && !r.Now.Before(c.Since.Add(c.EvictAfter)) && alternative
				check(c.Leaving || lost, "an object is taken out of a cluster without need")
			}
			if c.Ready && !c.Unschedulable && !c.Leaving {
				free = append(free, v.Replicas)
			}
		}
		for _, a := range free {
			for _, b := range free {
				check(a-b <= 1, "shares are uneven")
			}
		}
		again := Decide(r)
		check(fmt.Sprint(again) == fmt.Sprint(d), "the same request gives another decision")
		shuffled := r
		shuffled.Clusters = append([]Cluster(nil), r.Clusters...)
		rng.Shuffle(len(shuffled.Clusters), func(i, j int) {
			shuffled.Clusters[i], shuffled.Clusters[j] = shuffled.Clusters[j], shuffled.Clusters[i]
		})
		check(fmt.Sprint(Decide(shuffled)) == fmt.Sprint(d), "the order of the clusters matters")
		// Sticky: a decision that nothing has changed since is the same.
		r2 := r
		r2.Previous = shares(d)
		check(line(Decide(r2), true) == line(d, true), "a decision does not stay: "+line(Decide(r2), true))
	}
}

func randomRequest(rng *rand.Rand) Request {
	r := Request{Object: Object{Divided: true, Replicas: rng.Int32N(30)}, Now: start.Add(time.Hour)}
	n := 1 + rng.IntN(6)
	for i := range n {
		r.Clusters = append(r.Clusters, Cluster{
			Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(rng.IntN(3)) * time.Minute),
			Ready: rng.IntN(4) > 0, Since: r.Now.Add(-time.Duration(rng.IntN(10)) * time.Minute), Confirmed: rng.IntN(3) > 0,
			EvictAfter: 5 * time.Minute, Unschedulable: rng.IntN(5) == 0, Leaving: rng.IntN(8) == 0,
		})
		if rng.IntN(2) == 0 {
			r.Previous = append(r.Previous, Share{fmt.Sprintf("c%d", i), rng.Int32N(10)})
		}
	}
	return r
}

// TestMovesLittle: of all even divisions, the one is chosen that moves fewest
// replicas.
func TestMovesLittle(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := 1 + rng.IntN(6)
		r := Request{Object: Object{Divided: true, Replicas: rng.Int32N(30)}, Now: start}
		prev := make([]int32, n)
		for i := range n {
			prev[i] = rng.Int32N(12)
			r.Clusters = append(r.Clusters, Cluster{Name: fmt.Sprintf("c%d", i), Joined: start.Add(time.Duration(i)), Ready: true})
			r.Previous = append(r.Previous, Share{fmt.Sprintf("c%d", i), prev[i]})
		}
		var moved int32
		for i, v := range Decide(r).Verdicts {
			moved += max(0, prev[i]-v.Replicas)
		}
		if best := fewestMoves(r.Object.Replicas, prev); moved != best {
			t.Fatalf("seed %d: %v to %s takes %d away, %d would do", seed, prev, line(Decide(r), true), moved, best)
		}
	}
}

// fewestMoves tries every way to give out the remainder.
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

func BenchmarkDecide(b *testing.B) {
	r := Request{Object: Object{Divided: true, Replicas: 3000}, Now: start}
	for i := range 1000 {
		r.Clusters = append(r.Clusters, Cluster{Name: fmt.Sprintf("c%04d", i), Joined: start.Add(time.Duration(i)), Ready: true})
	}
	for b.Loop() {
		Decide(r)
	}
}
