package server

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

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
