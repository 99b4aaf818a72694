package transition

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// exporting is an object that goes from east to west, with its replicas available in both, and an exported Service.
func exporting(rule Rule, whole bool) Input {
	share := func(cluster string, revision int32) Share {
		s := Share{Cluster: cluster, Revision: revision, Whole: whole}
		if !whole {
			s.Replicas = 2
		}
		return s
	}
	report := func(revision int32) Report {
		return Report{Present: true, Current: true, Settled: true, Healthy: true, Available: 2, Running: 2, Revision: revision, Exported: true}
	}
	in := Input{Rule: rule, Now: []Share{share("east", 1), share("west", 2)}, Goal: []Share{share("west", 0)}, From: []Share{share("east", 1)},
		Wanted: 2, Limits: LimitsFor(2), Underway: true, At: time.Unix(1000, 0), Progress: time.Unix(990, 0),
		Reports: map[string]Report{"east": report(1), "west": report(2)}}
	return in
}

// then is the input of the step after one.
func then(in Input, out Output, after time.Duration, report func(*Report)) Input {
	in.Now, in.At, in.Phase, in.Since = out.Next, in.At.Add(after), out.Phase, in.At
	if report != nil {
		r := in.Reports["east"]
		report(&r)
		in.Reports = map[string]Report{"east": r, "west": in.Reports["west"]}
	}
	return in
}

// TestDrain: replicas that are to leave are announced. They leave when their cluster has taken them out of the endpoints of
// exported Services, and the clusters that import those have applied that.
func TestDrain(t *testing.T) {
	for name, in := range map[string]Input{"replicas": exporting(Overlapping, false), "copies": exporting(Overlapping, true), "autoscaled": exporting(Autoscaled, false)} {
		t.Run(name, func(t *testing.T) {
			in.Limits.Soak = time.Second
			in.Phase, in.Since = v1alpha1.PhaseSoaking, in.At.Add(-time.Minute)
			out := Step(in)
			if out.Done || len(out.Next) != 2 || out.Next[0].Drain != (Drain{Revision: 1, Since: in.At}) || out.Next[0].Revision != 1 || out.Phase != v1alpha1.PhaseShrinking {
				t.Fatalf("the first step is %+v", out)
			}
			in = then(in, out, time.Second, nil)
			out = Step(in)
			const own = "cluster east to take the replicas that leave it out of the endpoints of exported Services: not permitted"
			if text(out.Next) != text(in.Now) || out.WaitingFor+": not permitted" != own || !out.Recheck.After(in.At) || out.Recheck.After(in.At.Add(DrainTimeout)) {
				t.Fatalf("before the report: %+v", out)
			}
			if out = Step(then(in, out, 0, func(r *Report) { r.Drain.Message = "not permitted" })); out.WaitingFor != own {
				t.Errorf("waits for %q", out.WaitingFor)
			}
			in = then(in, out, time.Second, func(r *Report) {
				r.Drain = DrainReport{Revision: 1, Importers: []string{"a", "b", "c", "d", "e", "north"}}
			})
			out = Step(in)
			if text(out.Next) != text(in.Now) || out.WaitingFor != "clusters a, b, c, d, e and 1 more to apply the endpoints of exported Services without the replicas that leave east" {
				t.Errorf("before the importers: %+v", out)
			}
			if out := Step(then(in, out, DrainTimeout, nil)); !out.Done {
				t.Errorf("it waits for longer than %s: %+v", DrainTimeout, out)
			}
			out = Step(then(in, out, time.Second, func(r *Report) { r.Drain.Importers = nil }))
			if !out.Done || text(out.Next) != text(in.Goal) {
				t.Errorf("the last step is %+v", out)
			}
		})
	}
}

// TestDrainOrdinal: of numbered replicas, the highest ordinal is announced.
func TestDrainOrdinal(t *testing.T) {
	in := exporting(Numbered, false)
	in.Now = []Share{{Cluster: "east", Replicas: 2, Revision: 1}}
	in.Goal = []Share{{Cluster: "east", Replicas: 1}, {Cluster: "west", Replicas: 1, Start: 1}}
	in.Reports = map[string]Report{"east": in.Reports["east"]}
	out := Step(in)
	if len(out.Next) != 1 || out.Next[0].Replicas != 2 || out.Next[0].Drain.Replicas != 1 || out.Next[0].Drain.Start != 0 {
		t.Fatalf("the first step is %+v", out)
	}
	if out = Step(then(in, out, time.Second, func(r *Report) { r.Drain.Revision = 1 })); out.Next[0].Replicas != 1 || out.Next[0].Drain.Revision != 0 {
		t.Errorf("the second step is %+v", out)
	}
}

// TestDrainCalledOff: the announcement ends when the replicas stay, or a user pauses the transition. The next one has another
// revision.
func TestDrainCalledOff(t *testing.T) {
	in := exporting(Overlapping, false)
	announced := then(in, Step(in), time.Second, nil)
	for name, change := range map[string]func(*Input){
		"they stay": func(in *Input) { in.Goal = []Share{{Cluster: "east", Replicas: 2}} },
		"paused":    func(in *Input) { in.Limits.Paused = true },
		"unhealthy": func(in *Input) {
			in.Reports["west"] = Report{Present: true, Current: true, Settled: true, Revision: 2, Running: 2}
		},
		"unexported": func(in *Input) { r := in.Reports["east"]; r.Exported = false; in.Reports["east"] = r },
		"lost":       func(in *Input) { r := in.Reports["east"]; r.Unreachable, r.Lost = true, true; in.Reports["east"] = r },
	} {
		in := then(announced, Output{Next: announced.Now}, 0, func(*Report) {})
		change(&in)
		if out := Step(in); strings.HasPrefix(text(out.Next), "east 2 (") {
			t.Errorf("%s: %s", name, text(out.Next))
		}
	}
	back := then(announced, Output{Next: in.Now}, time.Second, func(r *Report) { r.Drain.Revision = 1 })
	if out := Step(back); out.Next[0].Drain.Revision != 2 {
		t.Errorf("announced again: %+v", out.Next)
	}
}

// TestDrainWithoutExport: without an exported Service nothing is announced, and a preview announces nothing.
func TestDrainWithoutExport(t *testing.T) {
	in := exporting(Overlapping, false)
	for _, step := range Steps(in) {
		if strings.Contains(text(step.Next), "stay") {
			t.Errorf("the preview has %s", text(step.Next))
		}
	}
	r := in.Reports["east"]
	r.Exported = false
	in.Reports["east"] = r
	if out := Step(in); !out.Done {
		t.Errorf("%+v", out)
	}
}
