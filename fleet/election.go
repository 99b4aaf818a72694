package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// election is the lock that servers compete for, and its timing.
type election struct {
	lock                                      resourcelock.Interface
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

// multiServerElection lets another server take over within ten seconds.
func multiServerElection(lock resourcelock.Interface) election {
	return election{lock, 10 * time.Second, 7 * time.Second, time.Second}
}

// singleServerElection is for a server without competitors. Its Lease only shows who leads, and
// each renewal is a durable write, so it renews rarely.
func singleServerElection(lock resourcelock.Interface) election {
	return election{lock, time.Minute, 40 * time.Second, 10 * time.Second}
}

// lease returns the lock that servers are elected with. It is renewed over a connection of its own.
// On the controllers' shared connection, a renewal would wait behind the requests that fill the
// caches, and come too late.
func (f *Fleet) lease() (resourcelock.Interface, error) {
	cfg := rest.CopyConfig(f.cfg.REST)
	cfg.NextProtos = []string{"http/1.1"}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, LeaseNamespace, LeaseName,
		kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: f.cfg.Identity})
	if err != nil {
		return nil, fmt.Errorf("fleet: make the lease %s/%s: %w", LeaseNamespace, LeaseName, err)
	}
	return lock, nil
}

func (e election) elector(began func(leading context.Context)) (*leaderelection.LeaderElector, error) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: e.leaseDuration, RenewDeadline: e.renewDeadline, RetryPeriod: e.retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: began, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, fmt.Errorf("fleet: campaign for lease %s/%s: %w", LeaseNamespace, LeaseName, err)
	}
	return elector, nil
}

// lead campaigns and runs one session, which has to return when ctx ends and when leadership is
// lost (leading). The lease is released only after the session has returned, so two servers never
// act at once. A server that loses the lease stops acting before another may take it.
func (e election) lead(ctx context.Context, session func(ctx, leading context.Context) error) error {
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	// Before the session starts, there is nothing to stop.
	began := make(chan struct{})
	done := make(chan error, 1)
	elector, err := e.elector(func(leading context.Context) {
		close(began)
		done <- session(ctx, leading)
		resign()
	})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-ctx.Done():
			select {
			case <-began: // the session sees that ctx ended, stops and resigns
			default:
				resign()
			}
		case <-campaign.Done():
		}
	}()
	elector.Run(campaign)
	select {
	case <-began:
		return <-done
	default:
		return nil
	}
}

// leadUncontested runs one session that no other server can take over. It does not end if this
// server is too busy to renew the lease. The lease only shows who leads.
func (e election) leadUncontested(ctx context.Context, session func(ctx, leading context.Context) error) error {
	elector, err := e.elector(func(context.Context) {})
	if err != nil {
		return err
	}
	shown, hide := context.WithCancel(context.WithoutCancel(ctx))
	var showing sync.WaitGroup
	defer showing.Wait()
	defer hide()
	showing.Go(func() {
		for shown.Err() == nil {
			elector.Run(shown)
		}
	})
	return session(ctx, ctx)
}
