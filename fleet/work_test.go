package fleet

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

// shift is a queue with one worker, and what it did when.
type shift struct {
	queue workqueue.TypedRateLimitingInterface[string]
	ended chan struct{}
	stop  context.CancelFunc

	mu      sync.Mutex
	journal []string
}

// work begins a shift in which the first pause after a failure is a second.
func work(t *testing.T, reconcile func(ctx context.Context, key string) error, failed func(key string) (again bool)) *shift {
	s := &shift{ended: make(chan struct{}), queue: workqueue.NewTypedRateLimitingQueue(
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
		Work(ctx, s.queue, 1, func(ctx context.Context, key string) error {
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

func (s *shift) did(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.journal, want) {
		t.Errorf("did %q\nwant %q", s.journal, want)
	}
}

// TestWorkTriesAgain: after growing pauses, unless told that it is no use; and
// neither success nor giving up leaves a long pause to the next failure.
func TestWorkTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 2
		s := work(t, func(_ context.Context, key string) error {
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
				t.Errorf("%d failures of %s are remembered", n, key)
			}
		}
		s.stop()
		<-s.ended
		s.did(t, "0s flaky", "0s flaky failed", "1s flaky", "1s flaky failed", "3s flaky",
			"10s hopeless", "10s hopeless failed", "1h0m10s the end")
	})
}

// TestWorkEnds: it waits for what has begun, begins nothing more, and takes a
// failure for what it is.
func TestWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := work(t, func(ctx context.Context, _ string) error {
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

// TestWorkersComeWithWork: as many keys are worked on at once as there may be workers,
// and nobody waits while there is nothing to do.
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
			Work(ctx, queue, 100, func(context.Context, int) error {
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
			t.Errorf("%d goroutines wait for work", waiting)
		}
		stop()
		<-ended
		if most != 100 {
			t.Errorf("%d keys were worked on at once, want 100", most)
		}
	})
}
