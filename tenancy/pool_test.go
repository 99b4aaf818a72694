package tenancy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

// workspace counts how it is used.
type workspace struct {
	uid    string
	closed atomic.Bool
}

// stage is a pool of workspaces that record mistakes.
type stage struct {
	*Pool[*workspace]
	t       *testing.T
	clock   *testingclock.FakeClock
	opened  atomic.Int64
	mu      sync.Mutex
	isOpen  map[string]bool
	failing atomic.Bool
	slow    chan struct{} // if not nil, Open waits for it
	stop    func()
	stopped chan error
}

func newStage(t *testing.T, now clock.WithTicker) *stage {
	t.Helper()
	s := &stage{t: t, isOpen: map[string]bool{}}
	s.clock, _ = now.(*testingclock.FakeClock)
	s.Pool = NewPool(t.Context(), Config[*workspace]{Open: s.open, Close: s.close, Idle: time.Minute, OpenTimeout: time.Minute, Grace: time.Second, MaxOpening: 4, Clock: now})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.stop, s.stopped = stop, done
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := s.Awake(); n != 0 {
			t.Errorf("%d are awake after the end", n)
		}
	})
	return s
}

func (s *stage) open(ctx context.Context, uid string) (*workspace, error) {
	if s.slow != nil {
		select {
		case <-s.slow:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if s.failing.Load() {
		return nil, errors.New("the database does not answer")
	}
	s.opened.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOpen[uid] {
		s.t.Errorf("%s is opened twice", uid)
	}
	s.isOpen[uid] = true
	return &workspace{uid: uid}, nil
}

func (s *stage) close(uid string, w *workspace) {
	if w.closed.Swap(true) {
		s.t.Errorf("%s is closed twice", uid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOpen[uid] = false
}

func (s *stage) acquire(uid string) (context.Context, *workspace, func()) {
	s.t.Helper()
	ctx, w, release, err := s.Acquire(s.t.Context(), uid)
	if err != nil {
		s.t.Fatal(err)
	}
	return ctx, w, release
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

// TestIdle: requests share an open workspace. It is closed when the last one has been over for the idle time, and opened again for
// the next one.
func TestIdle(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	_, w, release := s.acquire("a")
	_, again, release2 := s.acquire("a")
	if w != again || s.opened.Load() != 1 {
		t.Errorf("opened %d times", s.opened.Load())
	}
	eventually(t, "the pool runs", s.clock.HasWaiters)
	release()
	s.clock.Step(2 * time.Minute)
	if w.closed.Load() {
		t.Error("closed while a request uses it")
	}
	release2()
	release2() // a second time has no effect
	s.clock.Step(30 * time.Second)
	if s.Awake() != 1 {
		t.Error("closed before the idle time")
	}
	s.clock.Step(time.Minute)
	eventually(t, "it is closed", func() bool { return s.Awake() == 0 && w.closed.Load() })
	_, w, release = s.acquire("a")
	if w.closed.Load() || s.opened.Load() != 2 {
		t.Error("it is not opened again")
	}
	release()
}

// TestDeletion: the end of a workspace ends the requests that use it, and waits for them.
func TestDeletion(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	in, w, release := s.acquire("a")
	ended := make(chan error, 1)
	go func() { ended <- s.End(t.Context(), "a") }()
	<-in.Done()
	if cause := context.Cause(in); !errors.Is(cause, ErrEnded) {
		t.Errorf("the request ends with %v", cause)
	}
	if _, _, _, err := s.Acquire(t.Context(), "a"); !errors.Is(err, ErrEnded) {
		t.Errorf("another request gets %v", err)
	}
	if w.closed.Load() {
		t.Error("closed while a request uses it")
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.End(impatient, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of a used workspace: %v", err)
	}
	release()
	if err := <-ended; err != nil || !w.closed.Load() {
		t.Errorf("closed: %v, %v", w.closed.Load(), err)
	}
	if err := s.End(t.Context(), "a"); err != nil {
		t.Errorf("the end of one that is not awake: %v", err)
	}
}

// TestStop: when the server stops, no request begins, and those that do not end within the grace period are ended.
func TestStop(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	in, w, release := s.acquire("a")
	eventually(t, "the pool runs", s.clock.HasWaiters)
	s.stop()
	eventually(t, "no request begins", func() bool {
		_, _, release, err := s.Acquire(t.Context(), "b")
		if err == nil {
			release()
		}
		return errors.Is(err, ErrStopping)
	})
	if in.Err() != nil {
		t.Error("the request is ended at once")
	}
	eventually(t, "the request is ended", func() bool {
		s.clock.Step(time.Second)
		return errors.Is(context.Cause(in), ErrStopping)
	})
	if len(s.stopped) > 0 || w.closed.Load() {
		t.Error("the pool has stopped although a request uses a workspace")
	}
	release()
}

// TestOpenFails: all requests that wait get the error, and the next one tries again.
func TestOpenFails(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	s.failing.Store(true)
	for range 2 {
		if _, _, _, err := s.Acquire(t.Context(), "a"); err == nil || err.Error() != "open workspace a: the database does not answer" {
			t.Fatal(err)
		}
	}
	s.failing.Store(false)
	_, _, release := s.acquire("a")
	release()
}

// TestImpatient: a request that gives up does not harm others that wait for the same workspace, nor the end of a workspace that is
// still being opened.
func TestImpatient(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	s.slow = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, _, _, err := s.Acquire(ctx, "a"); first <- err }()
	eventually(t, "it is being opened", func() bool { return s.Awake() == 1 })
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := s.End(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	close(s.slow)
	_, _, release := s.acquire("a")
	release()
}

// TestManyRequests: while requests, deletions and idle workspaces interleave at random, no workspace is opened twice, closed twice
// or used after it was closed.
func TestManyRequests(t *testing.T) {
	s := newStage(t, clock.RealClock{})
	var all sync.WaitGroup
	var inUse [8]atomic.Int64
	for seed := range uint64(16) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for range 500 {
				n := random.IntN(len(inUse))
				uid := fmt.Sprint(n)
				switch random.IntN(10) {
				case 0:
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					_ = s.End(ctx, uid)
					cancel()
				case 1:
					s.closeIdle(time.Now())
				default:
					in, w, release, err := s.Acquire(t.Context(), uid)
					if err != nil {
						continue
					}
					inUse[n].Add(1)
					if random.IntN(4) == 0 {
						select {
						case <-in.Done():
						case <-time.After(time.Duration(random.IntN(300)) * time.Microsecond):
						}
					}
					if w.closed.Load() || w.uid != uid {
						t.Errorf("workspace %s: used after it was closed", uid)
					}
					release()
				}
			}
		})
	}
	all.Wait()
	for n := range inUse {
		if inUse[n].Load() == 0 {
			t.Errorf("workspace %d was never used", n)
		}
	}
}

// TestIdleParent: a workspace that uses its parent while it is closed, as a report of its usage does, is closed although both became idle at
// the same time.
func TestIdleParent(t *testing.T) {
	s := newStage(t, testingclock.NewFakeClock(time.Now()))
	var reported atomic.Bool
	s.config.Close = func(uid string, w *workspace) {
		if uid == "child" {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, _, release, err := s.Acquire(ctx, "parent")
			if err != nil {
				t.Errorf("the parent of a workspace that is being closed: %v", err)
				return
			}
			release()
			reported.Store(true)
		}
		s.close(uid, w)
	}
	_, parent, releaseParent := s.acquire("parent")
	_, child, releaseChild := s.acquire("child")
	eventually(t, "the pool runs", s.clock.HasWaiters)
	releaseChild()
	releaseParent()
	s.clock.Step(2 * time.Minute)
	eventually(t, "the child is closed", func() bool { return child.closed.Load() && reported.Load() })
	eventually(t, "the parent is closed later", func() bool {
		s.clock.Step(time.Minute)
		return parent.closed.Load() && s.Awake() == 0
	})
}
