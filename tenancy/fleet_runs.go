package tenancy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// firstFleetRetry and lastFleetRetry are how long a fleet waits that could not run.
	firstFleetRetry, lastFleetRetry = time.Second, time.Minute
	// fleetInterval is how often the runner looks at the marks, besides their changes.
	fleetInterval = 10 * time.Second
)

// FleetConfig configures RunFleets.
type FleetConfig struct {
	// Marks returns the marks of the workspaces that have Clusters or Providers, by their paths, and Changed receives when they may have changed.
	Marks   func() map[string]string
	Changed <-chan struct{}
	// Max is how many fleets run at the same time. Those of other workspaces wait until one of them has none any more.
	Max int
	// Run runs the fleet of the workspace with that path until ctx ends. It may be repeated after an error.
	Run func(ctx context.Context, path string) error
	// Waits is run for a workspace that begins to wait, or waits with another mark. Its context ends when the workspace does not wait any more.
	Waits func(ctx context.Context, path string)
	Clock clock.WithTicker
	Log   *slog.Logger
}

// RunFleets runs the fleets of workspaces that have Clusters or Providers, until ctx ends. It runs on one server.
func RunFleets(ctx context.Context, cfg FleetConfig) error {
	var running sync.WaitGroup
	defer running.Wait()
	ended := make(chan string)
	stops := map[string]context.CancelFunc{}
	waiting := fleetWaits{run: func(ctx context.Context, path string) { running.Go(func() { cfg.Waits(ctx, path) }) }, of: map[string]fleetWait{}}
	defer waiting.update(ctx, nil, nil) // before running.Wait
	ticker := cfg.Clock.NewTicker(fleetInterval)
	defer ticker.Stop()
	for {
		marks := cfg.Marks()
		for path, stop := range stops {
			if marks[path] == "" {
				stop() // it counts until it has ended
			}
		}
		next := chooseFleets(marks, stops, cfg.Max)
		waiting.update(ctx, next.wait, marks)
		for _, path := range next.start {
			in, stop := context.WithCancel(ctx)
			stops[path] = stop
			running.Go(func() {
				cfg.keepRunning(in, path)
				select {
				case ended <- path:
				case <-ctx.Done():
				}
			})
		}
		select {
		case <-ctx.Done():
			for _, stop := range stops {
				stop()
			}
			return nil
		case path := <-ended:
			stops[path]()
			delete(stops, path)
		case <-cfg.Changed:
		case <-ticker.C():
		}
	}
}

// fleetChoice is which fleets begin to run, and which have to wait.
type fleetChoice struct{ start, wait []string }

// chooseFleets decides which of the marked workspaces get the places that are free: those that were marked first.
func chooseFleets[V any](marks map[string]string, running map[string]V, places int) (out fleetChoice) {
	free := places - len(running)
	inTurn := slices.SortedFunc(maps.Keys(marks), func(a, b string) int {
		return cmp.Or(cmp.Compare(sinceOf(marks[a]), sinceOf(marks[b])), cmp.Compare(a, b))
	})
	for _, path := range inTurn {
		_, runs := running[path]
		switch {
		case runs:
		case free > 0:
			out.start, free = append(out.start, path), free-1
		default:
			out.wait = append(out.wait, path)
		}
	}
	return out
}

// fleetWaits are the workspaces that wait for a place, by their paths.
type fleetWaits struct {
	run func(ctx context.Context, path string)
	of  map[string]fleetWait
}

type fleetWait struct {
	mark string
	stop context.CancelFunc
}

// update ends the waits that are over, or have another mark, and begins those that are new.
func (w *fleetWaits) update(ctx context.Context, paths []string, marks map[string]string) {
	for path, one := range w.of {
		if !slices.Contains(paths, path) || one.mark != marks[path] {
			one.stop()
			delete(w.of, path)
		}
	}
	for _, path := range paths {
		if _, waits := w.of[path]; !waits {
			in, stop := context.WithCancel(ctx)
			w.of[path] = fleetWait{marks[path], stop}
			w.run(in, path)
		}
	}
}

// keepRunning runs a fleet again after errors, until ctx ends.
func (cfg *FleetConfig) keepRunning(ctx context.Context, path string) {
	for retry := firstFleetRetry; ctx.Err() == nil; retry = min(2*retry, lastFleetRetry) {
		began := cfg.Clock.Now()
		err := cfg.Run(ctx, path)
		if ctx.Err() != nil {
			return
		}
		if cfg.Clock.Since(began) > lastFleetRetry {
			retry = firstFleetRetry
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			cfg.Log.Warn("the fleet of a workspace failed; retrying", "workspace", path, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-cfg.Clock.After(retry):
		}
	}
}

// FleetIdle decides when a mark may be removed.
type FleetIdle struct {
	// Settle is how long a mark must have been seen, without any Cluster. It is longer than a request takes.
	Settle time.Duration
	mark   string
	since  time.Time
}

// Observe records the mark of a workspace, and how many Clusters it had afterwards. It reports whether this mark may be removed.
func (f *FleetIdle) Observe(now time.Time, mark string, clusters int64) bool {
	if f.since.IsZero() || mark != f.mark || clusters > 0 {
		f.mark, f.since = mark, now
	}
	return mark != "" && clusters == 0 && now.Sub(f.since) >= f.Settle
}
