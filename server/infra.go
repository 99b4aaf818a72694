package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/apiserver/kinds"
	"github.com/atoll-dev/atoll/infra/access"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/plancontroller"
	"github.com/atoll-dev/atoll/infra/providercontroller"
)

// infraUser is the user in the audit log for the infrastructure controllers.
const infraUser = "atoll:infra"

// infrastructure wires everything about infrastructure together: the provider registry,
// what the API server serves of it, and the controllers that plan and apply. Its parts are
// opened before the API server, extend the configuration of that, and are connected to it
// afterwards.
type infrastructure struct {
	cfg       Config
	metrics   *metrics
	providers *providercontroller.Registry
	language  *expr.Language
	dirs      providerDirs
	users     providerUserNames
	protected []string // paths that no Provider may grant
	// permitted are the sources of providers that workspaces may run.
	permitted providercontroller.Permitted
	// api is set once there is one, and client returns a client of it.
	api    *apiserver.Server
	client apiClient
}

// openInfrastructure opens the provider registry, before there is an API.
func openInfrastructure(cfg Config, metrics *metrics) (_ *infrastructure, err error) {
	i := &infrastructure{cfg: cfg, metrics: metrics}
	client := sync.OnceValues(func() (dynamic.Interface, error) {
		return dynamic.NewForConfig(i.api.ClientConfig(serverUser))
	})
	i.client = func(context.Context) (dynamic.Interface, error) { return client() }
	defer func() {
		if err != nil {
			err = errors.Join(err, i.Close())
		}
	}()
	if i.language, err = expr.New(); err != nil {
		return nil, err
	}
	if i.permitted, err = providercontroller.ParsePermitted(cfg.WorkspaceProviders); err != nil {
		return nil, err
	}
	if i.users, err = cfg.providerUsers(); err != nil {
		return nil, err
	}
	if i.dirs, err = openProviderDirs(cfg.DataDir, i.users); err != nil {
		return nil, err
	}
	if i.protected, err = cfg.protectedPaths(i.dirs.run); err != nil {
		return nil, err
	}
	config := i.registryConfig(i.dirs)
	config.Development, config.Metrics = cfg.AllowDevelopmentProviders, metrics.providers
	config.StoredResources = func(ctx context.Context, group string) ([]string, error) { return i.api.StoredResources(ctx, group) }
	if i.providers, err = providercontroller.New(config); err != nil {
		return nil, fmt.Errorf("open the provider registry: %w", err)
	}
	return i, nil
}

// registryConfig returns the part of the configuration of a provider registry that the root and all workspaces have in common.
func (i *infrastructure) registryConfig(dirs providerDirs) providercontroller.Config {
	cfg := &i.cfg
	host, err := os.Hostname()
	if err != nil {
		host = "" // the Registry has its own notation for it
	}
	return providercontroller.Config{
		Directory: dirs.dir, RunDirectory: dirs.run,
		Mirrors: cfg.ProviderMirrors,
		User:    i.users.fixed, Users: i.users.each, Launcher: cfg.ProviderLauncher, Protected: i.protected,
		// Providers use the same proxies and CAs as the server for outgoing
		// connections.
		Inherit:    []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"},
		Server:     host,
		Keeper:     cfg.ProviderKeeper,
		JournalKey: journalKey(cfg.DataDir),
		Log:        cfg.Log, Clock: cfg.Clock,
	}
}

// Close ends the providers.
func (i *infrastructure) Close() error {
	var errs []error
	if i.providers != nil {
		errs = append(errs, i.providers.Close())
	}
	return errors.Join(append(errs, i.dirs.Close())...)
}

// extend adds infrastructure to the configuration of the API server: the providers' types,
// subresources, steps of admission, and roles.
func (i *infrastructure) extend(c *apiserver.Config) {
	c.Kinds = func(end apiserver.ChainEnd) apiserver.KindServer {
		return kinds.New(newProviderKinds(i.providers, i.language), kinds.ChainEnd(end))
	}
	c.Subresources = append(c.Subresources, planChanges(i.client), providerTypes(func(context.Context) (*providercontroller.Registry, error) { return i.providers, nil }))
	c.Admission = append(c.Admission, infraAdmission(i.client)...)
	c.Admission = append(c.Admission, providerFiles(i.protected))
	c.KeepNamespace = namespacesWithResources(i.client)
	c.ClusterRoles = slices.Concat(c.ClusterRoles, infraRoles())
	// Each object of infrastructure has one ResourceState, which is deleted with the
	// object, so they need no garbage collection.
	c.Unowned = append(c.Unowned, v1alpha1.ResourceStateResource)
}

// clientConfig returns the infrastructure controllers' client configuration. It has no
// rate limit, because the API has priority and fairness.
func (i *infrastructure) clientConfig() *rest.Config {
	config := i.api.ClientConfig(infraUser)
	config.QPS, config.Burst = -1, -1
	return config
}

// connect connects the provider registry to the API, once there is one.
func (i *infrastructure) connect(api *apiserver.Server) error {
	i.api = api
	config := i.clientConfig()
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	i.providers.Connect(providercontroller.Clients{Dynamic: objects, Metadata: meta})
	return nil
}

// runProviders installs the CRDs of infrastructure and watches Providers.
func (i *infrastructure) runProviders(ctx context.Context) error {
	if !awaitServing(ctx, i.api) {
		return nil
	}
	client, err := dynamic.NewForConfig(i.clientConfig())
	if err != nil {
		return err
	}
	for {
		err := providercontroller.InstallCRDs(ctx, client)
		if err == nil {
			err = access.InstallReferenceGrants(ctx, client, infraUser)
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		i.cfg.Log.Error("cannot install the infrastructure CRDs; retrying", "err", err)
		timer := i.cfg.Clock.NewTimer(time.Second)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return i.providers.Run(ctx)
}

// planning is what the controllers of plans and applies need of the server, besides the
// API.
type planning struct {
	keyspace     *clientv3.Client
	identity     string
	singleServer bool
}

// runPlans runs plans, applies and the other work on infrastructure that only one server
// does, once the API is ready.
func (i *infrastructure) runPlans(ctx context.Context, p planning) error {
	if !awaitServing(ctx, i.api) {
		return nil
	}
	// An apply that resumes before all kinds are served would take their objects for
	// deleted. Meanwhile another server may lead.
	select {
	case <-i.providers.Synced():
	case <-ctx.Done():
		return nil
	}
	values, err := access.NewValues(i.clientConfig(), infraUser, i.providers)
	if err != nil {
		return fmt.Errorf("create the clients that read values for plans: %w", err)
	}
	controllers, err := plancontroller.New(plancontroller.Config{
		REST:            i.clientConfig(),
		Values:          values,
		Keyspace:        p.keyspace,
		Decode:          i.api.Decrypt,
		Providers:       i.providers,
		Types:           groupNames{i.providers},
		Language:        i.language,
		LeaderRunnables: []func(context.Context) error{i.providers.RunElected},
		Log:             i.cfg.Log,
		Clock:           i.cfg.Clock,
		Identity:        p.identity,
		SingleServer:    p.singleServer,
		Metrics:         i.metrics.plans,

		Journal: i.providers.Journal(), Acknowledge: i.providers.Acknowledge, OnLargeRun: i.cfg.largeWork(),
	})
	if err != nil {
		return fmt.Errorf("create the plan and apply controllers: %w", err)
	}
	return controllers.Run(ctx)
}

// groupNames adapts the Registry to feed.Types.
type groupNames struct{ *providercontroller.Registry }

// Groups returns the API groups of all Providers.
func (g groupNames) Groups() []string {
	var out []string
	for _, group := range g.Registry.Groups() {
		out = append(out, group.Name)
	}
	return out
}

func (c *Config) largeWork() func(bool) func() {
	if c.LargeWork != nil {
		return c.LargeWork
	}
	return func(bool) func() { return debug.FreeOSMemory }
}
