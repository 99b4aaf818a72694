package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// writeDelays prints medians over the rounds, and the largest of the maximums, in the order
// of the first measurements. Ratios are relative to notes local to a cluster.
func writeDelays(w io.Writer, all []delay) {
	type line struct{ path, watcher string }
	var order []line
	rounds := map[line][]delay{}
	for _, d := range all {
		l := line{d.Path, d.Watcher}
		if rounds[l] == nil {
			order = append(order, l)
		}
		rounds[l] = append(rounds[l], d)
	}
	of := func(l line, f func(delay) float64) float64 {
		var v []float64
		for _, d := range rounds[l] {
			v = append(v, f(d))
		}
		return median(v)
	}
	p50, p99 := func(d delay) float64 { return d.P50 }, func(d delay) float64 { return d.P99 }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "notes\twritten in\twatched in\tp50\tp99\tmax\tafter acknowledged p50\tp99\twrite p50\tp99\trelative to a cluster: p50\tp99\tCPUs\tothers'\tstolen\tresumed\t")
	var own line
	for _, l := range order {
		if l.path == withinCluster {
			own = l
		}
	}
	for _, l := range order {
		longest, resumed := 0.0, 0
		for _, d := range rounds[l] {
			longest = max(longest, d.Max)
			resumed += d.Resumed
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t\n", l.path, rounds[l][0].Writer, l.watcher,
			of(l, p50), of(l, p99), longest,
			of(l, func(d delay) float64 { return d.AfterP50 }), of(l, func(d delay) float64 { return d.AfterP99 }),
			of(l, func(d delay) float64 { return d.WriteP50 }), of(l, func(d delay) float64 { return d.WriteP99 }),
			of(l, p50)/of(own, p50), of(l, p99)/of(own, p99),
			of(l, func(d delay) float64 { return d.CPUs }),
			of(l, func(d delay) float64 { return d.Others }), of(l, func(d delay) float64 { return d.Stolen }), resumed)
	}
	t.Flush()
}

func writeCrowds(w io.Writer, all []crowdRun) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "servers\tmembers\twatchers\tsynced s\tevents /s\tp50\tp99\tmax ms\twrite p50\tp99 ms\tCPUs: quiet\twrites\tPostgreSQL\tdriver\tCPU ms per write\tµs per event\tMiB before\tafter\tresumed\trefused\tothers' CPUs\tstolen\t")
	for _, c := range all {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.1f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.0f\t%d\t%d\t%.2f\t%.2f\t\n",
			c.Servers, c.Members, c.Members*c.Each, c.SyncSeconds, float64(c.Events)/float64(c.Writes)*crowdRate,
			c.P50, c.P99, c.Max, c.WriteP50, c.WriteP99, c.QuietCPU, c.ServersCPU, c.PostgresCPU, c.DriverCPU,
			c.WriteMillis, c.EventMicros, c.BeforeMiB, c.MemoryMiB, c.Resumed, c.Refused, c.Others, c.Stolen)
	}
	t.Flush()
}
