package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infrav1alpha1 "github.com/atoll-dev/atoll/api/infra/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/kv"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/partition"
	"github.com/atoll-dev/atoll/tenancy"
	"github.com/atoll-dev/atoll/tenancy/reach"
)

const (
	// tenancyUser is the user in the audit log for what concerns workspaces.
	tenancyUser = "atoll:tenancy"
	// workspaceIdle is how long a workspace stays open after its last request, unless Config.WorkspaceIdle is set.
	workspaceIdle = time.Minute
	// workspaceOpenTimeout bounds the opening of a workspace.
	workspaceOpenTimeout = 20 * time.Second
	// workspacesOpening is how many workspaces are opened at the same time.
	workspacesOpening = 16
	// workspaceEndTimeout bounds the wait for the requests of a workspace that is being deleted.
	workspaceEndTimeout = 10 * time.Second
	// workspaceGrace is how long requests to workspaces may take to end when the server stops.
	workspaceGrace = time.Second
	// workspaceCache limits the engine's cache of a workspace, in bytes.
	workspaceCache = 256 << 10
	// purgeRows is how many rows of dropped keyspaces one transaction removes.
	purgeRows = 2000
)

// tenants are the workspaces below this server's own.
type tenants struct {
	s         *Server
	served    *workspaces.Server
	directory *tenancy.Directory
	marker    *tenancy.Marker
	pool      *tenancy.Pool[*tenant]
	limiting  sync.Mutex // see applyLimits
	// client writes statuses while running lasts. Both are set before the pool runs.
	client  dynamic.Interface
	running context.Context
	tree    *tenancy.Tree[*tenant]
	system  systemWorkspace
	// rootAllows is apiserver.ForWorkspaces.Allows.
	rootAllows func(ctx context.Context, verb string, resource schema.GroupVersionResource, name string) (bool, error)
	copies     copies
	// moving is held while a workspace gets another path, and while one is removed that has a part in a move.
	moving sync.Mutex
	paths  openPaths
	fleets fleets
	// reach shows the pods of workspaces whose parents place their objects.
	reach *reach.Shared
	// placing has the *placements that run, by the paths of their workspaces.
	placing sync.Map
	// infra has what the providers of all workspaces share with those of the root.
	infra *infrastructure
	// encryption encrypts their objects with a new key.
	encryption workspaceEncryption
}

// tenant is an open workspace.
type tenant struct {
	*workspaces.Workspace
	keyspace  *partition.Keyspace
	providers *workspaceProviders
	close     func() error
}

// serveWorkspaces creates the handler of the workspaces below this server's own.
func (s *Server) serveWorkspaces(ctx context.Context) func(apiserver.ForWorkspaces) (http.Handler, error) {
	return func(root apiserver.ForWorkspaces) (_ http.Handler, err error) {
		definitions, err := systemDefinitions()
		if err != nil {
			return nil, err
		}
		t := &tenants{s: s, rootAllows: root.Allows, fleets: fleets{changed: make(chan struct{}, 1), settle: fleetSettles, max: maxFleets}, infra: s.infra, reach: reach.NewShared(s.cfg.Clock)}
		t.encryption = newWorkspaceEncryption(t)
		rootCA, err := os.ReadFile(s.pki.file(caCert))
		if err != nil {
			return nil, fmt.Errorf("read the root certificate: %w", err)
		}
		t.pool = tenancy.NewPool(ctx, tenancy.Config[*tenant]{Open: t.open, Close: t.close, Idle: cmp.Or(s.cfg.WorkspaceIdle, workspaceIdle), OpenTimeout: workspaceOpenTimeout,
			Grace: workspaceGrace, MaxOpening: workspacesOpening, Clock: s.cfg.Clock, Metrics: s.metrics.tenancy})
		t.served, err = workspaces.New(context.WithoutCancel(ctx), workspaces.Config{
			Open:                  t.acquire,
			Bindings:              t.bindings,
			Confirm:               t.confirm,
			Exports:               t.exports,
			System:                definitions,
			Definitions:           t.openSystem,
			Root:                  t.rootOf(root),
			Admission:             t.nestedAdmission(),
			Subresources:          t.infraSubresources(),
			KeepNamespace:         t.keepNamespace,
			Elsewhere:             t.elsewhere,
			ObserveLabel:          s.observeCopies(),
			KindsDomain:           infrav1alpha1.ProvidersDomain,
			ClusterRoles:          slices.Concat(workspaceFleetRoles(), infraRoles(), []rbacv1.ClusterRole{placementRole()}),
			WebhookNetworks:       s.cfg.WorkspaceWebhookNetworks,
			People:                root.People,
			Transformer:           root.Transformer,
			AuditBackend:          root.AuditBackend,
			AuditPolicy:           root.AuditPolicy,
			ServiceAccountKeyFile: s.pki.file(serviceAccountKey),
			RootCA:                rootCA,
			MaxTokenAge:           s.cfg.MaxTokenAge,
			WorkloadAPIs:          !s.cfg.WithoutWorkloadAPIs,
			Reservations:          map[schema.GroupResource]func(runtime.Object) (kv.Usage, error){tenancyv1alpha1.WorkspaceResource.GroupResource(): tenancy.BudgetOf},
			Shared:                s.datastore.Shared(),
			Log:                   s.cfg.Log,
		})
		if err != nil {
			return nil, err
		}
		s.tenants = t
		s.closers = append(s.closers, t.served)
		return t.served, nil
	}
}

// acquire opens a workspace for a request.
func (t *tenants) acquire(ctx context.Context, path string) (context.Context, *workspaces.Workspace, func(), error) {
	in, open, release, err := t.tree.Acquire(ctx, path)
	if errors.Is(err, tenancy.ErrNotFound) {
		err = workspaces.ErrNotFound
	}
	if err != nil {
		return nil, nil, nil, err
	}
	return in, open.Workspace, release, nil
}

// workspaceKeyspaces begins the names of the keyspaces of workspaces.
const workspaceKeyspaces = "workspace-"

// keyspaceOf is the name of a workspace's keyspace. It has the UID, which no other workspace ever gets.
func keyspaceOf(uid string) string { return workspaceKeyspaces + uid }

// open opens a workspace's keyspace, and creates it for the first request.
func (t *tenants) open(ctx context.Context, key string) (_ *tenant, err error) {
	uid, path := tenancy.ParseKey(key)
	if err := t.closeFormer(ctx, uid, path, key); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.paths.leave(uid, key)
		}
	}()
	if err := t.checkComplete(ctx, uid, path); err != nil {
		return nil, err
	}
	options := t.keyspaceOptions(keyspaceOf(uid))
	keyspace, err := t.s.datastore.ExistingKeyspace(ctx, keyspaceOf(uid), options)
	var w *tenancyv1alpha1.Workspace // nil if the keyspace exists
	if errors.Is(err, kv.ErrKeyNotFound) {
		if w, err = t.tree.Confirm(ctx, path, uid); err != nil {
			return nil, err
		}
		if keyspace, err = t.s.datastore.Keyspace(ctx, keyspaceOf(uid), options); err == nil {
			err = t.confirmCreated(ctx, path, uid, keyspace)
		}
	}
	if err != nil {
		return nil, err
	}
	// One name for all: upstream records the features of each endpoint for ever.
	client, err := etcd.InProcess(keyspace, "workspaces")
	if err != nil {
		return nil, errors.Join(err, keyspace.Close())
	}
	open := &tenant{Workspace: workspaces.NewWorkspace(uid, client), keyspace: keyspace, close: func() error {
		_ = client.Close() // it has no connection
		return keyspace.Close()
	}}
	t.watchDue(open, uid, path)
	open.providers = t.newProviders(open.Workspace, path)
	open.OnKinds(open.providers.serve)
	if err := t.served.Initialize(ctx, open.Workspace, t.beginning(uid, path, w)); err != nil {
		return nil, errors.Join(err, open.close())
	}
	if err := t.limit(ctx, uid, path, open); err != nil { // after Initialize: with any limits, a new workspace is complete
		return nil, errors.Join(err, open.close())
	}
	if err := t.markFleet(ctx, open, path); err != nil {
		return nil, errors.Join(err, open.close())
	}
	return open, nil
}

func (t *tenants) close(key string, open *tenant) {
	if t.running.Err() == nil { // not when the server stops
		t.report(t.running, key, open)
	}
	if err := open.closeAll(); err != nil {
		t.s.cfg.Log.Warn("close a workspace failed", "workspace", key, "error", err)
	}
	uid, _ := tenancy.ParseKey(key)
	t.paths.leave(uid, key)
}

// runWorkspaces serves workspaces, and on one server creates and removes them, until ctx ends.
func (s *Server) runWorkspaces(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	t := s.tenants
	if err := os.RemoveAll(filepath.Join(s.cfg.DataDir, uploads)); err != nil { // what a crash has left
		return fmt.Errorf("remove the files of unfinished restores: %w", err)
	}
	crds, err := tenancyv1alpha1.CRDs()
	if err != nil {
		return err
	}
	config := s.api.ClientConfig(tenancyUser)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	election := controllers.Election{REST: config, Namespace: v1alpha1.SystemNamespace, Name: "atoll-tenancy", Identity: s.name,
		SingleServer: !s.datastore.Shared(), Clock: s.cfg.Clock, Log: s.cfg.Log,
		Prepare: func(ctx context.Context) error {
			return controllers.InstallCRDs(ctx, client, tenancy.FieldManager, crds)
		}}
	group, ctx := errgroup.WithContext(ctx)
	t.client, t.running = client, ctx
	close(t.encryption.ready)
	// Each server ends its own requests; the elected one also removes the objects.
	if err := t.directory.OnLeaving(func(w *tenancyv1alpha1.Workspace) {
		if w.Spec.MovedTo == nil || t.mayEnd() {
			go t.end(ctx, w.Name, w)
		}
	}); err != nil {
		return err
	}
	if err := t.directory.NotifyFollowers(); err != nil {
		return err
	}
	if err := t.directory.OnLimits(func(w *tenancyv1alpha1.Workspace) { go t.limitsChanged(tenancy.Key(string(w.UID), w.Name)) }); err != nil {
		return err
	}
	if err := t.directory.OnFleets(t.fleets.wake); err != nil {
		return err
	}
	if err := t.directory.OnChangesBelow(func(parent string) { go t.changedBelow(ctx, parent) }); err != nil {
		return err
	}
	group.Go(func() error { t.prepare(ctx); return nil })
	group.Go(func() error { t.reportUsage(ctx); return nil })
	group.Go(func() error { return t.directory.Run(ctx) })
	group.Go(func() error { return t.pool.Run(ctx) })
	group.Go(func() error {
		election.Run(ctx, func(ctx context.Context) error {
			return runAll(ctx, t.runFleets, func(ctx context.Context) error {
				return tenancy.RunController(ctx, tenancy.ControllerConfig{Client: client, Directory: t.directory, Clock: s.cfg.Clock, Log: s.cfg.Log,
					Create: t.create, Remove: t.remove, Open: t.openFor, Settle: t.settleBudgets, Finish: t.finish, Place: t.place})
			})
		})
		return nil
	})
	defer t.closeSystem()
	defer t.copies.endAll()
	return group.Wait()
}

// prepare builds what all workspaces share when there is a Workspace, so that the first request to one on this server need not wait for it.
func (t *tenants) prepare(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range t.directory.Follow(ctx) {
		if err := t.served.Prepare(); err != nil {
			t.s.cfg.Log.Error("the server cannot serve workspaces", "error", err)
		}
		return
	}
}

// create makes a workspace complete, as the first request to it would, unless it is to be a copy, or another one moves there.
// Errors: *tenancy.Unready.
func (t *tenants) create(ctx context.Context, path string, w *tenancyv1alpha1.Workspace) error {
	if err := t.copySource(ctx, path, w); err != nil {
		return err
	}
	if err := t.moveSource(ctx, path, w); err != nil {
		return err
	}
	_, _, release, err := t.pool.Acquire(ctx, tenancy.Key(string(w.UID), path))
	if err != nil {
		return err
	}
	release()
	return nil
}

// workspaceAdmission records the owners of workspaces of the root, keeps their finalizer, and gives them the contents of their type or source.
func (s *Server) workspaceAdmission() []apiserver.AdmissionStep {
	types := s.rootTypes()
	return []apiserver.AdmissionStep{{
		Resource: tenancyv1alpha1.WorkspaceResource.GroupResource(),
		Resolve:  s.resolveWorkspace(types),
		Complete: completeWorkspace(tenancyUser),
		CheckDelete: func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			return s.tenants.checkFleetBelow(ctx, r)
		},
		Check: func(ctx context.Context, r *apiserver.AdmissionRequest) error {
			if err := types.check(ctx, r); err != nil {
				return err
			}
			if err := s.tenants.checkPlacement(ctx, r.Name, r, types); err != nil {
				return err
			}
			if err := s.tenants.checkChildren(ctx, r.Name, r); err != nil {
				return err
			}
			return s.tenants.checkSource(ctx, r)
		},
	}, s.typeAdmission()}
}

// resolveWorkspace gives a new Workspace the contents of its type, or lets it begin as a copy.
func (s *Server) resolveWorkspace(types workspaceTypes) func(context.Context, *apiserver.AdmissionRequest) error {
	return func(ctx context.Context, r *apiserver.AdmissionRequest) error {
		if err := s.tenants.resolveSource(ctx, r); err != nil {
			return err
		}
		if err := s.tenants.checkAboveDefault(ctx, r); err != nil {
			return err
		}
		return types.resolve(ctx, r)
	}
}

// completeWorkspace sets the fields of Workspaces that no user sets. server is the user that removes their finalizer.
func completeWorkspace(server string) func(*apiserver.AdmissionRequest) {
	owner := recordUser("owner")
	return func(r *apiserver.AdmissionRequest) {
		if r.Old != nil || sourceOf(r, "moveFrom") == "" {
			owner(r) // a workspace that moves keeps its owner
		}
		keepSource(r)
		keepMovedTo(r, server)
		keepFinalizer(r, server)
		if r.Old != nil {
			tenancy.KeepType(r.Old, r.Object)
		}
	}
}
