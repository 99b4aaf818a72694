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

	"github.com/atoll-dev/atoll/playground/postgres"
)

// filesSize returns the size of all files of a directory, in bytes.
func filesSize(dir string) (size float64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += float64(info.Size())
		}
		return err
	})
	return size, err
}

func writeWorkspaces(out io.Writer, runs []workspacesRun) error {
	fmt.Fprintf(out, "\nWorkspaces\n\n")
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	line := func(name, goal string, of func(workspacesRun) string) {
		fmt.Fprintf(table, "%s\t%s", name, goal)
		for _, r := range runs {
			fmt.Fprint(table, "\t", of(r))
		}
		fmt.Fprintln(table)
	}
	two := func(a, b float64) string { return fmt.Sprintf("%.1f / %.1f", a, b) }
	line("", "goal", func(r workspacesRun) string { return r.Database })
	line("create to usable, p50 / p99 (ms)", "10 / 50", func(r workspacesRun) string { return two(r.CreateP50, r.CreateP99) })
	line("made per second, 8 clients", "", func(r workspacesRun) string { return fmt.Sprintf("%.0f", r.MadePerSecond) })
	line("asleep: KiB / goroutines", "1 / 0", func(r workspacesRun) string { return two(r.AsleepKiB, r.AsleepGoroutines) })
	line("awake: KiB / goroutines", "100 / ", func(r workspacesRun) string { return two(r.AwakeKiB, r.AwakeGoroutines) })
	line("own definition: KiB / goroutines", "1536 / ", func(r workspacesRun) string { return two(r.CustomKiB, r.CustomGoroutines) })
	line("bound API: KiB / goroutines", "10 / ", func(r workspacesRun) string { return two(r.BoundKiB, r.BoundGoroutines) })
	line("bound API: first create, p50 / p99 (ms)", "", func(r workspacesRun) string { return two(r.BoundP50, r.BoundP99) })
	line("cold get, p50 / p99 (ms)", "5 / 50", func(r workspacesRun) string { return two(r.ColdP50, r.ColdP99) })
	line("all made, some awake: RSS (MiB)", "700", func(r workspacesRun) string {
		return fmt.Sprintf("%.0f (%d, %d awake)", r.RSSMiB, r.Workspaces, r.Used)
	})
	line("empty, on disk (KiB)", "8", func(r workspacesRun) string { return fmt.Sprintf("%.1f", r.DiskKiB) })
	line("creates, p99 alone / flooded (ms)", "3 x", func(r workspacesRun) string { return two(r.QuietP99, r.FloodedP99) })
	line("lines of /metrics, before / after", "equal", func(r workspacesRun) string { return fmt.Sprintf("%d / %d", r.MetricLinesBefore, r.MetricLinesAfter) })
	line("all deleted (s)", "300", func(r workspacesRun) string { return fmt.Sprintf("%.0f", r.DeletedSeconds) })
	return table.Flush()
}

// databaseSize returns the size of a database of PostgreSQL, in bytes.
func databaseSize(ctx context.Context, db *postgres.Server, name string) (float64, error) {
	row, err := db.Exec(ctx, "SELECT pg_database_size('"+name+"')")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(row), 64)
}
