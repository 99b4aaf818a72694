package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// threeClusters returns three clusters that joined one after another.
func threeClusters() []Cluster {
	var out []Cluster
	for i, name := range []string{"east", "west", "north"} {
		out = append(out, Cluster{Name: name, Joined: start.Add(time.Duration(i) * time.Minute), Ready: true,
			Since: start, EvictAfter: 5 * time.Minute, Confirmed: true})
	}
	return out
}

// dividedObject returns an object whose replicas are divided.
func dividedObject(replicas int32) Object {
	return Object{Key: "shop/web", Mode: divided, Divisible: true, Replicas: replicas}
}

func policy(t testing.TB, text string) *Policy {
	t.Helper()
	var spec v1alpha1.PlacementSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	p, err := Compile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// line formats a decision as "east 4, west 3".
func line(d Decision) string {
	var parts []string
	for _, v := range d.Chosen {
		part := v.Cluster
		if v.Counted {
			part += fmt.Sprintf(" %d", v.Replicas)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func sum(d Decision) (n int32) {
	for _, v := range d.Chosen {
		n += v.Replicas
	}
	return n
}

// TestStory applies a sequence of events to one object.
func TestStory(t *testing.T) {
	clusters := threeClusters()
	now := start.Add(time.Hour)
	var previous []Share
	replicas := int32(9)
	step := func(what, want string) Request {
		t.Helper()
		r := Request{Object: dividedObject(replicas), Fleet: NewFleet(clusters), Previous: previous, Now: now}
		d := Decide(r)
		if got := line(d); got != want {
			t.Fatalf("%s: %s, want %s (%s)", what, got, want, d.Message)
		}
		if d.Unplaced == 0 && sum(d) != replicas {
			t.Fatalf("%s: %d replicas placed, want %d", what, sum(d), replicas)
		}
		previous = d.Shares()
		return r
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

	set("east", func(c *Cluster) {
		c.Ready, c.Why, c.Since, c.Confirmed = false, v1alpha1.ReasonClusterUnreachable, now, true
	})
	r := step("not Ready keeps its share", "east 4, west 3, north 3")
	if want := now.Add(5 * time.Minute); !Decide(r).Recheck.Equal(want) {
		t.Errorf("recheck at %v, want %v", Decide(r).Recheck, want)
	}
	replicas = 16
	step("not Ready does not grow", "east 4, west 6, north 6")
	replicas = 10
	step("a share that is not Ready shrinks with the rest", "east 4, west 3, north 3")

	now = now.Add(5 * time.Minute)
	set("east", func(c *Cluster) { c.Confirmed = false })
	step("an unconfirmed status evicts nothing", "east 4, west 3, north 3")
	set("east", func(c *Cluster) { c.Confirmed = true })
	r = step("the share moves after its toleration", "west 5, north 5")
	if _, verdicts := Explain(r); verdicts[0].Reason != ReasonEvicted || verdicts[0].Message == "" {
		t.Errorf("east: %+v, want evicted with a message", verdicts[0])
	}
	set("east", func(c *Cluster) { c.Ready, c.Since = true, now })
	step("a cluster that is Ready again gets its share", "east 3, west 4, north 3")

	clusters = append(clusters, Cluster{Name: "south", Joined: start.Add(time.Hour), Ready: true, Since: now, Confirmed: true})
	step("a new cluster gets a share", "east 3, west 3, north 2, south 2")
	set("west", func(c *Cluster) { c.Leaving = true })
	step("a leaving cluster loses its share", "east 3, north 3, south 4")
	set("north", func(c *Cluster) { c.Unschedulable = true })
	step("a cordon moves nothing", "east 3, north 3, south 4")
	replicas = 13
	step("a cordoned cluster gets nothing new", "east 5, north 3, south 5")
	replicas = 2
	step("a share may become zero, and the object stays", "east 1, north 0, south 1")
	replicas = 0
	step("all shares may become zero", "east 0, north 0, south 0")

	for i := range clusters {
		clusters[i].Ready, clusters[i].Since, clusters[i].Confirmed = false, now, true
	}
	now = now.Add(24 * time.Hour)
	step("without an alternative, nothing moves", "east 0, north 0, south 0")
}

func TestWhere(t *testing.T) {
	edit := func(f func(c []Cluster)) []Cluster {
		c := threeClusters()
		f(c)
		return c
	}
	now := start.Add(time.Hour)
	whole := Object{Key: "shop/agent"}
	finished := Object{Key: "shop/job", Finished: true}
	tests := []struct {
		name      string
		clusters  []Cluster
		request   Request
		want      string
		scheduled bool
		reason    string
	}{
		{"whole objects go everywhere", threeClusters(), Request{Object: whole}, "east, west, north", true, Placed},
		{"no clusters", nil, Request{}, "", false, NoClusters},
		{"none Ready, new object", edit(func(c []Cluster) {
			for i := range c {
				c[i].Ready = false
			}
		}), Request{Object: whole}, "", false, NoReadyClusters},
		{"none schedulable", edit(func(c []Cluster) {
			for i := range c {
				c[i].Unschedulable = true
			}
		}), Request{Object: dividedObject(3)}, "", false, NoReadyClusters},
		{"fewer replicas than clusters", threeClusters(), Request{Object: dividedObject(2)}, "east 1, west 1", true, Placed},
		{"no replicas at all", threeClusters(), Request{Object: dividedObject(0)}, "east 0, west 0, north 0", true, Placed},
		{"one Ready takes all", edit(func(c []Cluster) { c[0].Ready, c[2].Ready = false, false }), Request{Object: dividedObject(7)}, "west 7", true, Placed},
		{"finished where it ran", threeClusters(), Request{Object: finished, Previous: []Share{{Cluster: "west", Whole: true}}}, "west", true, Placed},
		{"finished stays in a cluster that is down", edit(func(c []Cluster) { c[1].Ready, c[1].Why, c[1].Since = false, v1alpha1.ReasonClusterUnreachable, start }),
			Request{Object: finished, Previous: []Share{{Cluster: "west", Whole: true}}}, "west", true, Placed},
		{"the only cluster with it is down for long", edit(func(c []Cluster) {
			c[0].Unschedulable, c[2].Unschedulable = true, true
			c[1].Ready, c[1].Why = false, v1alpha1.ReasonClusterUnreachable
		}), Request{Object: whole, Previous: []Share{{Cluster: "west", Whole: true}}}, "west", true, Placed},
		{"scaled up with only cordoned clusters", edit(func(c []Cluster) {
			for i := range c {
				c[i].Unschedulable = true
			}
		}), Request{Object: dividedObject(9), Previous: []Share{{Cluster: "east", Replicas: 3}}}, "east 3", false, NoReadyClusters},
		{"joined at the same time, by name", edit(func(c []Cluster) {
			for i := range c {
				c[i].Joined = start
			}
		}), Request{Object: dividedObject(4)}, "east 2, north 1, west 1", true, Placed},
		{"divided that was whole", edit(func(c []Cluster) { c[0].Unschedulable = true }),
			Request{Object: dividedObject(6), Previous: []Share{{Cluster: "east", Whole: true}}}, "east 2, west 2, north 2", true, Placed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.request.Now, tt.request.Fleet = now, NewFleet(tt.clusters)
			d, verdicts := Explain(tt.request)
			if got := line(d); got != tt.want {
				t.Errorf("placed on %q, want %q", got, tt.want)
			}
			if d.Scheduled != tt.scheduled || d.Reason != tt.reason || d.Message == "" {
				t.Errorf("%v %s %q, want %v %s and a message", d.Scheduled, d.Reason, d.Message, tt.scheduled, tt.reason)
			}
			if len(verdicts) != len(tt.clusters) {
				t.Errorf("%d verdicts on %d clusters", len(verdicts), len(tt.clusters))
			}
			for _, v := range verdicts {
				if v.Reason == "" || v.Message == "" {
					t.Errorf("verdict without a reason: %+v", v)
				}
			}
		})
	}
}

func TestOrdinals(t *testing.T) {
	tests := []struct{ name, previous, shares, want string }{
		{"new, one after another", "", "a3 b2 c1", "a0-2 b3-4 c5-5"},
		{"shrink from the end", "a0-4 b5-9", "a4 b4", "a0-3 b5-8"},
		{"the last one grows", "a0-2 b3-4", "a3 b4", "a0-2 b3-6"},
		{"growing into a gap", "a0-1 b5-9", "a4 b5", "a0-3 b5-9"},
		{"growing downwards", "a0-1 b5-7 c8-9", "a2 b5 c2", "a0-1 b3-7 c8-9"},
		{"no room: only the growing range moves", "a0-2 b3-5", "a4 b3", "a6-9 b3-5"},
		{"a cluster is gone, another takes its range", "a0-2 b3-5", "b3 c3", "b3-5 c0-2"},
		{"zero keeps its place", "a0-2 b3-5", "a0 b6", "a0-none b0-5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			previous, _ := parseRanges(tt.previous)
			var shares []Share
			for _, s := range strings.Fields(tt.shares) {
				var n int32
				fmt.Sscanf(s[1:], "%d", &n)
				shares = append(shares, Share{Cluster: s[:1], Replicas: n})
			}
			if got := formatRanges(Ordinals(shares, previous)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestScalingMovesNoOrdinal: the data of a replica is in its cluster, under its name.
func TestScalingMovesNoOrdinal(t *testing.T) {
	for _, tt := range []struct{ name, clusters, before, want string }{
		{"up, to the highest", "abc", "a0-1 b2-3 c4-4 =7", "a0-1 b2-3 c4-6"},
		{"up, to a cluster without any", "abcd", "a0-1 b2-3 c4-4 =7", "a0-1 b2-3 c4-5 d6-6"},
		{"down, from the highest", "abc", "a0-1 b2-3 c4-6 =2", "a0-1 b2-none c4-none"},
		{"unchanged, though uneven", "ab", "a0-0 b1-5 =6", "a0-0 b1-5"},
		{"a gap is filled first", "ac", "a0-1 b2-3 c4-4 =5", "a0-3 c4-4"},
		{"a gap is filled by a new cluster, too", "acd", "a0-1 b2-3 c4-4 =5", "a0-1 c4-4 d2-3"},
		{"from nothing", "ab", "a0-none b0-none =4", "a0-1 b2-3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ranges, total := parseRanges(tt.before)
			if got := formatRanges(renumber(t, tt.clusters, ranges, total)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// renumber divides numbered replicas among clusters with names of one letter.
func renumber(t *testing.T, names string, before []Range, total int32) []Range {
	t.Helper()
	var clusters []Cluster
	for i, name := range names {
		clusters = append(clusters, Cluster{Name: string(name), Joined: start.Add(time.Duration(i)), Ready: true})
	}
	r := Request{Object: Object{Key: "db", Mode: v1alpha1.ModeDivided, Divisible: true, Replicas: total}, Fleet: NewFleet(clusters), Now: start, Ordinals: before}
	for _, was := range before {
		r.Previous = append(r.Previous, Share{Cluster: was.Cluster, Replicas: was.Count})
	}
	d := Decide(r)
	if d.Unplaced > 0 {
		t.Fatalf("%d replicas have no cluster", d.Unplaced)
	}
	return Ordinals(d.Shares(), before)
}

func parseRanges(text string) (ranges []Range, total int32) {
	for _, s := range strings.Fields(text) {
		if _, err := fmt.Sscanf(s, "=%d", &total); err == nil {
			continue
		}
		var from, to int32
		if n, _ := fmt.Sscanf(s[1:], "%d-%d", &from, &to); n < 2 {
			to = from - 1
		}
		ranges = append(ranges, Range{s[:1], from, to - from + 1})
	}
	return ranges, total
}

func formatRanges(ranges []Range) string {
	var out []string
	for _, r := range ranges {
		if r.Count == 0 {
			out = append(out, fmt.Sprintf("%s%d-none", r.Cluster, r.Start))
			continue
		}
		out = append(out, fmt.Sprintf("%s%d-%d", r.Cluster, r.Start, r.Start+r.Count-1))
	}
	return strings.Join(out, " ")
}

// TestViewsAreBounded: there may be as many policies as clusters.
func TestViewsAreBounded(t *testing.T) {
	f := NewFleet([]Cluster{{Name: "east"}, {Name: "west"}})
	for range 3 * mostViews {
		p := noPolicy()
		if v := f.view(p); len(v.clusters) != 2 || f.view(p) != v {
			t.Fatal("a new view is not cached")
		}
	}
	if len(f.views) != mostViews {
		t.Errorf("%d views are cached", len(f.views))
	}
}

// TestClustersThatHaveNotJoined: names in a policy that belong to no cluster are probably mistakes. They are
// mentioned, wherever the policy has them, and change nothing else.
func TestClustersThatHaveNotJoined(t *testing.T) {
	spec := &v1alpha1.PlacementSpec{
		Clusters:  &v1alpha1.ClusterSelector{Names: []string{"east", "wset"}},
		Affinity:  []v1alpha1.ClusterPreference{{Weight: 1, Clusters: v1alpha1.ClusterSelector{Names: []string{"nroth"}}}},
		Overrides: []v1alpha1.OverridePolicy{{Clusters: &v1alpha1.ClusterSelector{Names: []string{"east", "wset"}}}},
	}
	policy, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	fleet := NewFleet([]Cluster{{Name: "east", Ready: true}, {Name: "west", Ready: true}})
	out := Decide(Request{Fleet: fleet, Object: Object{Kind: "ConfigMap"}, Policy: policy})
	if !out.Scheduled || out.Message != "on east; the policy also names clusters that have not joined: nroth, wset" {
		t.Errorf("%+v", out)
	}
}
