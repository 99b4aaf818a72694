// Package fleet runs the controllers that join real clusters to one control plane. It installs the
// fleet's CRDs, elects one server to act, and gives the controllers shared clients and caches.
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
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/multicluster"
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
	// ControlPlane claims the members. Without an ID, no member is claimed.
	ControlPlane ControlPlane
	// Metrics records the state of the fleet; it may be nil.
	Metrics *Metrics
	// InWorkspace is set if the control plane is a workspace. It has no FleetQuotas, imported or negotiated types, so custom kinds are not placed.
	InWorkspace bool
	// Restrict, if set, changes the configuration with which a member is reached, or rejects it. Its error names the remedy.
	Restrict func(member *rest.Config) error
	// Answers returns a new source of the answers of webhooks for one session. Without it, no webhook
	// answers.
	Answers func() AnswerSource
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
	election := controllers.Election{REST: f.cfg.REST, Namespace: LeaseNamespace, Name: LeaseName,
		Identity: f.cfg.Identity, SingleServer: f.cfg.SingleServer, Clock: f.cfg.Clock, Log: f.cfg.Log,
		Prepare: func(ctx context.Context) error { return InstallCRDs(ctx, f.cfg.REST) }}
	election.Run(ctx, f.RunSession)
	return nil
}

// RunSession runs the controllers until ctx ends or one of them fails. The caller ensures that no other server does so at the same time, and that
// the fleet's kinds are served.
func (f *Fleet) RunSession(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	session, err := NewSession(ctx, f.cfg)
	if err != nil {
		return err
	}
	defer session.Wait()
	defer f.cfg.Metrics.lead(session)()
	for _, run := range f.controllers {
		group.Go(func() error { return run(ctx, session) })
	}
	return group.Wait()
}

// InstallCRDs installs or updates the fleet's CRDs and returns when they are served.
func InstallCRDs(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("install the fleet's CRDs: %w", err)
	}
	crds, err := v1alpha1.CRDs()
	if err != nil {
		return fmt.Errorf("install the fleet's CRDs: %w", err)
	}
	shared, err := multicluster.CRDs()
	if err != nil {
		return fmt.Errorf("install the CRDs of multi-cluster Services: %w", err)
	}
	return controllers.InstallCRDs(ctx, client, "atoll-fleet", slices.Concat(crds, shared))
}
