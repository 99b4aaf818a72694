package controllers

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// workerRun is a queue with one worker, and a journal of what it did when.
type workerRun struct {
	queue workqueue.TypedRateLimitingInterface[string]
	ended chan struct{}
	stop  context.CancelFunc

	mu      sync.Mutex
	journal []string
}

// startWorker starts a worker whose first backoff is one second.
func startWorker(t *testing.T, reconcile func(ctx context.Context, key string) error, failed func(key string) (again bool)) *workerRun {
	s := &workerRun{ended: make(chan struct{}), queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, time.Minute))}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	began := time.Now()
	note := func(what string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.journal = append(s.journal, time.Since(began).String()+" "+what)
	}
	go func() {
		defer close(s.ended)
		RunWorkers(ctx, s.queue, 1, func(ctx context.Context, key string) error {
			note(key)
			return reconcile(ctx, key)
		}, func(key string, _ error) bool {
			note(key + " failed")
			return failed(key)
		})
		note("the end")
	}()
	return s
}

func (s *workerRun) did(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.journal, want) {
		t.Errorf("did %q\nwant %q", s.journal, want)
	}
}

// TestWorkTriesAgain: failures are retried with growing backoff unless the controller gives up, and
// both success and giving up reset the backoff.
func TestWorkTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 2
		s := startWorker(t, func(_ context.Context, key string) error {
			if key == "flaky" && left == 0 {
				return nil
			}
			left--
			return errors.New("no")
		}, func(key string) bool { return key == "flaky" })
		s.queue.Add("flaky")
		time.Sleep(10 * time.Second)
		s.queue.Add("hopeless")
		time.Sleep(time.Hour)
		for _, key := range []string{"flaky", "hopeless"} {
			if n := s.queue.NumRequeues(key); n != 0 {
				t.Errorf("%d failures of %s are still counted", n, key)
			}
		}
		s.stop()
		<-s.ended
		s.did(t, "0s flaky", "0s flaky failed", "1s flaky", "1s flaky failed", "3s flaky",
			"10s hopeless", "10s hopeless failed", "1h0m10s the end")
	})
}

// TestWorkEnds: RunWorkers waits for running reconciles, starts no others, and ignores errors that
// the shutdown caused.
func TestWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWorker(t, func(ctx context.Context, _ string) error {
			<-ctx.Done()
			time.Sleep(5 * time.Second)
			return ctx.Err()
		}, func(string) bool { return true })
		s.queue.Add("begun")
		s.queue.Add("waiting")
		synctest.Wait()
		s.stop()
		<-s.ended
		s.did(t, "0s begun", "5s the end")
		if !s.queue.ShuttingDown() {
			t.Error("the queue still takes keys")
		}
	})
}

// TestWorkersComeWithWork: up to the given number of keys are reconciled at once, and no goroutine
// is left while the queue is empty.
func TestWorkersComeWithWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]())
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex
		at, most := 0, 0
		ended := make(chan struct{})
		idle := runtime.NumGoroutine()
		go func() {
			defer close(ended)
			RunWorkers(ctx, queue, 100, func(context.Context, int) error {
				mu.Lock()
				at++
				most = max(most, at)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				at--
				return nil
			}, func(int, error) bool { return false })
		}()
		for n := range 250 {
			queue.Add(n)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if waiting := runtime.NumGoroutine() - idle; waiting > 10 {
			t.Errorf("%d goroutines are idle", waiting)
		}
		stop()
		<-ended
		if most != 100 {
			t.Errorf("%d keys were reconciled at once, want 100", most)
		}
	})
}
