package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/atoll-dev/atoll/playground/postgres"
)

// costClients is the number of clients while costs are measured.
const costClients = 256

// cost is the cost of a create in a system that stores in PostgreSQL.
type cost struct {
	System string `json:"system"`
	// CPU time per 1,000 creates: of the system's own processes (with the clients, if they are in
	// its process), and of PostgreSQL.
	SystemMillis   float64 `json:"system_cpu_ms_per_1000"`
	PostgresMillis float64 `json:"postgres_cpu_ms_per_1000"`
	// Commits, syncs of PostgreSQL's WAL, and bytes written to the WAL, per create.
	Commits  float64 `json:"commits"`
	Syncs    float64 `json:"syncs"`
	LogBytes float64 `json:"log_bytes"`
	// Bytes that an object takes in the database, including indexes.
	Bytes float64 `json:"bytes"`
}

// costCounters is a reading of PostgreSQL's counters and of CPU times.
type costCounters struct {
	commits, syncs, logBytes, size float64
	system, postgres               time.Duration
}

func measureCost(ctx context.Context, db *postgres.Server, s onPostgres, count int) (c cost, err error) {
	w := workload{Kind: "create", Clients: costClients, Count: count, Prefix: "/registry/cost/"}
	settleDisk()
	var before, after costCounters
	w.before = func() error { before, err = readCosts(ctx, db, s); return err }
	w.after = func() error { after, err = readCosts(ctx, db, s); return err }
	if _, err := s.run(ctx, w); err != nil {
		return c, err
	}
	n := float64(count)
	return cost{
		System:         s.name(),
		SystemMillis:   float64((after.system - before.system).Milliseconds()) / n * 1000,
		PostgresMillis: float64((after.postgres - before.postgres).Milliseconds()) / n * 1000,
		Commits:        (after.commits - before.commits) / n,
		Syncs:          (after.syncs - before.syncs) / n,
		LogBytes:       (after.logBytes - before.logBytes) / n,
		Bytes:          (after.size - before.size) / n,
	}, nil
}

// statsDelay is the time after which an idle PostgreSQL session has published its
// counters.
const statsDelay = 11 * time.Second

func readCosts(ctx context.Context, db *postgres.Server, s onPostgres) (out costCounters, err error) {
	for _, pid := range s.pids() {
		t, err := treeTime(pid)
		if err != nil {
			return out, err
		}
		out.system += t
	}
	if out.postgres, err = treeTime(db.PID()); err != nil {
		return out, err
	}
	select {
	case <-time.After(statsDelay):
	case <-ctx.Done():
		return out, ctx.Err()
	}
	row, err := db.Exec(ctx, fmt.Sprintf(`SELECT d.xact_commit, w.wal_sync, w.wal_bytes, pg_database_size(d.datname)
		FROM pg_stat_database d, pg_stat_wal w WHERE d.datname = '%s'`, s.database()))
	if err != nil {
		return out, err
	}
	fields := strings.Split(row, "|")
	if len(fields) != 4 {
		return out, fmt.Errorf("PostgreSQL's counters: %q", row)
	}
	for i, into := range []*float64{&out.commits, &out.syncs, &out.logBytes, &out.size} {
		if *into, err = strconv.ParseFloat(fields[i], 64); err != nil {
			return out, fmt.Errorf("PostgreSQL's counters: %q: %w", row, err)
		}
	}
	return out, nil
}

// treeTime returns the CPU time of a process and its descendants, including those
// that have ended and been waited for.
func treeTime(root int) (time.Duration, error) {
	sum, err := ticksOf(root, 4)
	if err != nil {
		return 0, err
	}
	for _, pid := range descendants(root) {
		if t, err := ticksOf(pid, 4); err == nil {
			sum += t
		}
	}
	return sum, nil
}

// descendants returns the PIDs of all descendants of a process.
func descendants(root int) []int {
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil // the pattern is valid
	}
	for _, stat := range stats {
		raw, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(raw), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			continue
		}
		pid, err1 := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var out []int
	for next := children[root]; len(next) > 0; {
		pid := next[0]
		out = append(out, pid)
		next = append(next[1:], children[pid]...)
	}
	return out
}

func writeCosts(w io.Writer, all []cost) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "system\tits CPU ms per 1000\tPostgreSQL's\tcommits\tlog syncs\tlog bytes\tbytes kept\t")
	for _, c := range all {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.3f\t%.3f\t%.0f\t%.0f\t\n", c.System, c.SystemMillis, c.PostgresMillis, c.Commits, c.Syncs, c.LogBytes, c.Bytes)
	}
	t.Flush()
}
