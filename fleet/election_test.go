package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// blockableLock is a lease whose requests fail once it is blocked.
type blockableLock struct {
	resourcelock.Interface
	// observer is the same lease for the test: a lock has one user at a time.
	observer resourcelock.Interface
	blocked  atomic.Bool
	failed   atomic.Int64
}

var errBlocked = errors.New("the control plane is too busy")

func (d *blockableLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if d.blocked.Load() {
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

func fastElection(t *testing.T) (election, *blockableLock) {
	t.Helper()
	kube := fake.NewClientset()
	lease := func() resourcelock.Interface {
		lock, err := resourcelock.New(resourcelock.LeasesResourceLock, LeaseNamespace, LeaseName,
			kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: "one"})
		if err != nil {
			t.Fatal(err)
		}
		return lock
	}
	d := &blockableLock{Interface: lease(), observer: lease()}
	return election{lock: d, leaseDuration: 300 * time.Millisecond, renewDeadline: 200 * time.Millisecond, retryPeriod: 20 * time.Millisecond}, d
}

// TestUncontestedSession: a session outlives renewals that fail for much longer than a Lease lasts,
// and releases the Lease when it ends.
func TestUncontestedSession(t *testing.T) {
	e, lock := fastElection(t)
	ctx, stop := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.leadUncontested(ctx, func(_, leading context.Context) error {
			close(began)
			<-leading.Done()
			return nil
		})
	}()
	<-began
	eventually(t, "the lease names the leader", func() bool {
		r, _, err := lock.observer.Get(ctx)
		return err == nil && r.HolderIdentity == "one"
	})
	lock.blocked.Store(true)
	// A failed renewal is retried every 20 ms: this is ten deadlines.
	eventually(t, "renewals fail", func() bool { return lock.failed.Load() >= 100 })
	select {
	case err := <-ended:
		t.Fatalf("the session ended although no other server could lead: %v", err)
	default:
	}
	lock.blocked.Store(false)
	eventually(t, "the lease is renewed again", func() bool {
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
	e, lock := fastElection(t)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.lead(t.Context(), func(ctx, leading context.Context) error {
			close(began)
			<-leading.Done()
			return ctx.Err()
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
