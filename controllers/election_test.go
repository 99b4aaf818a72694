package controllers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/atoll-dev/atoll/test/fakeapi"
)

// blockableLock is a lease whose requests fail once it is blocked.
type blockableLock struct {
	resourcelock.Interface
	// observer is the same lease for the test: a lock has one user at a time.
	observer resourcelock.Interface
	blocked  atomic.Bool
	failed   atomic.Int64
	// full: renewals fail, and giving up the lease does not.
	full atomic.Bool
}

var errBlocked = errors.New("the control plane is too busy")

func (d *blockableLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if d.blocked.Load() || d.full.Load() && r.HolderIdentity != "" {
		d.failed.Add(1)
		return errBlocked
	}
	return d.Interface.Update(ctx, r)
}

func (d *blockableLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if d.blocked.Load() {
		d.failed.Add(1)
		return nil, nil, errBlocked
	}
	return d.Interface.Get(ctx)
}

func fastContest(t *testing.T) (contest, *blockableLock) {
	t.Helper()
	kube, err := kubernetes.NewForConfig(fakeapi.New(t, fakeapi.BuiltIns("coordination.k8s.io/v1 Lease")...).Config())
	if err != nil {
		t.Fatal(err)
	}
	lease := func() resourcelock.Interface {
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, "kube-system", "test",
			kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "one"})
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	d := &blockableLock{Interface: lease(), observer: lease()}
	return contest{lock: d, name: "test", leaseDuration: 300 * time.Millisecond, renewDeadline: 200 * time.Millisecond, retryPeriod: 20 * time.Millisecond}, d
}

// TestUncontestedSession: a session outlives renewals that fail for much longer than a Lease lasts,
// and releases the Lease when it ends.
func TestUncontestedSession(t *testing.T) {
	c, lock := fastContest(t)
	ctx, stop := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.leadUncontested(ctx, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			return nil
		})
	}()
	<-began
	fakeapi.Until(t, "the lease names the leader", func() bool {
		r, _, err := lock.observer.Get(ctx)
		return err == nil && r.HolderIdentity == "one"
	})
	lock.blocked.Store(true)
	// A failed renewal is retried every 20 ms: this is ten deadlines.
	fakeapi.Until(t, "renewals fail", func() bool { return lock.failed.Load() >= 100 })
	select {
	case err := <-ended:
		t.Fatalf("the session ended although no other server could lead: %v", err)
	default:
	}
	lock.blocked.Store(false)
	fakeapi.Until(t, "the lease is renewed again", func() bool {
		r, _, err := lock.observer.Get(ctx)
		return err == nil && r.HolderIdentity == "one" && time.Since(r.RenewTime.Time) < 200*time.Millisecond
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r, _, err := lock.observer.Get(t.Context()); err != nil || r.HolderIdentity != "" {
		t.Errorf("the lease was not released: %v, %v", r, err)
	}
}

// TestContestedSession: a session ends when another server may have taken the lease.
func TestContestedSession(t *testing.T) {
	c, lock := fastContest(t)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.lead(t.Context(), func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			return nil
		})
	}()
	<-began
	lock.blocked.Store(true)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the session did not end although its lease could not be renewed")
	}
}

// TestLostLeaseIsNotReleased: a server that could not renew the Lease in time ends its session first.
// If it gave the Lease up before, another server would act at the same time.
func TestLostLeaseIsNotReleased(t *testing.T) {
	c, lock := fastContest(t)
	began, told, finish, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.lead(t.Context(), func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			close(told)
			<-finish
			return nil
		})
	}()
	<-began
	lock.full.Store(true)
	<-told
	if r, _, err := lock.observer.Get(t.Context()); err != nil || r.HolderIdentity != "one" {
		t.Errorf("the session still runs, and the holder of the lease is %v: %v", r, err)
	}
	close(finish)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r, _, err := lock.observer.Get(t.Context()); err != nil || r.HolderIdentity != "" {
		t.Errorf("the session has ended, and the lease was not released: %v, %v", r, err)
	}
}

// TestCampaignEnds: a server that never led leaves the Lease to its holder.
func TestCampaignEnds(t *testing.T) {
	c, lock := fastContest(t)
	now := metav1.Now()
	if err := lock.observer.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "other", LeaseDurationSeconds: 600, RenewTime: now, AcquireTime: now}); err != nil {
		t.Fatal(err)
	}
	c.leaseDuration = 10 * time.Minute
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := c.lead(ctx, func(context.Context) error { return errors.New("it led") }); err != nil {
		t.Error(err)
	}
	if r, _, err := lock.observer.Get(t.Context()); err != nil || r.HolderIdentity != "other" {
		t.Errorf("the holder is now %v: %v", r, err)
	}
}

// stoppedLock stops the server when it has written the Lease, so that the elector gets no answer.
type stoppedLock struct {
	resourcelock.Interface
	stop context.CancelFunc
}

func (s stoppedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := s.Interface.Create(ctx, r); err != nil {
		return err
	}
	s.stop()
	return context.Canceled
}

// TestStoppedWhileTheLeaseIsTaken: a server that is stopped before it knows that it has the Lease
// releases it all the same, or the next server would wait until it expires.
func TestStoppedWhileTheLeaseIsTaken(t *testing.T) {
	c, lock := fastContest(t)
	ctx, stop := context.WithCancel(t.Context())
	c.lock = stoppedLock{lock, stop}
	if err := c.lead(ctx, func(context.Context) error { return errors.New("it led") }); err != nil {
		t.Error(err)
	}
	if r, _, err := lock.observer.Get(t.Context()); err != nil || r.HolderIdentity != "" {
		t.Errorf("the lease was not released: %v, %v", r, err)
	}
}
