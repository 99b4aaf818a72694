// Package server builds a complete Atoll server from one Config: datastore, keyspace,
// certificates, API server and controllers. It is the only package that knows them all.
// Tests use it to start a real server, on port 0.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quotas"
	"github.com/atoll-dev/atoll/fleet/reach"
	"github.com/atoll-dev/atoll/fleet/tunnel"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/fleet/webhooks"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/tenancy"
)

// Workspace is the name of the workspace that a server serves, and of its keyspace.
const Workspace = "default"

// keyspaceCache limits the engine's own cache below an API server, whose watch caches
// already hold every object and answer its reads. The engine still has to compare
// revisions of objects that change often: leases, statuses.
const keyspaceCache = 4 << 20

const (
	// minRetention is slightly longer than a client takes to reconnect.
	minRetention = time.Minute
	// defaultRetention is Kubernetes' default.
	defaultRetention = 5 * time.Minute
)

// Config configures a Server. Only DataDir is required.
type Config struct {
	// DataDir holds certificates, keys, the admin's kubeconfig and, unless Datastore is
	// set, the embedded datastore. It is created if missing.
	DataDir string
	// Datastore is the URL of the database; empty is sqlite:// in DataDir.
	Datastore string
	// TokenFile holds the token that decrypts the keys shared by all servers of an
	// external datastore. If empty, the token in DataDir is used. The first server of a
	// datastore creates it.
	TokenFile string

	// HistoryRetention is how long past versions of objects can be watched and listed;
	// 0 is 5 minutes, as in Kubernetes.
	HistoryRetention time.Duration
	// HistoryMaxChanges also limits the number of past versions; 0 is unlimited.
	// Versions younger than two minutes are always kept.
	HistoryMaxChanges int64

	// TracingConfigFile is upstream's TracingConfiguration: where spans are sent, and
	// how many requests are traced. Empty disables tracing.
	TracingConfigFile string

	// Partitions are resources or key prefixes that get their own sequence of revisions
	// and commits, in a datastore that holds none of their objects yet.
	Partitions []string

	// BindAddress is an IP; empty is 127.0.0.1.
	BindAddress string
	// SecurePort to listen on; 0 is any free one.
	SecurePort int
	// MemberPort is the port that the API servers of member clusters call for the
	// groups exposed to them; 0 is any free port, WithoutMemberPort disables it.
	MemberPort int
	// MemberAddress is the IP, or IP:PORT, at which they reach that port. Empty is
	// BindAddress, or this machine's first address if BindAddress is unspecified; if that
	// is a loopback address, members are not served. If BindAddress is a loopback address,
	// the member port is opened on MemberAddress.
	MemberAddress string
	// Cluster is the member cluster that this server runs in, if any. That member calls
	// no other server while this one is available.
	Cluster string
	// TLSNames are additional host names and IPs for the server's certificate.
	TLSNames []string

	// ReadOnly serves the data without changing it: changes by users are refused, no
	// controllers run, and members are neither served nor written to.
	ReadOnly bool

	// WithoutWorkloadAPIs serves a pure control plane: no Pods, no apps.
	WithoutWorkloadAPIs bool

	// ProviderMirrors are the directories that may contain the mirrors which Providers
	// name.
	ProviderMirrors []string
	// AllowDevelopmentProviders lets Providers name unverified programs on this
	// machine.
	AllowDevelopmentProviders bool
	// WorkspaceProviders are the sources of the providers that workspaces may run; see
	// providercontroller.Permitted. By default workspaces cannot have Providers.
	WorkspaceProviders []string
	// ProviderUser, as UID:GID, is the user that all providers run as. It requires root.
	// If it is empty and the server is root, each contained provider gets an unprivileged
	// user of its own; otherwise providers run as the server's own user.
	ProviderUser string
	// ProviderKeeper is a command that only calls plugin.Keep. Such processes run
	// between the server and providers, and finish the operations of a server that was
	// killed. If empty, the outcome of those operations is unknown.
	ProviderKeeper []string
	// ProviderLauncher is a command that only calls plugin.Launch. Such processes restrict
	// themselves and become providers. If empty, only Providers with spec.containment:
	// None can be used.
	ProviderLauncher []string

	// AuthenticationConfigFile, AuthorizationConfigFile and MaxTokenAge are those of apiserver.Config.
	AuthenticationConfigFile, AuthorizationConfigFile string
	MaxTokenAge                                       time.Duration

	// WorkspaceIdle is how long a workspace stays open after its last request; 0 is a minute. While it is open, requests do not wait for it
	// to be opened, which takes about a millisecond, and it takes memory.
	WorkspaceIdle time.Duration
	// WorkspaceWebhookNetworks are those that webhooks of workspaces may be in; none stands for all but loopback and link-local addresses.
	WorkspaceWebhookNetworks []netip.Prefix
	// WorkspaceMemberNetworks are those that the API servers of Clusters in workspaces may be in; none stands for WorkspaceWebhookNetworks.
	WorkspaceMemberNetworks []netip.Prefix

	Audit                                           apiserver.Audit
	EncryptionConfigFile                            string
	EnableAdmissionPlugins, DisableAdmissionPlugins []string

	// LargeWork, if not nil, is called when a large operation starts, such as a plan or
	// an apply of ten thousand resources. The function that it returns is called at the
	// end, to release memory. stays is set if much of the memory stays in use, as after
	// an apply. Nil calls debug.FreeOSMemory at the end.
	LargeWork func(stays bool) (over func())

	// TracerProvider replaces the one configured by TracingConfigFile.
	TracerProvider trace.TracerProvider
	// Clock is used by the fleet and for the renewal of certificates; nil is the real
	// one.
	Clock clock.WithTicker
	// Log is the logger of the fleet's controllers; nil is slog.Default. All of
	// Kubernetes' code logs through klog, which exists once per process.
	Log *slog.Logger

	prefixes []string // of Partitions
}

// Server is one Atoll server. New opens everything, Run serves, Close releases it.
type Server struct {
	cfg       Config
	listener  net.Listener
	pki       *pki
	datastore *Datastore
	api       *apiserver.Server
	directory *aggregate.Directory
	// memberNamespaces gives members the namespaces of shared objects.
	memberNamespaces *aggregate.MemberNamespaces
	views            *view.Host
	tunnels          *tunnel.Hub
	tenants          *tenants // nil if it is read-only
	webhooks         *webhooks.Caller
	infra            *infrastructure
	keyspace         *clientv3.Client // in process
	metrics          *metrics
	members          *memberListener // nil if none are served
	name             string          // in leader elections
	quotas           *quotas.Gate
	// controlPlane claims members.
	controlPlane fleet.ControlPlane
	// closers in the order of opening; they are closed in reverse.
	closers []io.Closer
	// sharedRevision is the revision of the shared keys that this server has.
	sharedRevision atomic.Int64
}

// New opens the data directory and the datastore, and listens. If the environment is
// unusable (a port or database in use, a read-only directory), it returns a one-line
// error with the cause and the fix.
func New(ctx context.Context, cfg Config) (_ *Server, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: newMetrics()}
	s.webhooks = webhooks.NewCaller(s.metrics.webhooks)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()

	if err := prepareDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	restrictAccess(cfg.DataDir, cfg.Log)
	if s.listener, err = listen(cfg.BindAddress, cfg.SecurePort, "--bind-address", "--secure-port"); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, ignoreClosed{s.listener})
	if s.members, err = cfg.listenForMembers(); err != nil {
		return nil, err
	}
	if s.members != nil {
		s.closers = append(s.closers, ignoreClosed{s.members})
	}
	tracing, err := s.openTracing(ctx)
	if err != nil {
		return nil, err
	}
	if s.datastore, err = OpenDatastore(ctx, cfg.Datastore); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.datastore)
	if err := s.datastore.CheckComplete(ctx, Workspace); err != nil {
		return nil, err
	}
	if err := s.identify(ctx); err != nil {
		return nil, err
	}
	if err := s.openKeys(ctx); err != nil {
		return nil, err
	}
	if err := s.datastore.ensurePartitions(ctx, Workspace, cfg.prefixes); err != nil {
		return nil, err
	}
	keyspace, err := s.datastore.Keyspace(ctx, Workspace, mvcc.Options{
		CacheBytes: keyspaceCache,
		Observer:   LogBehind(s.metrics.engine.Observer(), Workspace),
		Retention:  mvcc.Retention{MaxChanges: cfg.HistoryMaxChanges},
		// A watch survives an outage of up to WatchSilence, if its missed events can
		// still be delivered afterwards. If watches ended, the watch caches would end
		// too. Then nothing could be read without the datastore, and all clients would
		// list again. The limit is not hours, because other servers may have newer
		// data.
		WatchSilence: min(cmp.Or(cfg.HistoryRetention, defaultRetention), defaultRetention),
		// Well within the history: resources without a watch cache resume from here.
		ProgressInterval: time.Minute,

		TracerProvider: tracing,
	})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, keyspace)
	client, err := etcd.InProcess(keyspace, s.datastore.name(Workspace))
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, ignoreClosed{client})
	s.keyspace = client.Client
	s.name = s.identity()
	if s.infra, err = openInfrastructure(s.cfg, s.metrics); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.infra)

	s.memberNamespaces = aggregate.NewMemberNamespaces(s.workspaceNamespaces, namespaceMetadata, s.memberClientConfig, cfg.Clock)
	config := apiserver.Config{
		Workspace:        Workspace,
		Keyspace:         client,
		Probe:            etcd.Probe(keyspace),
		Listener:         s.listener,
		AdvertiseAddress: cfg.advertiseIP(),
		TLS: apiserver.TLS{
			CertFile:     s.pki.file(servingCert),
			KeyFile:      s.pki.file(servingKey),
			ClientCAFile: s.pki.file(caCert),
			RootCAFile:   s.pki.file(caCert),

			SigningCertFile: s.pki.file(signingCert),
			SigningKeyFile:  s.pki.file(caKey),
		},
		Audit:                    cfg.Audit,
		ServiceAccountKeyFile:    s.pki.file(serviceAccountKey),
		EncryptionConfigFile:     cfg.EncryptionConfigFile,
		AuthenticationConfigFile: cfg.AuthenticationConfigFile,
		AuthorizationConfigFile:  cfg.AuthorizationConfigFile,
		MaxTokenAge:              cfg.MaxTokenAge,
		ReadOnly:                 cfg.ReadOnly,
		WorkloadAPIs:             !cfg.WithoutWorkloadAPIs,
		EnableAdmissionPlugins:   cfg.EnableAdmissionPlugins,
		DisableAdmissionPlugins:  cfg.DisableAdmissionPlugins,
		Shared:                   s.datastore.Shared(),
		Metrics:                  append(s.metrics.collectors(), etcd.NewKeyspaceMetrics(keyspace)),
		CompactionInterval:       cfg.HistoryRetention,
		TracerProvider:           tracing,
		Identity:                 s.name,
		Log:                      cfg.Log,
		Authorizer:               aggregate.NewDelegatedAuthorizer(s.sharedAPI, s.memberClientConfig, cfg.Clock),
		SharedGroups: func(ctx context.Context) (func(group string) bool, error) {
			return s.directory.SharedGroups(ctx)
		},
		OnMissingNamespace:  s.onMissingNamespace,
		OnNamespacedWrite:   s.onNamespacedWrite,
		ClusterRoles:        slices.Concat(memberRoles(), fleetRoles(), []rbacv1.ClusterRole{placementRole()}),
		RetiredRules:        retiredFleetRules(),
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{bootstrapBinding()},
		OnlySigners:         map[string]string{v1alpha1.BootstrapGroup: v1alpha1.SyncerSignerName},
		Admission:           fleetAdmission(),
		Warning:             &apiserver.Warning{Concerns: interpret.MayStayHome, About: warnOfHome, AboutLabels: interpret.IgnoredLabel},
		DeletionProtection:  s.deletionProtection(),
	}
	s.tunnels = s.newTunnels()
	config.Elsewhere = reach.New(sync.OnceValues(func() (dynamic.Interface, error) {
		return dynamic.NewForConfig(s.api.ClientConfig(serverUser))
	}), s.tunnels, cfg.Clock)
	if !cfg.ReadOnly {
		if config.OwnTypes, err = ownTypes(); err != nil {
			return nil, err
		}
		config.Services = []apiserver.Service{s.viewService(), s.tunnelService(), s.controlPlaneService(), s.backupService()}
		config.WriteCheck = s.quotaCheck()
	}
	if !cfg.ReadOnly {
		config.Workspaces = s.serveWorkspaces(ctx)
		config.ObserveLabel = s.observeCopies()
		config.Admission = append(config.Admission, s.workspaceAdmission()...)
	}
	if config.DefaultEncryption, err = s.defaultEncryption(); err != nil {
		return nil, err
	}
	s.infra.extend(&config)
	if s.api, err = apiserver.New(ctx, config); err != nil {
		return nil, err
	}
	if err := s.api.CheckDecryption(ctx); err != nil {
		return nil, err
	}
	if s.directory, err = aggregate.NewDirectory(s.api.ClientConfig(serverUser), cfg.Clock); err != nil {
		return nil, err
	}
	if s.tenants != nil {
		client, err := dynamic.NewForConfig(s.api.ClientConfig(tenancyUser))
		if err != nil {
			return nil, err
		}
		s.tenants.directory = tenancy.NewDirectory(client)
		s.tenants.marker = tenancy.NewMarker(client, s.cfg.Clock, s.name)
		s.tenants.tree = &tenancy.Tree[*tenant]{Directory: s.tenants.directory, Pool: s.tenants.pool, Child: s.tenants.child}
	}
	s.views = s.newViews()
	if s.quotas, err = s.newGate(); err != nil {
		return nil, err
	}
	if err := s.infra.connect(s.api); err != nil {
		return nil, err
	}
	return s, nil
}

// Run serves until ctx ends, then stops gracefully. It must be called only once.
func (s *Server) Run(ctx context.Context) error {
	// Clients of the API stop before the API does, so that they can still release their
	// leases.
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	clients := []func(context.Context) error{s.renewCertificates, s.followEncryptionKeys}
	if !s.cfg.ReadOnly {
		clients = append(clients, s.runDirectory, s.runFleet, s.runGate, s.runViews, s.runTunnels, s.runWorkspaces, s.infra.runProviders, s.runPlans)
	}
	if s.members != nil {
		clients = append(clients, s.announce)
	}
	parts := []func(context.Context) error{
		func(context.Context) error { return s.api.Run(apiCtx) },
		func(ctx context.Context) error {
			defer stopAPI()
			return runAll(ctx, clients...)
		},
	}
	if s.members != nil {
		parts = append(parts, s.serveMembers)
	}
	return runAll(ctx, parts...)
}

func (s *Server) runDirectory(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	return s.directory.Run(ctx)
}

func (s *Server) runPlans(ctx context.Context) error {
	return s.infra.runPlans(ctx, planning{keyspace: s.keyspace, identity: s.name, singleServer: !s.datastore.Shared()})
}

// openKeys opens the directory of certificates and keys. Servers of a shared datastore
// have them in common.
func (s *Server) openKeys(ctx context.Context) (err error) {
	dir := filepath.Join(s.cfg.DataDir, "pki")
	if s.datastore.Shared() {
		system, err := s.datastore.Keyspace(ctx, systemKeyspace, mvcc.Options{})
		if err != nil {
			return err
		}
		err = shareKeys(ctx, system, &s.cfg, dir)
		if err = errors.Join(err, system.Close()); err != nil {
			return err
		}
	} else if s.cfg.TokenFile != "" {
		return fmt.Errorf("--token-file is for servers that share a datastore, and an SQLite database has one server: omit --token-file %s, or set --datastore to a PostgreSQL", s.cfg.TokenFile)
	}
	if s.pki, err = openPKI(dir, s.cfg.servingNames(), s.cfg.Clock.Now()); err != nil {
		return err
	}
	return s.writeKubeconfig()
}

func (s *Server) renewCertificates(ctx context.Context) error {
	return s.pki.renewLoop(ctx, s.cfg.Clock, s.writeKubeconfig)
}

// Close releases what New opened, after Run has returned or instead of Run.
func (s *Server) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i].Close())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// Ready returns a channel that is closed once the server is ready.
func (s *Server) Ready() <-chan struct{} { return s.api.Ready() }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (s *Server) Kubeconfig() string { return filepath.Join(s.cfg.DataDir, "admin.kubeconfig") }

// URL returns the API's URL for a client on this machine.
func (s *Server) URL() string {
	host := s.cfg.BindAddress
	if net.ParseIP(host).IsUnspecified() {
		host = "127.0.0.1"
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// API returns the workspace's API server.
func (s *Server) API() *apiserver.Server { return s.api }

// identity returns this server's name in leader elections. A datastore that only one
// process can open has only one server. That one always has the same name, so that it
// need not wait for its own lease to expire after a crash.
func (s *Server) identity() string {
	if !s.datastore.Shared() {
		return "sole-server"
	}
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	return host + "_" + uuid.NewString()
}

// identify determines which control plane this server belongs to.
func (s *Server) identify(ctx context.Context) (err error) {
	if s.controlPlane, err = s.datastore.ControlPlane(ctx); err != nil {
		return err
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	s.controlPlane.Server = "https://" + net.JoinHostPort(s.cfg.advertiseIP().String(), strconv.Itoa(port))
	if host, err := os.Hostname(); err == nil {
		s.controlPlane.Server += " on " + host
	}
	return nil
}

func (s *Server) writeKubeconfig() error {
	content, err := s.pki.adminKubeconfig(s.URL())
	if err != nil {
		return fmt.Errorf("create the administrator's kubeconfig: %w", err)
	}
	return writeIfChanged(s.Kubeconfig(), content)
}

func (c *Config) complete() error {
	if c.DataDir == "" {
		return errors.New("no data directory: set --data-dir")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("resolve data directory %s: %w", c.DataDir, err)
	}
	c.DataDir = dir
	if c.Datastore == "" {
		c.Datastore = SQLiteURL(filepath.Join(dir, databaseFile))
	}
	if c.BindAddress == "" {
		c.BindAddress = "127.0.0.1"
	}
	if net.ParseIP(c.BindAddress) == nil {
		return fmt.Errorf("bind address %q is not an IP: use one of this machine's, such as 127.0.0.1, or 0.0.0.0 for all", c.BindAddress)
	}
	if c.SecurePort < 0 || c.SecurePort > 65535 {
		return fmt.Errorf("secure port %d is out of range: use a port from 1 to 65535, or 0 for any free one", c.SecurePort)
	}
	if r := c.HistoryRetention; r != 0 && r < minRetention {
		return fmt.Errorf("auto-compaction retention %v is too short: clients that are slightly behind would have to list everything again; use at least %v", r, minRetention)
	}
	if c.Cluster != "" && len(validation.IsDNS1123Label(c.Cluster)) > 0 {
		return fmt.Errorf("cluster name %q is invalid: use the name with which the cluster joined", c.Cluster)
	}
	if c.TokenFile != "" {
		// Before the datastore is waited for.
		if _, err := tokenIn(c.TokenFile); err != nil {
			return err
		}
	}
	if c.HistoryMaxChanges < 0 {
		return fmt.Errorf("history max changes %d is out of range: use a positive number, or 0 for no limit", c.HistoryMaxChanges)
	}
	if _, err := c.providerUser(); err != nil {
		return err
	}
	if c.Audit.PolicyFile == "" && (c.Audit.LogPath != "" || c.Audit.WebhookConfigFile != "") {
		return errors.New("no audit policy: without --audit-policy-file, no request is recorded, and --audit-log-path and --audit-webhook-config-file have no effect")
	}
	if c.prefixes, err = keyPrefixes(c.Partitions); err != nil {
		return err
	}
	if c.ReadOnly {
		if len(c.Partitions) > 0 {
			return errors.New("a server with --read-only does not split a keyspace: leave out --partitions")
		}
		c.MemberPort, c.MemberAddress = WithoutMemberPort, ""
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// advertiseIP returns the API's address for clients that ask for it.
func (c *Config) advertiseIP() net.IP {
	if ip := net.ParseIP(c.BindAddress); !ip.IsUnspecified() {
		return ip
	}
	for _, ip := range hostIPs() {
		return ip
	}
	return net.IPv4(127, 0, 0, 1)
}

// listen names the flags of the address and the port in its errors.
func listen(address string, port int, addressFlag, portFlag string) (net.Listener, error) {
	at := net.JoinHostPort(address, strconv.Itoa(port))
	l, err := net.Listen("tcp", at)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the port is in use: stop the process that uses it, or choose another port with %s", at, portFlag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this machine does not have this address: choose another with %s", at, addressFlag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: not permitted: choose a port above 1023 with %s", at, portFlag)
	default:
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
}

// ignoreClosed closes what another owner may already have closed: the API server closes
// its listener, and the in-process client never had a connection.
type ignoreClosed struct{ io.Closer }

func (q ignoreClosed) Close() error {
	_ = q.Closer.Close()
	return nil
}
