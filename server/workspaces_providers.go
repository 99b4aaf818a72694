package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/apiserver/workspaces"
	"github.com/atoll-dev/atoll/infra/access"
	"github.com/atoll-dev/atoll/infra/plancontroller"
	"github.com/atoll-dev/atoll/infra/providercontroller"
	"github.com/atoll-dev/atoll/tenancy"
)

// contentInterval is how often the elected server looks whether a marked workspace has its first Cluster or Provider.
const contentInterval = time.Second

// workspaceProviders are the providers of one open workspace on this server. Like those of the root, they are on each server that serves the
// workspace. They begin with the first request that needs them, if the workspace has Providers then, and last as long as the workspace is open.
type workspaceProviders struct {
	t         *tenants
	workspace *workspaces.Workspace
	path      string

	mu     sync.Mutex
	closed bool
	open   *openProviders // nil until a request needs it
}

// openProviders are the registry of the providers of a workspace, and the server of their kinds.
type openProviders struct {
	*kinds.Server
	registry *providercontroller.Registry
	dirs     providerDirs
	stop     context.CancelFunc
	running  sync.WaitGroup
}

func (t *tenants) newProviders(w *workspaces.Workspace, path string) *workspaceProviders {
	return &workspaceProviders{t: t, workspace: w, path: path}
}

// serve returns the kinds of the workspace's providers, as workspaces.Workspace.OnKinds.
func (p *workspaceProviders) serve(ctx context.Context) (workspaces.Kinds, error) {
	open, err := p.get(ctx)
	if err != nil || open == nil {
		return nil, err
	}
	return open, nil
}

var errWorkspaceClosed = errors.New("the workspace is closed: repeat the request")

// get returns the providers of the workspace, and opens them for the first request. They are nil if the workspace has none.
func (p *workspaceProviders) get(ctx context.Context) (*openProviders, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, errWorkspaceClosed
	case p.open != nil:
		return p.open, nil
	}
	n, err := p.t.providersOf(ctx, p.workspace)
	if err != nil || n == 0 {
		return nil, err
	}
	p.open, err = p.start()
	return p.open, err
}

// start opens the providers of the workspace. With those of the root and of other workspaces, they share the range of their users, the key of
// the journals of calls, and the program that contains them.
func (p *workspaceProviders) start() (_ *openProviders, err error) {
	i := p.t.infra
	open := &openProviders{}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the providers of workspace %s: %w", p.path, errors.Join(err, open.close()))
		}
	}()
	if open.dirs, err = i.dirs.ofWorkspace(p.workspace.OriginUID(), p.workspace.UID()); err != nil {
		return nil, err
	}
	config := i.registryConfig(open.dirs)
	config.Log = config.Log.With("workspace", p.path)
	config.UserScope = p.workspace.OriginUID()
	config.Permit = func(spec *v1alpha1.ProviderSpec) error {
		return i.permitted.Check(spec, workspaceProviderFlag).ToAggregate()
	}
	config.Protected = append(slices.Clone(config.Protected), open.dirs.run)
	config.StoredResources = func(ctx context.Context, group string) ([]string, error) { return open.StoredResources(ctx, group) }
	if open.registry, err = providercontroller.New(config); err != nil {
		return nil, err
	}
	client, err := p.t.served.ClientConfigAs(p.workspace, p.path, infraUser)
	if err != nil {
		return nil, err
	}
	var clients providercontroller.Clients
	if clients.Dynamic, err = dynamic.NewForConfig(client); err != nil {
		return nil, err
	}
	if clients.Metadata, err = metadata.NewForConfig(client); err != nil {
		return nil, err
	}
	open.registry.Connect(clients)
	end, err := p.t.served.KindsEnd(p.workspace)
	if err != nil {
		return nil, err
	}
	open.Server = kinds.New(newProviderKinds(open.registry, i.language), kinds.ChainEnd(end))
	ctx, stop := context.WithCancel(context.Background())
	open.stop = stop
	open.running.Go(func() { open.Run(ctx, func(group string) string { return p.definedElsewhere(ctx, group) }) })
	open.running.Go(func() {
		if err := open.registry.Run(ctx); err != nil {
			config.Log.Error("follow the Providers of a workspace failed", "error", err)
		}
	})
	return open, nil
}

// definedElsewhere returns what else serves a group in the workspace, "" if nothing does: it may have defined or bound one below the domain of
// Providers with an earlier version of Atoll.
func (p *workspaceProviders) definedElsewhere(ctx context.Context, group string) string {
	defined, err := p.t.served.DefinedGroups(ctx, p.workspace)
	if err != nil {
		return "definitions that cannot be read now"
	}
	if defined[group] {
		return "CustomResourceDefinitions of the workspace"
	}
	stored, err := p.t.storedBindings(ctx, p.workspace)
	if err != nil {
		return "APIBindings that cannot be read now"
	}
	for _, b := range stored {
		if slices.Contains(groupsOf(b.Spec.Resources), group) {
			return "APIBinding " + b.Name
		}
	}
	return ""
}

// close ends the providers before the workspace is closed. No process of them is left, except for keepers that finish calls.
func (p *workspaceProviders) close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	open := p.open
	p.closed, p.open = true, nil
	p.mu.Unlock()
	if open == nil {
		return nil
	}
	return open.close()
}

func (o *openProviders) close() error {
	if o.stop != nil {
		o.stop()
		o.running.Wait()
	}
	var err error
	if o.registry != nil {
		err = o.registry.Close()
	}
	return errors.Join(err, o.dirs.Close())
}

// closeAll ends the providers of a workspace, closes it, and then its keyspace.
func (o *tenant) closeAll() error {
	err := o.providers.close()
	o.Close()
	return errors.Join(err, o.close())
}

// providersOf returns how many Providers an open workspace has that the server runs.
func (t *tenants) providersOf(ctx context.Context, open *workspaces.Workspace) (int64, error) {
	return t.countServed(ctx, open, v1alpha1.ProviderResource.GroupResource())
}

// countServed returns how many objects of a kind an open workspace has, if it has the kind from the server.
func (t *tenants) countServed(ctx context.Context, open *workspaces.Workspace, resource schema.GroupResource) (int64, error) {
	n, err := open.Count(ctx, resource)
	if err != nil || n == 0 {
		return 0, err
	}
	has, err := t.hasFleet(ctx, open)
	if err != nil || !has[resource.Group] {
		return 0, err
	}
	return n, nil
}

// awaitContent waits until an open workspace has an object of a kind from the server.
func (t *tenants) awaitContent(ctx context.Context, open *workspaces.Workspace, resource schema.GroupResource) error {
	ticker := t.s.cfg.Clock.NewTicker(contentInterval)
	defer ticker.Stop()
	for {
		if n, err := t.countServed(ctx, open, resource); err != nil || n > 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// runPlans runs the plans and applies of a workspace that has Providers, until ctx ends. It runs on one server, with the workspace's fleet.
func (t *tenants) runPlans(ctx context.Context, open *tenant, path string) error {
	if err := t.awaitContent(ctx, open.Workspace, v1alpha1.ProviderResource.GroupResource()); err != nil {
		return err
	}
	providers, err := open.providers.get(ctx)
	if err != nil {
		return err
	}
	if providers == nil {
		return fmt.Errorf("the Providers are gone again: %w", tenancy.ErrNotFound)
	}
	registry := providers.registry
	select { // as for the root: see infrastructure.runPlans
	case <-registry.Synced():
	case <-ctx.Done():
		return ctx.Err()
	}
	config, err := t.served.ClientConfigAs(open.Workspace, path, infraUser)
	if err != nil {
		return err
	}
	values, err := access.NewValues(config, infraUser, registry)
	if err != nil {
		return fmt.Errorf("create the clients that read values for plans: %w", err)
	}
	controllers, err := plancontroller.New(plancontroller.Config{
		REST: config, Values: values, Keyspace: open.Keyspace(), Decode: t.served.Decrypt,
		Providers: registry, Types: groupNames{registry}, Language: t.infra.language,
		LeaderRunnables: []func(context.Context) error{registry.RunElected},
		Log:             t.s.cfg.Log.With("workspace", path), Clock: t.s.cfg.Clock, Identity: t.s.name,
		Journal: registry.Journal(), Acknowledge: registry.Acknowledge, OnLargeRun: t.s.cfg.largeWork(),
	})
	if err != nil {
		return fmt.Errorf("create the plan and apply controllers: %w", err)
	}
	return controllers.Lead(ctx)
}
