package server

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/apiserver"
)

// awaitReady waits until the API is ready or ctx ends. It reports whether the API is
// ready.
func awaitReady(ctx context.Context, api *apiserver.Server) bool {
	select {
	case <-api.Ready():
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
