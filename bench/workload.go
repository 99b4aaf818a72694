package main

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/client/v3/kubernetes"
)

// workload is a unit of work that is run on every system in turn.
type workload struct {
	Kind    string // writes, create, list or watch
	Clients int
	Count   int
	// Times is the number of repetitions of a list.
	Times int
	// Prefix of the keys, unique to every run, so that runs do not see each other's keys.
	Prefix string

	// watcher is the connection for the watch; nil means the first connection that writes.
	watcher *kubernetes.Client
	// before and after are called around the measurement.
	before, after func() error
}

// run runs the workload on a store, over the given connections.
func (w workload) run(ctx context.Context, conns []*kubernetes.Client) ([]measurement, error) {
	l := &load{conns: conns, watcher: w.watcher, prefix: w.Prefix}
	if l.watcher == nil {
		l.watcher = conns[0]
	}
	if w.before != nil {
		if err := w.before(); err != nil {
			return nil, err
		}
	}
	out, err := w.measure(ctx, l)
	if err == nil && w.after != nil {
		err = w.after()
	}
	return out, err
}

func (w workload) measure(ctx context.Context, l *load) ([]measurement, error) {
	switch w.Kind {
	case "writes":
		return l.writes(ctx, w.Clients, w.Count, "create", "update", "get")
	case "create":
		return l.writes(ctx, w.Clients, w.Count, "create")
	case "list":
		m, err := l.list(ctx, w.Count, w.Times)
		return []measurement{m}, err
	case "watch":
		m, err := l.watch(ctx, w.Clients, w.Count)
		return []measurement{m}, err
	default:
		return nil, fmt.Errorf("unknown workload %q", w.Kind)
	}
}

// plan returns the workloads to measure, sized so that a phase takes seconds on a small
// machine.
func plan(clients []int, listKeys int, scale float64) []workload {
	sized := func(n int) int { return max(100, int(float64(n)*scale)) }
	var out []workload
	for _, n := range clients {
		count := 40_000
		if n == 1 {
			count = 2_000
		}
		out = append(out, workload{Kind: "writes", Clients: n, Count: sized(count)})
		out = append(out, workload{Kind: "watch", Clients: n, Count: sized(count / 2)})
	}
	return append(out, workload{Kind: "list", Clients: 1, Count: sized(listKeys), Times: 7})
}
