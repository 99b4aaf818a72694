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

// Lease that who runs plans and applies is elected with.
const (
	LeaseNamespace = metav1.NamespaceSystem
	LeaseName      = "atoll-infra"
)

// Run campaigns, leads, and campaigns again until ctx ends. Whatever goes wrong in
// between is logged and tried again.
func (p *Plans) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := p.campaign(ctx); err != nil && ctx.Err() == nil {
			p.cfg.Log.Error("plans and applies stopped; starting again", "error", err)
		}
		p.rest(ctx, time.Second)
	}
	return nil
}

func (p *Plans) rest(ctx context.Context, d time.Duration) {
	timer := p.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (p *Plans) campaign(ctx context.Context) error {
	if err := ensureNamespace(ctx, p.kube, LeaseNamespace); err != nil {
		return err
	}
	lock, err := p.lock()
	if err != nil {
		return err
	}
	if p.cfg.Alone {
		return p.leadAlone(ctx, lock)
	}
	return p.lead(ctx, lock)
}

// lock is the Lease, over a connection of its own: a renewal must not wait behind what fills caches.
func (p *Plans) lock() (resourcelock.Interface, error) {
	cfg := rest.CopyConfig(p.cfg.REST)
	cfg.NextProtos = []string{"http/1.1"}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("infrastructure: make a client of the control plane: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, LeaseNamespace, LeaseName,
		kube.CoreV1(), kube.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: p.cfg.Identity})
	if err != nil {
		return nil, fmt.Errorf("infrastructure: make the lease %s/%s: %w", LeaseNamespace, LeaseName, err)
	}
	return lock, nil
}

// leadAlone runs a term that nobody can take away: no other server has the datastore. The Lease is kept for
// those who look who leads, and nothing hangs on how late it is renewed.
func (p *Plans) leadAlone(ctx context.Context, lock resourcelock.Interface) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: time.Minute, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("infrastructure: keep the lease %s/%s: %w", LeaseNamespace, LeaseName, err)
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
	return p.lease(ctx, ctx)
}

// lead campaigns and leads one term. The lease is given up only when all that was begun has stopped, so
// that two servers never act on purpose; a server that loses it stops acting before
// another may take it.
func (p *Plans) lead(ctx context.Context, lock resourcelock.Interface) error {
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	// Before the term begins, there is nothing to stop first.
	began := make(chan struct{})
	done := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: LeaseName, ReleaseOnCancel: true,
		LeaseDuration: 10 * time.Second, RenewDeadline: 7 * time.Second, RetryPeriod: time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(began)
				done <- p.lease(ctx, leading)
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
			case <-began: // the term sees that ctx ended, stops and resigns
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

// lease runs one term, until the server stops (ctx) or leads no more.
func (p *Plans) lease(ctx, leading context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(leading, stop)()
	p.cfg.Log.Info("this server runs plans and applies", "identity", p.cfg.Identity)
	defer p.cfg.Log.Info("this server no longer runs plans and applies", "identity", p.cfg.Identity)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.term(ctx) })
	for _, run := range p.cfg.Elected {
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
