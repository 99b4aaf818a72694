package server

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/fleet/expose"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/quotas"
	"github.com/atoll-dev/atoll/fleet/scaleschedules"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/services"
	"github.com/atoll-dev/atoll/fleet/status"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/taintpolicies"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/volumepolicies"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/infra/placing"
)

// fleetUser is the user in the audit log for the fleet's controllers.
const fleetUser = "atoll:fleet"

// runFleet runs the fleet's controllers once the API is ready.
func (s *Server) runFleet(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	ca, err := os.ReadFile(s.pki.file(caCert))
	if err != nil {
		return fmt.Errorf("read the CA certificate with which members verify this server: %w", err)
	}
	objects, err := dynamic.NewForConfig(s.infra.clientConfig())
	if err != nil {
		return err
	}
	fields := imports.NewFields() // shared: the one discovers fields, the other uses them
	policies, credentials := placing.NewPolicies(objects, s.cfg.Clock), placing.NewCredentials(objects, s.cfg.Clock)
	decisions := scheduler.NewController(scheduler.Config{Fields: fields, Manual: policies, Credentials: credentials, Metrics: s.metrics.scheduler})
	f, err := fleet.New(fleet.Config{
		REST:         s.api.ClientConfig(fleetUser),
		Log:          s.cfg.Log,
		Clock:        s.cfg.Clock,
		Identity:     s.name,
		SingleServer: !s.datastore.Shared(),
		ControlPlane: s.controlPlane,
		Metrics:      s.metrics.fleet,
		Answers:      s.newAnswers,
	}, clusters.NewController(s.runSyncer, removeNamespaces, s.metrics.clusters), decisions, status.Run, quotas.Run,
		expose.NewController(ca, s.metrics.shared), imports.NewController(fields), taintpolicies.Run, volumepolicies.Run,
		services.Run, scaleschedules.NewController(s.api.ClientConfig(fleetUser)), view.NewSigner(s.signSyncer))
	if err != nil {
		return fmt.Errorf("create the fleet's controllers: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return policies.Run(ctx) })
	group.Go(func() error { return credentials.Run(ctx) })
	group.Go(func() error { return f.Run(ctx) })
	return group.Wait()
}

// newAnswers returns a source of the answers of webhooks for one session.
func (s *Server) newAnswers() fleet.AnswerSource {
	return webhooks.NewCache(webhooks.Config{Ask: s.webhooks.Ask, Log: s.cfg.Log, Clock: s.cfg.Clock})
}

// removeNamespaces deletes the fleet's empty namespaces in a cluster that leaves.
func removeNamespaces(ctx context.Context, session *fleet.Session, cluster string, member *rest.Config) error {
	return syncer.RemoveNamespaces(ctx, session.Log, cluster, member)
}

// runSyncer runs a cluster's syncer in this process, with the caches of the session.
func (s *Server) runSyncer(ctx context.Context, session *fleet.Session, cluster string, member *rest.Config, caughtUp func()) error {
	return syncer.Run(ctx, view.NewLocal(session, cluster), syncer.Options{Cluster: cluster, Clock: session.Clock, Log: session.Log, Metrics: s.metrics.syncers, CaughtUp: caughtUp}, member)
}
