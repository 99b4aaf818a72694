package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// restart kills the server and starts another on its data, as after a crash.
func (m *fleetBench) restart(profile string) func(context.Context, *fleetRun) error {
	return func(ctx context.Context, run *fleetRun) error {
		if m.server != nil {
			m.server.Kill()
		}
		m.fillFaster = false
		if err := waitFor(ctx, "members are no longer watched", func(ctx context.Context) (int, int, error) {
			s, err := m.stats(ctx)
			return m.Members - s.Watched, m.Members, err
		}); err != nil {
			return err
		}
		began := time.Now()
		if err := m.startServer(ctx); err != nil {
			return err
		}
		run.RestartReady = time.Since(began).Seconds()
		defer m.profileStart(ctx, profile)()
		if err := waitFor(ctx, "members are watched again", func(ctx context.Context) (int, int, error) {
			s, err := m.stats(ctx)
			return s.Watched, min(m.Members, m.Objects), err
		}); err != nil {
			return err
		}
		run.RestartWatched = time.Since(began).Seconds()
		if err := m.waitForNewDeployment(ctx); err != nil {
			return err
		}
		run.RestartComplete = time.Since(began).Seconds()
		used, err := processTime(m.server.PID())
		if err != nil {
			return err
		}
		run.RestartCPU = used.Seconds()
		all, err := requestsOf(ctx, m.server)
		run.RestartWrites = all.writes()
		return err
	}
}

// waitForNewDeployment creates a Deployment for the last member and waits until it is ready.
func (m *fleetBench) waitForNewDeployment(ctx context.Context) error {
	from, err := m.deploymentClient()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	t := &routeRun{name: "new", journal: (&writeNumbers{}).journal(1)}
	var synced sync.WaitGroup
	synced.Add(1)
	ended := make(chan error, 1)
	go func() { ended <- from.follow(ctx, t, newObservations(1, 1), 1, sync.OnceFunc(synced.Done)) }()
	synced.Wait()
	if err := m.create(ctx, from, t.name, 0, m.Members-1); err != nil {
		return err
	}
	return <-ended
}

// profileStart writes CPU profiles of a starting server, one after another, until the
// returned function is called.
func (m *fleetBench) profileStart(ctx context.Context, dir string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for i := 1; dir != "" && ctx.Err() == nil; i++ {
			done := profileTo(ctx, m.server, dir, fmt.Sprintf("start-%02d", i), longestProfile)
			if err := done(); err != nil && ctx.Err() == nil {
				progress(fmt.Sprintf("cannot profile the start: %v", err))
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// writes returns the requests that write.
func (r requests) writes() requests {
	out := requests{}
	for what, n := range r {
		verb, _, _ := strings.Cut(what, " ")
		switch verb {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
			out[what] = n
		}
	}
	return out
}
