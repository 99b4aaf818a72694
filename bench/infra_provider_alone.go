package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/zclconf/go-cty/cty"
	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/plugin"
	"github.com/atoll-dev/atoll/infra/providerapi"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// providerAlone measures the provider calls of a first plan in seconds, without a planner: s.callers callers in one process
// validate and plan each resource. Each call encodes its request, as OpenTofu does. Counts above providerCalls are extrapolated.
func (s *infraScale) providerAlone(ctx context.Context, count int) (float64, error) {
	private, err := os.MkdirTemp("", "p")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(private)
	host, err := plugin.New(plugin.Config{Directory: private})
	if err != nil {
		return 0, err
	}
	defer host.Close()
	binary := plugin.Binary{Name: wideProvider, Path: s.development}
	catalog, err := host.Catalog(ctx, binary, nil)
	if err != nil {
		return 0, err
	}
	instance, diagnostics, err := host.Open(ctx, binary, plugin.Settings{Catalog: catalog, Config: cty.NullVal(catalog.Config().Block.ImpliedType())})
	if err != nil || diagnostics.Failed() {
		return 0, fmt.Errorf("open the provider: %w: %v", err, diagnostics)
	}
	is, err := catalog.Resource(s.typ)
	if err != nil {
		return 0, err
	}
	calls := min(count, providerCalls)
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.callers)
	for n := range calls {
		group.Go(func() error {
			config, errs := infraschema.Config(&is.Block, nil, map[string]any{"name": resourceName(n)}, nil)
			if len(errs) > 0 {
				return errs.ToAggregate()
			}
			config, _ = infraschema.Unmark(config)
			if _, err := instance.ValidateResource(ctx, s.typ, &providerapi.Configuration{Value: config}); err != nil {
				return err
			}
			null := cty.NullVal(is.Block.ImpliedType())
			_, err := instance.Plan(ctx, providerapi.PlanRequest{
				Type: s.typ, Prior: null, Proposed: decide.ProposedNew(&is.Block, null, config),
				Config: &providerapi.Configuration{Value: config}, AsWritten: true,
			})
			return err
		})
	}
	err = group.Wait()
	return time.Since(began).Seconds() * float64(count) / float64(calls), err
}
