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
	for range workers {
		running.Go(func() {
			for ctx.Err() == nil && workOnce(ctx, queue, reconcile, failed) {
			}
		})
	}
	<-ctx.Done()
	queue.ShutDown()
	running.Wait()
}

// workOnce waits for one key and reconciles it. It is false when there will be no
// other.
func workOnce[K comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[K],
	reconcile func(context.Context, K) error, failed func(K, error) (again bool)) bool {
	key, stopped := queue.Get()
	if stopped {
		return false
	}
	defer queue.Done(key)
	err := reconcile(ctx, key)
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil && failed(key, err):
		queue.AddRateLimited(key)
	default:
		queue.Forget(key)
	}
	return true
}
