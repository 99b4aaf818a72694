package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/clusters"
	"github.com/atoll-dev/atoll/fleet/imports"
	"github.com/atoll-dev/atoll/fleet/scaleschedules"
	"github.com/atoll-dev/atoll/fleet/scheduler"
	"github.com/atoll-dev/atoll/fleet/services"
	"github.com/atoll-dev/atoll/fleet/status"
	"github.com/atoll-dev/atoll/fleet/syncer"
	"github.com/atoll-dev/atoll/fleet/taintpolicies"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/volumepolicies"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/tenancy"
)

const (
	// maxFleets is how many workspaces have fleets or providers at the same time. Each has caches of its objects and of its members.
	maxFleets = 32
	// fleetSettles is how long a workspace keeps its fleet after its last Cluster is gone. A request takes a minute at most: see tenancy.FleetIdle.
	fleetSettles = 2 * time.Minute
	// memberNetworksFlag is in errors about the addresses of members.
	memberNetworksFlag = "--workspace-member-networks"
)

// fleets are what the fleets of workspaces share on this server.
type fleets struct {
	// changed receives when marks may have changed.
	changed chan struct{}
	// settle and max are fleetSettles and maxFleets, except in tests.
	settle time.Duration
	max    int
}

// wake never blocks.
func (f *fleets) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// runFleets runs the fleets and the plans of the workspaces that have Clusters or Providers, until ctx ends. It runs on the server that creates and removes workspaces.
func (t *tenants) runFleets(ctx context.Context) error {
	return tenancy.RunFleets(ctx, tenancy.FleetConfig{Marks: t.directory.FleetMarks, Changed: t.fleets.changed, Max: t.fleets.max, Run: t.runFleet,
		Waits: t.fleetWaits, Clock: t.s.cfg.Clock, Log: t.s.cfg.Log})
}

// runFleet runs the fleet and the plans of a workspace until ctx ends, or the workspace is leaving. It keeps the workspace open.
// Errors: tenancy.ErrNotFound.
func (t *tenants) runFleet(ctx context.Context, path string) error {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) {
		return errors.Join(err, t.unmarkGone(ctx, path))
	}
	if err != nil {
		return err
	}
	defer release()
	has, err := t.hasFleet(in, open.Workspace)
	if err != nil {
		return err
	}
	group, in := errgroup.WithContext(in)
	group.Go(func() error { return t.unmarkIdle(in, open.Workspace, path) })
	group.Go(func() error { return t.runPlans(in, open, path) })
	group.Go(func() error {
		if err := t.awaitContent(in, open.Workspace, v1alpha1.ClusterResource.GroupResource()); err != nil {
			return err
		}
		f, prepare, err := t.newFleet(open.Workspace, path, has[mcsv1beta1.GroupName])
		if err != nil {
			return err
		}
		if err := prepare(in); err != nil {
			return err
		}
		return f.RunSession(in)
	})
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // ctx has ended, or the workspace is leaving
	}
	return err
}

// newFleet returns the fleet of a workspace, and a function that creates what a session needs there. Its controllers are clients of the workspace like others: they have its limits, and reach nothing else.
func (t *tenants) newFleet(open *workspaces.Workspace, path string, withServices bool) (_ *fleet.Fleet, prepare func(context.Context) error, err error) {
	config, err := t.served.ClientConfigAs(open, path, fleetUser)
	if err != nil {
		return nil, nil, err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	s := t.s
	all := []fleet.Controller{clusters.NewController(runWorkspaceSyncer, removeNamespaces, nil), scheduler.NewController(scheduler.Config{Fields: imports.NewFields()}),
		status.Run, taintpolicies.Run, volumepolicies.Run, scaleschedules.NewController(config)}
	if withServices {
		all = append(all, services.Run)
	}
	caller := webhooks.NewRestrictedCaller(s.metrics.webhooks, workspaces.RestrictedDial(s.cfg.WorkspaceWebhookNetworks, "webhooks", "--workspace-webhook-networks"))
	f, err := fleet.New(fleet.Config{
		REST:         config,
		Log:          s.cfg.Log.With("workspace", path),
		Clock:        s.cfg.Clock,
		Identity:     s.name,
		ControlPlane: t.controlPlaneOf(open, path),
		InWorkspace:  true,
		Restrict:     s.restrictMember(),
		Answers: func() fleet.AnswerSource {
			return webhooks.NewCache(webhooks.Config{Ask: caller.Ask, Log: s.cfg.Log.With("workspace", path), Clock: s.cfg.Clock})
		},
	}, all...)
	if err != nil {
		return nil, nil, fmt.Errorf("create the fleet's controllers of workspace %s: %w", path, err)
	}
	return f, func(ctx context.Context) error {
		return controllers.EnsureNamespace(ctx, kube, v1alpha1.SystemNamespace)
	}, nil
}

// controlPlaneOf identifies a workspace to its members. A workspace that has moved stays the same control plane. A copy is another one, and so is the
// workspace in restored or copied data of the server.
func (t *tenants) controlPlaneOf(open *workspaces.Workspace, path string) fleet.ControlPlane {
	root := t.s.controlPlane
	return fleet.ControlPlane{ID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("workspace "+root.ID+" "+open.OriginUID())).String(), Database: root.Database,
		Server: root.Server + ", workspace " + path}
}

// runWorkspaceSyncer runs the syncer of a workspace's cluster. Its metrics are not recorded: they would have a series for each cluster of each workspace.
func runWorkspaceSyncer(ctx context.Context, session *fleet.Session, cluster string, member *rest.Config, caughtUp func()) error {
	return syncer.Run(ctx, view.NewLocal(session, cluster), syncer.Options{Cluster: cluster, Clock: session.Clock, Log: session.Log, CaughtUp: caughtUp}, member)
}

// restrictMember returns what restricts the kubeconfigs of workspaces. Their users must not get the server to call what only it can reach. Kubeconfigs
// that run programs or read files are rejected everywhere (fleet.SelfContained).
func (s *Server) restrictMember() func(*rest.Config) error {
	networks := s.cfg.WorkspaceMemberNetworks
	if len(networks) == 0 {
		networks = s.cfg.WorkspaceWebhookNetworks
	}
	dial := workspaces.RestrictedDial(networks, "clusters", memberNetworksFlag)
	return func(member *rest.Config) error {
		if member.Proxy != nil {
			return errors.New("clusters[].cluster.proxy-url: the clusters of a workspace are not reached through a proxy: remove it, and set server to an address that Atoll reaches itself")
		}
		member.Dial = dial
		member.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // not that of the server's environment: it could reach other addresses
		return nil
	}
}

// unmarkIdle removes the mark of an open workspace when it has no Clusters and Providers any more. Then nothing is left to do: a Cluster is gone when its
// objects are, and a Provider when its resources are.
func (t *tenants) unmarkIdle(ctx context.Context, open *workspaces.Workspace, path string) error {
	idle := tenancy.FleetIdle{Settle: t.fleets.settle}
	ticker := t.s.cfg.Clock.NewTicker(max(idle.Settle/10, time.Second))
	defer ticker.Stop()
	for {
		mark := t.directory.FleetMark(path) // before the count
		n, err := t.controlled(ctx, open)
		if err != nil {
			return err
		}
		if idle.Observe(t.s.cfg.Clock.Now(), mark, n) {
			if err := t.directory.UnmarkFleet(ctx, path, mark); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// unmarkGone removes the mark of a workspace that does not exist any more. One that is leaving keeps it: if its move is given up, it is served again.
func (t *tenants) unmarkGone(ctx context.Context, path string) error {
	mark := t.directory.FleetMark(path)
	exists, err := t.mayExist(ctx, path)
	if err != nil || exists || mark == "" {
		return err
	}
	return t.directory.UnmarkFleet(ctx, path, mark)
}

// mayExist reports whether a workspace exists, in whatever state, or a workspace above it cannot be opened now.
func (t *tenants) mayExist(ctx context.Context, path string) (bool, error) {
	parent := tenancy.Parent(path)
	if parent == "" {
		return true, nil // its mark is in its own object
	}
	above, err := t.mayExist(ctx, parent)
	if err != nil || !above {
		return false, err
	}
	in, open, release, err := t.tree.Acquire(ctx, parent)
	if errors.Is(err, tenancy.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer release()
	_, err = t.child(in, open, tenancy.Name(path))
	if errors.Is(err, tenancy.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
