// Package fleet runs the controllers that join real clusters to one control plane. It installs the
// fleet's CRDs, elects one server to act, and gives the controllers shared clients and caches. It
// also holds the operations that a user performs on the fleet: Join and Leave.
//
// The controllers are the packages below this one. They import this package and not each other.
// Package server passes them to New.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"
)

// The Lease that the fleet's controllers are elected with.
const (
	LeaseNamespace = metav1.NamespaceSystem
	LeaseName      = "atoll-fleet"
)

// Config configures a Fleet.
type Config struct {
	// REST connects to the control plane with full rights. Required.
	REST *rest.Config
	// Log defaults to slog.Default.
	Log *slog.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Identity of this server in the election. It defaults to a unique one.
	Identity string
	// SingleServer says that no other server can use the datastore while this one does. The session
	// then never ends because of a late Lease renewal: no other server can take over.
	SingleServer bool
	// Metrics records the state of the fleet; it may be nil.
	Metrics *Metrics
}

// Controller does one job of the fleet during one leadership session: until ctx ends or it fails.
// The session's caches are filled when it starts.
type Controller func(ctx context.Context, session *Session) error

// Fleet runs controllers while it leads.
type Fleet struct {
	cfg         Config
	controllers []Controller
}

// New returns a Fleet that runs the given controllers. It does nothing until Run.
func New(cfg Config, controllers ...Controller) (*Fleet, error) {
	if cfg.REST == nil {
		return nil, errors.New("fleet: Config.REST is missing: set the client configuration of the control plane")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "atoll"
		}
		// A restarted server gets another identity, because its memory is gone.
		cfg.Identity = host + "_" + string(uuid.NewUUID())
	}
	// The control plane has API priority and fairness. A rate limit in the client would only add
	// delay and protect nothing.
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.QPS, cfg.REST.Burst = -1, -1
	cfg.REST.UserAgent = "atoll-fleet"
	return &Fleet{cfg: cfg, controllers: controllers}, nil
}

// Run installs the fleet's CRDs and then campaigns, leads, and campaigns again until ctx ends.
// Errors are logged and retried.
func (f *Fleet) Run(ctx context.Context) error {
	kube, err := kubernetes.NewForConfig(f.cfg.REST)
	if err != nil {
		return fmt.Errorf("fleet: make a client of the control plane: %w", err)
	}
	for ctx.Err() == nil {
		if err := f.prepareAndLead(ctx, kube); err != nil && ctx.Err() == nil {
			f.cfg.Log.Error("fleet controllers stopped; restarting", "error", err)
		}
		f.sleep(ctx, time.Second)
	}
	return nil
}

func (f *Fleet) sleep(ctx context.Context, d time.Duration) {
	timer := f.cfg.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (f *Fleet) prepareAndLead(ctx context.Context, kube kubernetes.Interface) error {
	if err := InstallCRDs(ctx, f.cfg.REST); err != nil {
		return err
	}
	if err := EnsureNamespace(ctx, kube, LeaseNamespace); err != nil {
		return err
	}
	lock, err := f.lease()
	if err != nil {
		return err
	}
	if f.cfg.SingleServer {
		return singleServerElection(lock).leadUncontested(ctx, f.runSession)
	}
	return multiServerElection(lock).lead(ctx, f.runSession)
}

// runSession runs the controllers until the server stops (ctx) or loses leadership (leading).
func (f *Fleet) runSession(ctx, leading context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(leading, stop)()
	f.cfg.Log.Info("started leading the fleet", "identity", f.cfg.Identity)
	defer f.cfg.Log.Info("stopped leading the fleet", "identity", f.cfg.Identity)

	group, ctx := errgroup.WithContext(ctx)
	session, err := NewSession(ctx, f.cfg)
	if err != nil {
		return err
	}
	defer session.wait()
	defer stop()
	defer f.cfg.Metrics.lead(session)()
	for _, run := range f.controllers {
		group.Go(func() error { return run(ctx, session) })
	}
	if err := group.Wait(); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// EnsureNamespace creates a namespace in the control plane if it does not exist.
func EnsureNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	_, err := kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("fleet: create namespace %s: %w", name, err)
	}
	return nil
}
