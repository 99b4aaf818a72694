package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// Election elects one server at a time by a Lease. The holder leads.
type Election struct {
	// REST connects to the API that has the Lease.
	REST *rest.Config
	// Namespace and Name of the Lease. If the namespace does not exist, it is created.
	Namespace, Name string
	// Identity of this server. A restarted server needs another one, because its memory is gone.
	Identity string
	// SingleServer says that no other server can use the datastore while this one does. Sessions then
	// never end because of a late Lease renewal: no other server can take over.
	SingleServer bool
	// Prepare, if set, runs before each campaign.
	Prepare func(context.Context) error
	Clock   clock.Clock
	Log     *slog.Logger
}

// Run campaigns, runs one session while it leads, and campaigns again until ctx ends. Errors are
// logged and retried. A session has to return when its context ends: the server stops, or has lost
// the Lease.
func (e *Election) Run(ctx context.Context, session func(context.Context) error) {
	for ctx.Err() == nil {
		if err := e.campaign(ctx, session); err != nil && ctx.Err() == nil {
			e.Log.Error("campaign or session failed; retrying", "lease", e.lease(), "error", err)
		}
		select {
		case <-ctx.Done():
		case <-e.Clock.After(time.Second):
		}
	}
}

func (e *Election) lease() string { return e.Namespace + "/" + e.Name }

func (e *Election) campaign(ctx context.Context, session func(context.Context) error) error {
	if e.Prepare != nil {
		if err := e.Prepare(ctx); err != nil {
			return err
		}
	}
	lock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	lead := multiServer(lock, e.Name).lead
	if e.SingleServer {
		lead = singleServer(lock, e.Name).leadUncontested
	}
	return lead(ctx, func(ctx context.Context) error {
		e.Log.Info("started leading", "lease", e.lease(), "identity", e.Identity)
		defer e.Log.Info("stopped leading", "lease", e.lease(), "identity", e.Identity)
		err := session(ctx)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
}

// lock returns the Lease over a connection of its own. On the controllers' shared connection, a
// renewal would wait behind the requests that fill the caches, and come too late.
func (e *Election) lock(ctx context.Context) (resourcelock.Interface, error) {
	cfg := rest.CopyConfig(e.REST)
	cfg.NextProtos = []string{"http/1.1"}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client for lease %s: %w", e.lease(), err)
	}
	if err := EnsureNamespace(ctx, kube, e.Namespace); err != nil {
		return nil, err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, e.Namespace, e.Name,
		kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: e.Identity})
	if err != nil {
		return nil, fmt.Errorf("make a lock on lease %s: %w", e.lease(), err)
	}
	return lock, nil
}

// contest is the lock that servers compete for, and its timing.
type contest struct {
	lock                                      resourcelock.Interface
	name                                      string // in metrics
	leaseDuration, renewDeadline, retryPeriod time.Duration
}

// multiServer lets another server take over within ten seconds.
func multiServer(lock resourcelock.Interface, name string) contest {
	return contest{lock, name, 10 * time.Second, 7 * time.Second, time.Second}
}

// singleServer is for a server without competitors. Its Lease only shows who leads, and each renewal
// is a durable write, so it renews rarely.
func singleServer(lock resourcelock.Interface, name string) contest {
	return contest{lock, name, time.Minute, 40 * time.Second, 10 * time.Second}
}

// elector does not release the Lease itself: with ReleaseOnCancel it also does that when it could
// not renew the Lease in time, before it ends the context of the session.
func (c contest) elector(began func(leading context.Context)) (*leaderelection.LeaderElector, error) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lock, Name: c.name,
		LeaseDuration: c.leaseDuration, RenewDeadline: c.renewDeadline, RetryPeriod: c.retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: began, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, fmt.Errorf("campaign for lease %s: %w", c.lock.Describe(), err)
	}
	return elector, nil
}

// lead campaigns and runs one session, whose context ends with ctx and when the Lease is lost. It
// releases the Lease only after the session has returned, so two servers never act at once. A server
// that loses the Lease stops acting before another may take it.
func (c contest) lead(ctx context.Context, session func(context.Context) error) error {
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	// The elector reports its victory in a goroutine of its own, possibly after it has stopped.
	won := make(chan context.Context, 1)
	elector, err := c.elector(func(leading context.Context) { won <- leading })
	if err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		elector.Run(campaign)
	}()
	defer func() {
		resign()
		<-stopped
		c.release()
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-stopped:
		return nil
	case leading := <-won:
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(leading, stop)()
		return session(ctx)
	}
}

// leadUncontested runs one session that no other server can take over. It does not end if this
// server is too busy to renew the Lease, which only shows who leads.
func (c contest) leadUncontested(ctx context.Context, session func(context.Context) error) error {
	elector, err := c.elector(func(context.Context) {})
	if err != nil {
		return err
	}
	shown, hide := context.WithCancel(context.WithoutCancel(ctx))
	var showing sync.WaitGroup
	showing.Go(func() {
		for shown.Err() == nil {
			elector.Run(shown)
		}
	})
	defer func() {
		hide()
		showing.Wait()
		c.release()
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return session(ctx)
}

// release gives up the Lease if this server has it, so that others need not wait until it expires.
// The elector must have stopped. It may not know that this server has the Lease: it was stopped before
// the answer came. If another server has taken the Lease meanwhile, the write fails.
func (c contest) release() {
	ctx, cancel := context.WithTimeout(context.Background(), c.renewDeadline)
	defer cancel()
	held, _, err := c.lock.Get(ctx)
	if err != nil || held.HolderIdentity != c.lock.Identity() {
		return
	}
	now := metav1.Now()
	// An error leaves the Lease as after a crash: it expires.
	_ = c.lock.Update(ctx, resourcelock.LeaderElectionRecord{
		LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now, LeaderTransitions: held.LeaderTransitions})
}
