package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

// report holds all results of a run.
type report struct {
	Machine machine `json:"machine"`
	// Rounds is the number of rounds that medians are taken over.
	Rounds  int           `json:"rounds"`
	Stores  []measurement `json:"stores,omitempty"`
	Servers []serverRun   `json:"servers,omitempty"`
	// Postgres are stores on PostgreSQL, and Costs their cost per create.
	Postgres []measurement `json:"postgres,omitempty"`
	Costs    []cost        `json:"costs,omitempty"`
	// Scale is the result for a large keyspace.
	Scale []scaleStep `json:"scale,omitempty"`
	// Shared APIs: delays from cluster to cluster, and runs with many members.
	Delays []delay    `json:"shared_delays,omitempty"`
	Crowds []crowdRun `json:"shared_members,omitempty"`
	// Workloads: delays to three clusters and back, and a fleet of many members.
	Deliveries []delivery `json:"fleet_delays,omitempty"`
	Fleet      *fleetRun  `json:"fleet_members,omitempty"`
	// Types are a provider's types, served in two ways.
	Types []typesRun `json:"types,omitempty"`
	// Differential is the differential test of OpenTofu and Atoll.
	Differential *differentialRun `json:"tofu_alike,omitempty"`
	// Infra are growing numbers of resources, planned and applied.
	Infra []infraRun `json:"infra,omitempty"`
	// Workspaces are many workspaces in one server, on each kind of database.
	Workspaces []workspacesRun `json:"workspaces,omitempty"`
}

func (r *report) writeJSON(file string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644)
}

// line holds the medians over the rounds for one operation and number of clients.
type line struct {
	op      string
	clients int
	bySys   map[string]measurement
}

// summarise computes medians, in the order of the first measurements.
func summarise(all []measurement) []line {
	type key struct {
		op      string
		clients int
	}
	var order []key
	rounds := map[key]map[string][]measurement{}
	for _, m := range all {
		k := key{m.Op, m.Clients}
		if rounds[k] == nil {
			rounds[k] = map[string][]measurement{}
			order = append(order, k)
		}
		rounds[k][m.System] = append(rounds[k][m.System], m)
	}
	var out []line
	for _, k := range order {
		l := line{k.op, k.clients, map[string]measurement{}}
		for system, ms := range rounds[k] {
			pick := func(f func(measurement) float64) float64 {
				var v []float64
				for _, m := range ms {
					v = append(v, f(m))
				}
				return median(v)
			}
			l.bySys[system] = measurement{
				Rate: pick(func(m measurement) float64 { return m.Rate }),
				P50:  pick(func(m measurement) float64 { return m.P50 }),
				P99:  pick(func(m measurement) float64 { return m.P99 }),
			}
		}
		out = append(out, l)
	}
	return out
}

// writeStores prints the stores side by side. Rates are operations per second, for lists
// keys per second; p50 and p99 are milliseconds. The ratio of a watch is that of the
// delays, so that more than 1 is better everywhere.
func writeStores(w io.Writer, measured []measurement, systems []string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "operation\tclients\t")
	for _, s := range systems {
		fmt.Fprintf(t, "%s /s\tp50 / p99 ms\t", s)
	}
	for _, s := range systems[1:] {
		fmt.Fprintf(t, "%s : %s\t", s, systems[0])
	}
	fmt.Fprintln(t)
	for _, l := range summarise(measured) {
		fmt.Fprintf(t, "%s\t%d\t", l.op, l.clients)
		for _, s := range systems {
			m := l.bySys[s]
			fmt.Fprintf(t, "%.0f\t%.2f / %.2f\t", m.Rate, m.P50, m.P99)
		}
		first := l.bySys[systems[0]]
		for _, s := range systems[1:] {
			ratio := l.bySys[s].Rate / first.Rate
			if l.op == "watch" {
				ratio = first.P50 / l.bySys[s].P50
			}
			fmt.Fprintf(t, "%.2f\t", ratio)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// writeServers prints whole API servers side by side.
func (r *report) writeServers(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "API server\tcreates /s\tp50 / p99 ms\tCPU ms each\tmemory MiB\tready s\t")
	var order []string
	by := map[string][]serverRun{}
	for _, s := range r.Servers {
		if by[s.System] == nil {
			order = append(order, s.System)
		}
		by[s.System] = append(by[s.System], s)
	}
	medianOf := func(system string, f func(serverRun) float64) float64 {
		var v []float64
		for _, s := range by[system] {
			v = append(v, f(s))
		}
		return median(v)
	}
	rate := func(s serverRun) float64 { return s.Rate }
	cpu := func(s serverRun) float64 { return s.CPUMillis }
	memory := func(s serverRun) float64 { return s.MemoryMiB }
	for _, system := range order {
		fmt.Fprintf(t, "%s\t%.0f\t%.1f / %.1f\t%.2f\t%.0f\t%.1f\t\n", system, medianOf(system, rate),
			medianOf(system, func(s serverRun) float64 { return s.P50 }),
			medianOf(system, func(s serverRun) float64 { return s.P99 }),
			medianOf(system, cpu), medianOf(system, memory),
			medianOf(system, func(s serverRun) float64 { return s.ReadySeconds }))
	}
	t.Flush()
	for _, system := range order[min(1, len(order)):] {
		fmt.Fprintf(w, "%s : %s  rate %.2f, CPU %.2f, memory %.2f\n", system, order[0],
			medianOf(system, rate)/medianOf(order[0], rate), medianOf(system, cpu)/medianOf(order[0], cpu),
			medianOf(system, memory)/medianOf(order[0], memory))
	}
}
