package controllers

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// RunWorkers reconciles the keys of a queue with the given number of workers, and never one key
// twice at once, until ctx ends. Then it shuts the queue down and returns when the running
// reconciles have ended. Keys that are still queued are dropped: the next leader starts with all
// keys anyway, and can start sooner.
//
// When a reconcile fails, failed logs the error if it is worth it, and returns whether to retry.
// The queue determines the backoff, which is reset by a success and by a failure that is not
// retried. An error after ctx ended is ignored, because the end of ctx caused it.
func RunWorkers[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K], workers int,
	reconcile func(context.Context, K) error, failed func(K, error) (again bool)) {
	var running sync.WaitGroup
	// A worker goroutine exists only while it has work: a thousand syncers are mostly idle, and
	// eight idle stacks for each would waste memory.
	busy := make(chan struct{}, workers)
	running.Go(func() {
		for {
			busy <- struct{}{}
			key, stopped := queue.Get()
			if stopped {
				return
			}
			if ctx.Err() != nil {
				queue.Done(key)
				return
			}
			running.Go(func() {
				workOnce(ctx, queue, key, reconcile, failed)
				<-busy
			})
		}
	})
	<-ctx.Done()
	queue.ShutDown()
	running.Wait()
}

// workOnce reconciles one key that was taken from the queue.
func workOnce[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K], key K,
	reconcile func(context.Context, K) error, failed func(K, error) (again bool)) {
	defer queue.Done(key)
	err := reconcile(ctx, key)
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil && failed(key, err):
		queue.AddRateLimited(key)
	default:
		queue.Forget(key)
	}
}
