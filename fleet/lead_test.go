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
type deaf struct {
	resourcelock.Interface
	// observer is the same lease for the test: a lock has one user at a time.
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

// TestUncontestedSession: a session outlives renewals that fail for much longer than a Lease lasts,
// and releases the Lease when it ends.
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
	eventually(t, "the lease names the leader", func() bool {
		r, _, err := lock.seen.Get(ctx)
		return err == nil && r.HolderIdentity == "one"
	})
	lock.is.Store(true)
	// A failed renewal is retried every 20 ms: this is ten deadlines.
	eventually(t, "renewals fail", func() bool { return lock.failed.Load() >= 100 })
	select {
	case err := <-ended:
		t.Fatalf("the session ended although no other server could lead: %v", err)
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
		t.Errorf("the lease was not released: %v, %v", r, err)
	}
}

// TestContestedSession: a session ends when another server may have taken the lease.
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
		t.Fatal("the session did not end although its lease could not be renewed")
	}
}
