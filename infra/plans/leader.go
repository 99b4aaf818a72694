package plans

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"golang.org/x/sync/errgroup"
)

// LeaseNamespace and LeaseName identify the Lease by which the server that runs plans and applies is elected.
const (
	LeaseNamespace = metav1.NamespaceSystem
	LeaseName      = "atoll-infra"
)

// Run campaigns, leads, and campaigns again until ctx ends. Errors in between are logged and retried.
func (c *Controller) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.campaign(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Log.Error("plans and applies stopped; restarting", "error", err)
		}
		c.sleep(ctx, time.Second)
	}
	return nil
}

func (c *Controller) sleep(ctx context.Context, d time.Duration) {
	timer := c.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (c *Controller) campaign(ctx context.Context) error {
	if err := ensureNamespace(ctx, c.kube, LeaseNamespace); err != nil {
		return err
	}
	lock, err := c.lock()
	if err != nil {
		return err
	}
	if c.cfg.SingleServer {
		return c.leadSingleServer(ctx, lock)
	}
	return c.lead(ctx, lock)
}

// lock returns the Lease over a connection of its own: a renewal must not wait behind requests that fill
// caches.
func (c *Controller) lock() (resourcelock.Interface, error) {
	cfg := rest.CopyConfig(c.cfg.REST)
	cfg.NextProtos = []string{"http/1.1"}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("infrastructure: create a client of the control plane: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, LeaseNamespace, LeaseName,
		kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: c.cfg.Identity})
	if err != nil {
		return nil, fmt.Errorf("infrastructure: create a lock on lease %s/%s: %w", LeaseNamespace, LeaseName, err)
	}
	return lock, nil
}

// leadSingleServer runs a session that cannot be lost, because no other server uses the datastore. It still
// maintains the Lease to show who leads; nothing depends on when that is renewed.
func (c *Controller) leadSingleServer(ctx context.Context, lock resourcelock.Interface) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("infrastructure: maintain lease %s/%s: %w", LeaseNamespace, LeaseName, err)
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
	return c.runAsLeader(ctx, ctx)
}

// lead campaigns for the Lease and leads for one session. It releases the Lease only when everything it
// started has stopped, so that two servers never act at once by design. A server that loses the Lease stops
// acting before another may acquire it.
func (c *Controller) lead(ctx context.Context, lock resourcelock.Interface) error {
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	// Before the session begins, there is nothing to stop first.
	began := make(chan struct{})
	done := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: 10 * time.Second, RenewDeadline: 7 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(began)
				done <- c.runAsLeader(ctx, leading)
				resign()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("infrastructure: campaign for lease %s/%s: %w", LeaseNamespace, LeaseName, err)
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

// runAsLeader runs one session, until the server stops (ctx) or loses the Lease (leading).
func (c *Controller) runAsLeader(ctx, leading context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(leading, stop)()
	c.cfg.Log.Info("started leading plans and applies", "identity", c.cfg.Identity)
	defer c.cfg.Log.Info("stopped leading plans and applies", "identity", c.cfg.Identity)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.runSession(ctx) })
	for _, run := range c.cfg.LeaderRunnables {
		group.Go(func() error { return run(ctx) })
	}
	if err := group.Wait(); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func ensureNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	_, err := kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("infrastructure: create namespace %s: %w", name, err)
	}
	return nil
}
