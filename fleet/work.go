package fleet

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// Work reconciles what is put into a queue, with so many workers and no key twice
// at once, until ctx ends. Then it shuts the queue down and returns when the last
// reconcile has. What is still in the queue is left there: whoever leads next
// begins with everything anyway, and may begin the sooner.
//
// When a reconcile fails, failed says so in the controller's words, if it is worth
// any, and whether to try again. The pause before that is the queue's; it begins
// anew with the next success, and with a failure that is not tried again. What
// fails after ctx ended failed because of that, so nothing is said of it.
func Work[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K], workers int,
	reconcile func(context.Context, K) error, failed func(K, error) (again bool)) {
	var running sync.WaitGroup
	// Workers are there while there is work: a thousand syncers are mostly idle, and
	// eight stacks for each would be memory that nobody uses.
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

// workOnce reconciles one key that was taken out of the queue.
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
