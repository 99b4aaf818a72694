package coordination

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// skewed is the lock of a process with a wrong clock: the times that it writes are off, but
// its seconds have the right length.
type skewed struct {
	*Lock
	by time.Duration
}

func (s skewed) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.Lock.Create(ctx, s.shift(r))
}

func (s skewed) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.Lock.Update(ctx, s.shift(r))
}

func (s skewed) shift(r resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	r.AcquireTime = metav1.NewTime(r.AcquireTime.Add(s.by))
	r.RenewTime = metav1.NewTime(r.RenewTime.Add(s.by))
	return r
}

// candidate is a process that takes part in an election.
type candidate struct {
	*link
	lock *Lock
	stop func()

	mu               sync.Mutex
	started, stopped time.Time
	token            Token
}

func (c *candidate) times() (started, stopped time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.started, c.stopped
}

func stand(t *testing.T, s *leaseServer, cluster string, skew time.Duration) *candidate {
	t.Helper()
	link, cfg := s.connect()
	lock, err := NewLock(cfg, "ops", "web", cluster+"/operator-0")
	if err != nil {
		t.Fatal(err)
	}
	c := &candidate{link: link, lock: lock}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: skewed{lock, skew}, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				token, err := lock.Token()
				if err != nil {
					t.Errorf("%s leads: %v", cluster, err)
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				c.started, c.token = time.Now(), token
			},
			OnStoppedLeading: func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.stopped = time.Now()
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(ctx)
	}()
	c.stop = func() {
		cancel()
		<-ended
	}
	return c
}

// TestClocksAnHourApart checks that a leader whose clock is behind does not seem dead, and
// that one whose clock is ahead is replaced when it dies.
func TestClocksAnHourApart(t *testing.T) {
	for name, skew := range map[string]time.Duration{"behind": -time.Hour, "right": 0, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				east := stand(t, s, "east", skew)
				defer east.stop()
				synctest.Wait()
				west := stand(t, s, "west", 0)
				defer west.stop()

				time.Sleep(10 * time.Minute)
				if started, _ := west.times(); !started.IsZero() {
					t.Fatalf("west took the lease after %s, although east renews it", started.Sub(east.started))
				}
				cut := time.Now()
				east.set(true, false)
				time.Sleep(time.Minute)
				synctest.Wait()

				_, stopped := east.times()
				started, _ := west.times()
				if stopped.IsZero() || started.IsZero() || !stopped.Before(started) {
					t.Fatalf("east stopped at %v, west started at %v", stopped, started)
				}
				// East's last renewal was at most one period before it was cut off. West
				// reads at varying intervals: it may see both the renewal and the expiry
				// one interval late.
				interval := time.Duration((1 + leaderelection.JitterFactor) * float64(retryPeriod))
				if waited := started.Sub(cut); waited < leaseDuration-retryPeriod || waited > leaseDuration+2*interval {
					t.Errorf("west took over after %s, with a lease of %s", waited, leaseDuration)
				}
				if west.token.UID != east.token.UID || west.token.Transitions <= east.token.Transitions {
					t.Errorf("token %v after %v", west.token, east.token)
				}
			})
		})
	}
}

// TestLeaderSurvivesLostAnswers checks that a write whose answer is lost costs neither the
// leadership nor the token.
func TestLeaderSurvivesLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		east := stand(t, s, "east", 0)
		defer east.stop()
		time.Sleep(time.Second)
		east.set(false, true)
		time.Sleep(renewDeadline / 2)
		east.set(false, false)
		time.Sleep(time.Minute)
		if _, stopped := east.times(); !stopped.IsZero() {
			t.Error("the leader gave up")
		}
		if token, err := east.lock.Token(); err != nil || token != east.token {
			t.Errorf("token %v (%v), was %v", token, err, east.token)
		}
	})
}
