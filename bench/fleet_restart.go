package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// again kills the server and starts another on its data, as after a crash.
func (m *mass) again(profile string) func(context.Context, *fleetRun) error {
	return func(ctx context.Context, run *fleetRun) error {
		if m.server != nil {
			m.server.Kill()
		}
		m.hurry = false
		if err := within(ctx, "watches have ended", func(ctx context.Context) (int, int, error) {
			s, err := m.stats(ctx)
			return m.Members - s.Watched, m.Members, err
		}); err != nil {
			return err
		}
		began := time.Now()
		if err := m.startServer(ctx); err != nil {
			return err
		}
		run.AgainReady = time.Since(began).Seconds()
		defer m.profiling(ctx, profile)()
		if err := within(ctx, "members are watched again", func(ctx context.Context) (int, int, error) {
			s, err := m.stats(ctx)
			return s.Watched, min(m.Members, m.Objects), err
		}); err != nil {
			return err
		}
		run.AgainWatched = time.Since(began).Seconds()
		if err := m.works(ctx); err != nil {
			return err
		}
		run.AgainComplete = time.Since(began).Seconds()
		used, err := processTime(m.server.PID())
		if err != nil {
			return err
		}
		run.AgainUsed = used.Seconds()
		all, err := requestsOf(ctx, m.server)
		run.AgainWrites = all.writes()
		return err
	}
}

// works returns when a new Deployment is ready in the last member.
func (m *mass) works(ctx context.Context) error {
	from, err := m.site()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	t := &travel{name: "new", journal: (&nextWrite{}).journal(1)}
	var synced sync.WaitGroup
	synced.Add(1)
	ended := make(chan error, 1)
	go func() { ended <- from.follow(ctx, t, newSightings(1, 1), 1, sync.OnceFunc(synced.Done)) }()
	synced.Wait()
	if err := m.make(ctx, from, t.name, 0, m.Members-1); err != nil {
		return err
	}
	return <-ended
}

// profiling keeps one profile after another of a server that starts, until the function
// that it returns is called.
func (m *mass) profiling(ctx context.Context, dir string) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for i := 1; dir != "" && ctx.Err() == nil; i++ {
			done := profileTo(ctx, m.server, dir, fmt.Sprintf("start-%02d", i), longestProfile)
			if err := done(); err != nil && ctx.Err() == nil {
				progress(fmt.Sprintf("no profile of the start: %v", err))
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// writes leaves out what only reads.
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
