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

// deaf is a lease that takes nothing any more once it is.
type deaf struct {
	resourcelock.Interface
	// seen is the same lease for who looks on: a lock is for one user at a time.
	seen   resourcelock.Interface
	is     atomic.Bool
	failed atomic.Int64
}

var errDeaf = errors.New("the control plane is too busy")

func (d *deaf) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if d.is.Load() {
		d.failed.Add(1)
		return errDeaf
	}
	return d.Interface.Update(ctx, r)
}

func (d *deaf) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if d.is.Load() {
		d.failed.Add(1)
		return nil, nil, errDeaf
	}
	return d.Interface.Get(ctx)
}

func quickly(t *testing.T) (election, *deaf) {
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
	d := &deaf{Interface: lease(), seen: lease()}
	return election{lock: d, lasts: 300 * time.Millisecond, deadline: 200 * time.Millisecond, retry: 20 * time.Millisecond}, d
}

// TestATermOfOne outlives renewals that fail for many times what a Lease lasts, and gives the
// Lease back when it ends.
func TestATermOfOne(t *testing.T) {
	e, lock := quickly(t)
	ctx, stop := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.leadAlone(ctx, func(_, leading context.Context) error {
			close(began)
			<-leading.Done()
			return nil
		})
	}()
	<-began
	eventually(t, "the lease says who leads", func() bool {
		r, _, err := lock.seen.Get(ctx)
		return err == nil && r.HolderIdentity == "one"
	})
	lock.is.Store(true)
	// A renewal that fails is tried again every 20 ms: this is ten deadlines.
	eventually(t, "renewals fail", func() bool { return lock.failed.Load() >= 100 })
	select {
	case err := <-ended:
		t.Fatalf("the term ended, though nobody else could lead: %v", err)
	default:
	}
	lock.is.Store(false)
	eventually(t, "the lease is renewed again", func() bool {
		r, _, err := lock.seen.Get(ctx)
		return err == nil && r.HolderIdentity == "one" && time.Since(r.RenewTime.Time) < 200*time.Millisecond
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r, _, err := lock.seen.Get(t.Context()); err != nil || r.HolderIdentity != "" {
		t.Errorf("the lease was not given back: %v, %v", r, err)
	}
}

// TestATermAmongSeveral ends when it can no longer be known that nobody else leads.
func TestATermAmongSeveral(t *testing.T) {
	e, lock := quickly(t)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- e.lead(t.Context(), func(ctx, leading context.Context) error {
			close(began)
			<-leading.Done()
			return ctx.Err()
		})
	}()
	<-began
	lock.is.Store(true)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the term goes on, though its lease could not be renewed")
	}
}
