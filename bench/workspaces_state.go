package main

import (
	"context"
	"fmt"
	"slices"
)

// state is the memory and goroutines of the server after a garbage collection.
type state struct{ heap, stack, goroutines float64 }

func (b *workspaceBench) state(ctx context.Context) (out state, err error) {
	for range 2 { // finalizers of the first one free more
		if _, err := getPath(ctx, b.server, "/debug/pprof/heap?gc=1"); err != nil {
			return out, err
		}
	}
	metrics, err := getPath(ctx, b.server, "/metrics")
	if err != nil {
		return out, err
	}
	return state{gauge(metrics, "go_memstats_heap_alloc_bytes"), gauge(metrics, "go_memstats_stack_inuse_bytes"), gauge(metrics, "go_goroutines")}, nil
}

// sleep waits until no workspace is awake, and their goroutines have ended.
func (b *workspaceBench) sleep(ctx context.Context) error {
	if err := eventually(ctx, "all workspaces are asleep", func(ctx context.Context) error {
		metrics, err := getPath(ctx, b.server, "/metrics")
		if err != nil {
			return err
		}
		if n := gauge(metrics, `atoll_tenancy_workspaces_awake{workspace="default"}`); n > 0 {
			return fmt.Errorf("%.0f are awake", n)
		}
		return nil
	}); err != nil {
		return err
	}
	return b.settle(ctx)
}

// settle waits until the number of goroutines stays nearly the same: a server starts parts of it after it is ready.
func (b *workspaceBench) settle(ctx context.Context) error {
	var last []float64
	return eventually(ctx, "the number of goroutines stays the same", func(ctx context.Context) error {
		metrics, err := getPath(ctx, b.server, "/metrics")
		if err != nil {
			return err
		}
		last = append(last, gauge(metrics, "go_goroutines"))
		if last = last[max(0, len(last)-settledSamples):]; len(last) < settledSamples || slices.Max(last)-slices.Min(last) > settledNoise {
			return fmt.Errorf("it was %v", last)
		}
		return nil
	})
}
