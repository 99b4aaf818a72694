package placement

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestFindDegraded: the reports that make an object leave a cluster, and the notes about the others.
func TestFindDegraded(t *testing.T) {
	now := start.Add(time.Hour)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	rule := DegradedRule{After: 5 * time.Minute, FirstHealth: 10 * time.Minute}
	well := func(cluster string) HealthReport {
		return HealthReport{Cluster: cluster, Health: v1alpha1.Healthy, Current: true}
	}
	ill := func(cluster string, since time.Duration) HealthReport {
		return HealthReport{Cluster: cluster, Health: v1alpha1.Progressing, Current: true, Since: ago(since), WasHealthy: true}
	}
	never := func(cluster string, since time.Duration) HealthReport {
		r := ill(cluster, since)
		r.WasHealthy = false
		return r
	}
	with := func(r HealthReport, edit func(*HealthReport)) HealthReport { edit(&r); return r }
	degraded := func(r HealthReport) HealthReport {
		return with(r, func(r *HealthReport) { r.Health = v1alpha1.Degraded })
	}
	clusters := []Cluster{{Name: "east", Ready: true, Since: start}, {Name: "west", Ready: true, Since: start}, {Name: "down", Since: start},
		{Name: "back", Ready: true, Since: ago(2 * time.Minute)}, {Name: "going", Ready: true, Leaving: true}}
	for name, tt := range map[string]struct {
		reports []HealthReport
		failed  []FailedCluster
		leaves  string // clusters
		held    string // part of the text
		note    string // part of the notes
		recheck time.Duration
	}{
		"all is well":         {reports: []HealthReport{well("east"), well("west")}},
		"for too long in one": {reports: []HealthReport{ill("east", 6*time.Minute), well("west")}, leaves: "east"},
		"not for long":        {reports: []HealthReport{ill("east", 4*time.Minute), well("west")}, note: "in east since 2026-01-01T00:56:00Z: unless that changes, it leaves the cluster at 2026-01-01T01:01:00Z", recheck: time.Minute},
		"before it is Healthy for the first time":    {reports: []HealthReport{never("east", 6*time.Minute), well("west")}, note: "leaves the cluster at 2026-01-01T01:04:00Z", recheck: 4 * time.Minute},
		"its first health takes too long":            {reports: []HealthReport{never("east", 10*time.Minute), well("west")}, leaves: "east"},
		"its own deadline passed":                    {reports: []HealthReport{degraded(never("east", 5*time.Minute)), well("west")}, leaves: "east"},
		"the report is about an earlier version":     {reports: []HealthReport{with(ill("east", time.Hour), func(r *HealthReport) { r.Current = false }), well("west")}},
		"its health is not known":                    {reports: []HealthReport{with(ill("east", time.Hour), func(r *HealthReport) { r.Health = v1alpha1.Unknown }), well("west")}},
		"a syncer that reports no time":              {reports: []HealthReport{with(ill("east", 0), func(r *HealthReport) { r.Since = time.Time{} }), well("west")}},
		"the cluster is not Ready":                   {reports: []HealthReport{ill("down", time.Hour), well("west")}, note: "in down since 2026-01-01T00:00:00Z, which does not count while the cluster is not Ready"},
		"the cluster was not Ready until lately":     {reports: []HealthReport{ill("back", time.Hour), well("west")}, note: "leaves the cluster at 2026-01-01T01:03:00Z", recheck: 3 * time.Minute},
		"some pods have no node":                     {reports: []HealthReport{with(ill("east", time.Hour), func(r *HealthReport) { r.Pending = 2 }), well("west")}, note: "in east since 2026-01-01T00:00:00Z, which does not count while 2 of its pods have no node there"},
		"the cluster leaves the fleet anyway":        {reports: []HealthReport{ill("going", time.Hour), well("west")}},
		"in all of its clusters":                     {reports: []HealthReport{ill("east", 6*time.Minute), ill("west", time.Minute)}, held: "Healthy in none of its clusters (east, west)", note: "in west", recheck: 4 * time.Minute},
		"in all that can say it":                     {reports: []HealthReport{ill("east", 6*time.Minute), well("down")}, leaves: "east"},
		"in its only cluster":                        {reports: []HealthReport{ill("east", 6*time.Minute)}, leaves: "east"},
		"in its only cluster, never Healthy":         {reports: []HealthReport{never("east", time.Hour)}, leaves: "east"},
		"it failed in another one lately":            {reports: []HealthReport{ill("east", 6*time.Minute)}, failed: []FailedCluster{{"west", now.Add(3 * time.Minute)}}, held: "failed in west lately, so it stays until 2026-01-01T01:03:00Z", recheck: 3 * time.Minute},
		"it failed in another one, a while ago":      {reports: []HealthReport{ill("east", 6*time.Minute)}, failed: []FailedCluster{{"west", now}}, leaves: "east"},
		"it failed here before":                      {reports: []HealthReport{ill("east", 6*time.Minute)}, failed: []FailedCluster{{"east", now.Add(time.Minute)}}, leaves: "east"},
		"it never was Healthy in two":                {reports: []HealthReport{never("east", time.Hour)}, failed: []FailedCluster{{"west", now.Add(-time.Minute)}}, held: "the fault is probably the object's own"},
		"a user aborted the other one":               {reports: []HealthReport{ill("east", 6*time.Minute)}, failed: []FailedCluster{{Cluster: "west"}}, held: "failed in west"},
		"it failed in another one and runs in third": {reports: []HealthReport{ill("east", 6*time.Minute), well("west")}, failed: []FailedCluster{{"back", now.Add(time.Minute)}}, leaves: "east"},
	} {
		t.Run(name, func(t *testing.T) {
			got := FindDegraded(NewFleet(clusters), tt.reports, tt.failed, rule, now)
			if leaves := strings.Join(slices.Sorted(maps.Keys(got.Leaves)), ","); leaves != tt.leaves {
				t.Errorf("it leaves %q", leaves)
			}
			if !strings.Contains(got.Held, tt.held) || (got.Held == "") != (tt.held == "") {
				t.Errorf("it is held because %q", got.Held)
			}
			if notes := strings.Join(got.Notes, "; "); !strings.Contains(notes, tt.note) || (notes == "") != (tt.note == "") {
				t.Errorf("the notes are %q", notes)
			}
			var recheck time.Duration
			if !got.Recheck.IsZero() {
				recheck = got.Recheck.Sub(now)
			}
			if recheck != tt.recheck {
				t.Errorf("it is examined again in %s", recheck)
			}
		})
	}
}

// TestApplicationFailoverIsValidated: a policy that would move objects for a restart of their pods is refused.
func TestApplicationFailoverIsValidated(t *testing.T) {
	spec := v1alpha1.PlacementSpec{ApplicationFailover: &v1alpha1.ApplicationFailoverPolicy{}}
	if _, err := Compile(&spec); err == nil || !strings.Contains(err.Error(), "spec.applicationFailover.after is 0s: set it to 1m0s or longer") {
		t.Errorf("error %v", err)
	}
	spec.ApplicationFailover.After.Duration = time.Minute
	p, err := Compile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	if after, leaves := p.ApplicationFailover(); !leaves || after != time.Minute {
		t.Errorf("objects leave %v after %s", leaves, after)
	}
	if _, leaves := policy(t, `{}`).ApplicationFailover(); leaves {
		t.Error("objects leave although the policy does not say so")
	}
	if policy(t, `{applicationFailover: {after: 5m}}`).HomeInputs() != policy(t, `{}`).HomeInputs() {
		t.Error("the setting changes where objects are at home")
	}
}
