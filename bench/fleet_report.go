package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// writeDeliveries prints medians over the rounds, and the largest of the maximums. Ratios
// are relative to a cluster that is used directly.
func writeDeliveries(w io.Writer, all []delivery) {
	var order []string
	rounds := map[string][]delivery{}
	for _, j := range all {
		if rounds[j.Path] == nil {
			order = append(order, j.Path)
		}
		rounds[j.Path] = append(rounds[j.Path], j)
	}
	of := func(path string, f func(delivery) float64) float64 {
		var v []float64
		for _, j := range rounds[path] {
			v = append(v, f(j))
		}
		return median(v)
	}
	most := func(path string, f func(delivery) float64) float64 {
		out := 0.0
		for _, j := range rounds[path] {
			out = max(out, f(j))
		}
		return out
	}
	readyP50, readyP99 := func(j delivery) float64 { return j.ReadyP50 }, func(j delivery) float64 { return j.ReadyP99 }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "Deployments\tacknowledged p50\tp99\tin the member p50\tp99\tmax\tready there p50\tp99\tready in the status p50\tp99\tmax\trelative to a cluster: p50\tp99\tCPU ms each: Atoll\tmembers\tCPUs\tothers'\tstolen\t")
	for _, path := range order {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t\n", path,
			of(path, func(j delivery) float64 { return j.AckP50 }), of(path, func(j delivery) float64 { return j.AckP99 }),
			of(path, func(j delivery) float64 { return j.SeenP50 }), of(path, func(j delivery) float64 { return j.SeenP99 }),
			most(path, func(j delivery) float64 { return j.SeenMax }),
			of(path, func(j delivery) float64 { return j.RanP50 }), of(path, func(j delivery) float64 { return j.RanP99 }),
			of(path, readyP50), of(path, readyP99), most(path, func(j delivery) float64 { return j.ReadyMax }),
			of(path, readyP50)/of(directly, readyP50), of(path, readyP99)/of(directly, readyP99),
			of(path, func(j delivery) float64 { return j.AtollMillis }), of(path, func(j delivery) float64 { return j.MembersMillis }),
			of(path, func(j delivery) float64 { return j.CPUs }), of(path, func(j delivery) float64 { return j.Others }), of(path, func(j delivery) float64 { return j.Stolen }))
	}
	t.Flush()
	for _, path := range order {
		if path == directly {
			continue
		}
		fmt.Fprintf(w, "\nRequests to Atoll per Deployment, %s:\n", path)
		last := rounds[path][len(rounds[path])-1].Requests
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, what := range slices.SortedFunc(maps.Keys(last), func(a, b string) int { return compareRequests(last, a, b) }) {
			fmt.Fprintf(t, "  %.2f\t%s\n", last[what], what)
		}
		t.Flush()
	}
}

// compareRequests orders requests by their number, the most first.
func compareRequests(r requests, a, b string) int {
	switch {
	case r[a] > r[b]:
		return -1
	case r[a] < r[b]:
		return 1
	case a < b:
		return -1
	}
	return 1
}

func writeFleet(w io.Writer, f fleetRun) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tRSS MiB\theap MiB\tgoroutines\tCPUs at rest\trequests /s\tto members /s\t")
	for _, row := range []struct {
		title string
		atRest
	}{{"no members", f.Empty}, {"members, nothing bound", f.Joined}, {"members, all bound", f.Bound}, {"after a restart", f.Restarted}} {
		if row.RSSMiB == 0 {
			continue // not measured
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.3f\t%.1f\t%.1f\t\n", row.title, row.RSSMiB, row.HeapMiB, row.Goroutines, row.CPUs, row.Requests, row.Asked)
	}
	t.Flush()
	fmt.Fprintln(w)
	if f.FillSeconds > 0 {
		fmt.Fprintf(w, "joined in %.0f s; filled in %.0f s (%.0f Deployments/s, %.1f ms of Atoll's CPU each); connections to members: %d\n",
			f.JoinSeconds, f.FillSeconds, float64(f.Objects)/f.FillSeconds, f.FillMillis, f.Connections)
	}
	fmt.Fprintf(w, "restarted server: answers after %.1f s, watches all members again after %.1f s, has a new Deployment ready in the last member after %.1f s and %.0f s of CPU time\n",
		f.RestartReady, f.RestartWatched, f.RestartComplete, f.RestartCPU)
	if len(f.RestartWrites) == 0 {
		return
	}
	fmt.Fprintln(w, "\nWrite requests until then:")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, what := range slices.SortedFunc(maps.Keys(f.RestartWrites), func(a, b string) int { return compareRequests(f.RestartWrites, a, b) }) {
		fmt.Fprintf(t, "  %.0f\t%s\n", f.RestartWrites[what], what)
	}
	t.Flush()
}
