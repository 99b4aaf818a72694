// Package server builds a whole Atoll from one Config: datastore, keyspace,
// certificates, API server and controllers. It is the only place that knows
// them all. Tests start the real thing with it, on port 0.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/fleet/view"
	"github.com/atoll-dev/atoll/infra/providers"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// Workspace is the name of the workspace that a server serves, and of its
// keyspace.
const Workspace = "default"

// keyspaceCache bounds the engine's own cache under an API server, whose watch
// caches hold every object already and answer its reads. What is left for the
// engine are compares on what changes often: leases, statuses.
const keyspaceCache = 4 << 20

const (
	// leastRetention is a little more than what a client takes to come back.
	leastRetention = time.Minute
	// defaultRetention is Kubernetes'.
	defaultRetention = 5 * time.Minute
)

// Config says what to run. The zero value needs only DataDir.
type Config struct {
	// DataDir holds certificates, keys and the admin's kubeconfig, and the
	// embedded datastore unless Datastore says otherwise. It is made if missing.
	DataDir string
	// Datastore is the URL of the database; empty is sqlite:// in DataDir.
	Datastore string
	// TokenFile holds the token that opens the keys which the servers of one
	// external datastore share. Without it the one of DataDir is used; the first
	// server of a datastore makes it.
	TokenFile string

	// HistoryRetention is how long earlier states of objects can be watched and
	// listed from; 0 is 5 minutes, as in Kubernetes.
	HistoryRetention time.Duration
	// HistoryMaxChanges bounds them in number, too; 0 leaves them without. No state
	// younger than two minutes is forgotten because of it.
	HistoryMaxChanges int64

	// TracingConfigFile is upstream's TracingConfiguration: where spans are sent, and
	// how many requests leave some. Empty for none.
	TracingConfigFile string

	// Partitions are resources, or prefixes of keys, that get an order of revisions
	// and commits of their own in a datastore that holds none of them yet.
	Partitions []string

	// BindAddress is an IP; empty is 127.0.0.1.
	BindAddress string
	// SecurePort to listen on; 0 takes any free one.
	SecurePort int
	// MemberPort is where the API servers of member clusters call, for what is exposed
	// to them; 0 takes any free port, WithoutMemberPort serves none.
	MemberPort int
	// MemberAddress is the IP, or IP:PORT, by which they reach that port. Empty is
	// BindAddress, or this machine's first address if that is none in particular;
	// members are not served if that is loopback's. If BindAddress is loopback's, the
	// member port is opened on this IP.
	MemberAddress string
	// Cluster names the member cluster that this server runs in, if any: that member
	// calls no other server as long as it has this one.
	Cluster string
	// TLSNames are further host names and IPs by which clients reach the
	// server, added to its certificate.
	TLSNames []string

	// WithoutWorkloadAPIs leaves a pure control plane: no Pods, no apps.
	WithoutWorkloadAPIs bool

	// ProviderMirrors are the directories below which the mirrors may be that Providers name.
	ProviderMirrors []string
	// AllowDevelopmentProviders lets Providers name programs on this machine that nobody has
	// verified.
	AllowDevelopmentProviders bool
	// ProviderUser, as UID:GID, is whom providers run as. It takes root. Empty is whoever runs the
	// server.
	ProviderUser string
	// ProviderKeeper is a command that does nothing but call provider.Keep: such processes stand between the server
	// and providers, and finish what a server that is killed had begun. Empty is without: what it had begun is uncertain then.
	ProviderKeeper []string

	Audit                                           apiserver.Audit
	EncryptionConfigFile                            string
	EnableAdmissionPlugins, DisableAdmissionPlugins []string

	// LargeWork, if not nil, is called when something large has begun, such as a plan or an apply of ten thousand resources, and what it
	// returns when that has ended, to give memory back. Of what an apply makes, much stays. Nil is debug.FreeOSMemory at the end.
	LargeWork func(stays bool) (over func())

	// TracerProvider instead of one by TracingConfigFile.
	TracerProvider trace.TracerProvider
	// Clock is the fleet's, and decides when certificates are renewed; nil is
	// the real one.
	Clock clock.WithTicker
	// Log of the fleet's controllers; nil is slog's default. Everything of
	// Kubernetes logs through klog, which is one per process.
	Log *slog.Logger

	prefixes []string // of Partitions
}

// Server is one Atoll. New has opened everything; Run serves; Close closes.
type Server struct {
	cfg       Config
	listener  net.Listener
	pki       *pki
	datastore *Datastore
	api       *apiserver.Server
	directory *aggregate.Directory
	views     *view.Host
	providers *providers.Registry
	language  *reference.Language
	keyspace  *clientv3.Client // in process
	members   *memberFace      // nil if none are served
	name      string           // in elections
	// closers in the order of opening; closed in reverse.
	closers []io.Closer
}

// New opens the data directory and the datastore, and listens. Whatever is
// wrong with the surroundings (a port in use, a database in use, a directory that
// cannot be written) is an error here, in one line with a remedy.
func New(ctx context.Context, cfg Config) (_ *Server, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()

	if err := prepareDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	if s.listener, err = listen(cfg.BindAddress, cfg.SecurePort, "--bind-address", "--secure-port"); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, quietly{s.listener})
	if s.members, err = cfg.listenForMembers(); err != nil {
		return nil, err
	}
	if s.members != nil {
		s.closers = append(s.closers, quietly{s.members})
	}
	tracing, err := s.openTracing(ctx)
	if err != nil {
		return nil, err
	}
	if s.datastore, err = OpenDatastore(ctx, cfg.Datastore); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, s.datastore)
	if err := s.openKeys(ctx); err != nil {
		return nil, err
	}
	if err := s.datastore.ensurePartitions(ctx, Workspace, cfg.prefixes); err != nil {
		return nil, err
	}
	metrics := etcd.NewEngineMetrics()
	keyspace, err := s.datastore.Keyspace(ctx, Workspace, mvcc.Options{
		CacheBytes: keyspaceCache,
		Observer:   metrics.Observer(),
		Retention:  mvcc.Retention{MaxChanges: cfg.HistoryMaxChanges},
		// Watches get over an outage as long as what they miss can be told afterwards.
		// If they ended, the caches before them would, too, and with these what can be
		// read without the datastore; and all clients would list again. Not for hours:
		// other servers may know more.
		WatchSilence: min(cmp.Or(cfg.HistoryRetention, defaultRetention), defaultRetention),
		// Well within history: what has no watch cache is resumed from here.
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
	s.closers = append(s.closers, quietly{client})
	s.keyspace = client.Client
	s.name = s.identity()
	if err := s.openProviders(); err != nil {
		return nil, err
	}

	s.api, err = apiserver.New(ctx, apiserver.Config{
		Workspace:        Workspace,
		Keyspace:         client,
		Listener:         s.listener,
		AdvertiseAddress: cfg.advertiseIP(),
		TLS: apiserver.TLS{
			CertFile:     s.pki.file(servingCert),
			KeyFile:      s.pki.file(servingKey),
			ClientCAFile: s.pki.file(caCert),
			RootCAFile:   s.pki.file(caCert),
		},
		Audit:                   cfg.Audit,
		ServiceAccountKeyFile:   s.pki.file(serviceAccountKey),
		EncryptionConfigFile:    cfg.EncryptionConfigFile,
		WorkloadAPIs:            !cfg.WithoutWorkloadAPIs,
		EnableAdmissionPlugins:  cfg.EnableAdmissionPlugins,
		DisableAdmissionPlugins: cfg.DisableAdmissionPlugins,
		Shared:                  s.datastore.Shared(),
		Metrics:                 []prometheus.Collector{metrics, etcd.NewKeyspaceMetrics(keyspace)},
		CompactionInterval:      cfg.HistoryRetention,
		TracerProvider:          tracing,
		Identity:                s.name,
		Authorizer:              aggregate.NewDelegation(s.termsOf, s.reachMember, cfg.Clock),
		SharedGroups: func(ctx context.Context) (func(group string) bool, error) {
			return s.directory.SharedGroups(ctx)
		},
		Unowned:            unownedKinds(),
		OnMissingNamespace: s.onMissingNamespace,
		ClusterRoles:       append(memberRoles(), infraRoles()...),
		Kinds:              newProviderKinds(s.providers, s.language),
		Services:           []apiserver.Service{s.viewService()},
		Subresources:       []apiserver.Subresource{s.planChanges(), s.providerTypes()},
		Admission:          s.infraAdmission(),
	})
	if err != nil {
		return nil, err
	}
	if s.directory, err = aggregate.NewDirectory(s.api.ClientConfig(serverUser), cfg.Clock); err != nil {
		return nil, err
	}
	s.views = s.newViews()
	if err := s.connectProviders(); err != nil {
		return nil, err
	}
	return s, nil
}

// Run serves until ctx ends and then stops gracefully. It is called once.
func (s *Server) Run(ctx context.Context) error {
	// What talks to the API stops before the API does, so that it can still give
	// its leases back.
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	clients := []func(context.Context) error{s.runDirectory, s.runFleet, s.runViews, s.runProviders, s.runPlans, s.renewCertificates}
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
	if !s.awaitAPI(ctx) {
		return nil
	}
	return s.directory.Run(ctx)
}

// openKeys opens the directory of certificates and keys, which servers of a
// shared datastore have in common.
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
	}
	if s.pki, err = openPKI(dir, s.cfg.servingNames(), s.cfg.Clock.Now()); err != nil {
		return err
	}
	return s.writeKubeconfig()
}

func (s *Server) renewCertificates(ctx context.Context) error {
	return s.pki.keepFresh(ctx, s.cfg.Clock, s.writeKubeconfig)
}

// Close releases what New opened, after Run has returned or in place of it.
func (s *Server) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i].Close())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// Ready is closed once the server answers and says that it is ready.
func (s *Server) Ready() <-chan struct{} { return s.api.Ready() }

// Kubeconfig is the file by which its administrator reaches the server.
func (s *Server) Kubeconfig() string { return filepath.Join(s.cfg.DataDir, "admin.kubeconfig") }

// URL of the API, as a client on this machine reaches it.
func (s *Server) URL() string {
	host := s.cfg.BindAddress
	if net.ParseIP(host).IsUnspecified() {
		host = "127.0.0.1"
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// API is the workspace's API server.
func (s *Server) API() *apiserver.Server { return s.api }

// identity names this server in elections. A datastore that only one process
// can open has only one server, which need not wait for its own lease to
// expire after a crash: it always has the same name.
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

func (s *Server) writeKubeconfig() error {
	content, err := s.pki.adminKubeconfig(s.URL())
	if err != nil {
		return fmt.Errorf("make the administrator's kubeconfig: %w", err)
	}
	return writeIfChanged(s.Kubeconfig(), content)
}

func (c *Config) complete() error {
	if c.DataDir == "" {
		return errors.New("no data directory given: name one with --data-dir")
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("find data directory %s: %w", c.DataDir, err)
	}
	c.DataDir = dir
	if c.Datastore == "" {
		c.Datastore = "sqlite://" + filepath.ToSlash(filepath.Join(dir, "atoll.db"))
	}
	if c.BindAddress == "" {
		c.BindAddress = "127.0.0.1"
	}
	if net.ParseIP(c.BindAddress) == nil {
		return fmt.Errorf("bind address %q is not an IP: give one of this machine's, such as 127.0.0.1, or 0.0.0.0 for all", c.BindAddress)
	}
	if c.SecurePort < 0 || c.SecurePort > 65535 {
		return fmt.Errorf("secure port %d is out of range: give one from 1 to 65535, or 0 for any free one", c.SecurePort)
	}
	if r := c.HistoryRetention; r != 0 && r < leastRetention {
		return fmt.Errorf("auto-compaction retention %v is too short: clients that are a moment behind would have to list everything again; give at least %v", r, leastRetention)
	}
	if errs := validation.IsValidLabelValue(c.Cluster); len(errs) > 0 {
		return fmt.Errorf("cluster %q is not the name of one: give the name by which it joined", c.Cluster)
	}
	if c.HistoryMaxChanges < 0 {
		return fmt.Errorf("history max changes %d is out of range: give a number from 1 on, or 0 for no bound", c.HistoryMaxChanges)
	}
	if _, err := c.providerUser(); err != nil {
		return err
	}
	if c.prefixes, err = keyPrefixes(c.Partitions); err != nil {
		return err
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

// advertiseIP is told to clients that ask the API where it is.
func (c *Config) advertiseIP() net.IP {
	if ip := net.ParseIP(c.BindAddress); !ip.IsUnspecified() {
		return ip
	}
	for _, ip := range hostIPs() {
		return ip
	}
	return net.IPv4(127, 0, 0, 1)
}

// listen names, in what it says of trouble, the flags that address and port are of.
func listen(address string, port int, addressFlag, portFlag string) (net.Listener, error) {
	at := net.JoinHostPort(address, strconv.Itoa(port))
	l, err := net.Listen("tcp", at)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the port is in use: stop what uses it, or choose another with %s", at, portFlag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this machine does not have the address: choose another with %s", at, addressFlag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: not permitted: choose a port above 1023 with %s", at, portFlag)
	default:
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
}

// quietly closes what another owner may have closed already: the API server
// closes its listener, and the in-process client never had a connection.
type quietly struct{ io.Closer }

func (q quietly) Close() error {
	_ = q.Closer.Close()
	return nil
}
