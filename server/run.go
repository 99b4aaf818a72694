package server

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/apiserver"
)

// awaitServing waits until the API answers requests or ctx ends. It reports whether the API
// answers. It may not know Atoll's own types yet: its clients in this process create them.
func awaitServing(ctx context.Context, api *apiserver.Server) bool {
	select {
	case <-api.Serving():
		return true
	case <-ctx.Done():
		return false
	}
}

// runAll runs parts concurrently until ctx ends or one of them fails, which stops the
// others, and waits for all.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range parts {
		group.Go(func() error {
			err := part(ctx)
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return nil
			}
			return err
		})
	}
	return group.Wait()
}
