package server

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/atoll-dev/atoll/infra/plans"
	"github.com/atoll-dev/atoll/infra/providers"
)

// runPlans runs plans, applies and the other work on infrastructure that only one
// server does, once the API is ready.
func (s *Server) runPlans(ctx context.Context) error {
	if !s.awaitAPI(ctx) {
		return nil
	}
	// An apply that resumes before all kinds are served would take their objects for
	// deleted. Meanwhile another server may lead.
	select {
	case <-s.providers.Synced():
	case <-ctx.Done():
		return nil
	}
	p, err := plans.New(plans.Config{
		REST:            s.infraClient(),
		Keyspace:        s.keyspace,
		Decode:          s.api.Decrypt,
		Providers:       s.providers,
		Types:           groupNames{s.providers},
		Language:        s.language,
		LeaderRunnables: []func(context.Context) error{s.providers.RunElected},
		Log:             s.cfg.Log,
		Clock:           s.cfg.Clock,
		Identity:        s.name,
		SingleServer:    !s.datastore.Shared(),

		Journal: s.providers.Journal(), Acknowledge: s.providers.Acknowledge, OnLargeRun: s.largeWork(),
	})
	if err != nil {
		return fmt.Errorf("create the plan and apply controllers: %w", err)
	}
	return p.Run(ctx)
}

// groupNames adapts the Registry to plan's interface.
type groupNames struct{ *providers.Registry }

// Groups returns the API groups of all Providers.
func (g groupNames) Groups() []string {
	var out []string
	for _, group := range g.Registry.Groups() {
		out = append(out, group.Name)
	}
	return out
}

func (s *Server) largeWork() func(bool) func() {
	if s.cfg.LargeWork != nil {
		return s.cfg.LargeWork
	}
	return func(bool) func() { return debug.FreeOSMemory }
}
