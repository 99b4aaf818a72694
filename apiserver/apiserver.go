// Package apiserver serves one workspace: a Kubernetes-style API over one
// keyspace.
//
// A Server is a value. It is Kubernetes' generic control plane (CRDs, built-in
// kinds, aggregation, in that order of delegation) whose storage layer calls an
// in-process client instead of dialling etcd. Many fit into one process. What
// upstream keeps per process (metrics, feature gates, klog) stays shared; see
// DESIGN.md.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.opentelemetry.io/otel/trace"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
)

// Config says what to serve, and how.
type Config struct {
	// Workspace names the workspace. It is part of the issuer of its
	// service-account tokens, so that no other workspace takes them.
	Workspace string

	// Keyspace is where all state lives. The caller closes it, after Run has
	// returned. A prefix is not needed: the workspace has the keyspace for itself.
	Keyspace *kubernetes.Client

	// Listener accepts the connections. The server owns it from New on.
	Listener net.Listener
	// AdvertiseAddress is told to clients that ask where the API is.
	AdvertiseAddress net.IP

	TLS   TLS
	Audit Audit

	// ServiceAccountKeyFile holds the private key (PEM) that signs tokens of
	// service accounts and, by its public part, verifies them.
	ServiceAccountKeyFile string

	// EncryptionConfigFile is upstream's EncryptionConfiguration: which
	// resources are stored encrypted, and with which keys. Empty for none.
	EncryptionConfigFile string

	// Shared says that other servers may serve the same keyspace at the same
	// time. A new CRD is then announced only after a few seconds, in which they
	// all come to know it.
	Shared bool

	// WorkloadAPIs serves the built-in workload kinds (Pods, Services,
	// apps, batch, …) next to those of a pure control plane.
	WorkloadAPIs bool

	// SharedGroups, if set, tells which API groups of custom resources the member
	// clusters share: garbage collection then takes owners of other groups, which
	// objects of these name, for objects of a member, and never for missing.
	//
	// It is called when the controllers of this server begin to run, and again
	// after an error. It returns when it knows the groups; until then nothing is
	// collected. The function that it returns answers at once, from several
	// goroutines, and takes in what changes. Groups that it no longer names are
	// collected like any other.
	SharedGroups func(context.Context) (shared func(group string) bool, err error)

	// Unowned are kinds whose objects own nothing and have no owners, so that garbage collection does
	// not keep each in memory. What only it could carry out is refused: owner references in them, and
	// to delete them in the foreground or with dependents left behind. They are custom resources.
	Unowned []schema.GroupVersionResource

	// OnMissingNamespace, if set, decides what happens when a user creates an object in a
	// namespace that does not exist. It answers at once, from several goroutines.
	OnMissingNamespace func(NamespaceRequest) MissingNamespace

	// ClusterRoles are made at the start and given what they lack, like upstream's own:
	// with the annotation rbac.authorization.kubernetes.io/autoupdate: "false" a role
	// stays as it is.
	ClusterRoles []rbacv1.ClusterRole

	// Authorizer, if set, is asked where RBAC does not allow a request.
	Authorizer authorizer.Authorizer

	// Kinds, if set, are served without CRDs.
	Kinds Kinds

	// Services are served beside the Kubernetes-style API.
	Services []Service

	// Subresources are served beside those of custom resources.
	Subresources []Subresource

	// Admission are steps that no object gets around.
	Admission []AdmissionStep

	// EnableAdmissionPlugins and DisableAdmissionPlugins change the default
	// choice of admission plugins, by their upstream names.
	EnableAdmissionPlugins, DisableAdmissionPlugins []string

	// CompactionInterval is how long earlier states can be listed and watched from,
	// and at most twice that; 0 is upstream's default.
	CompactionInterval time.Duration

	// TracerProvider of the spans of requests; nil for none. The keyspace's spans
	// join them.
	TracerProvider trace.TracerProvider

	// Metrics are exported beside upstream's own, with the label workspace.
	Metrics []prometheus.Collector

	// Identity names this server in elections. A server that restarts with the
	// identity it had takes its leases up again at once, so two servers that
	// run at the same time must never share one.
	Identity string
}

// TLS names the files of the server's certificates. They are read again when
// they change.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile verifies clients' certificates.
	ClientCAFile string
	// RootCAFile verifies this server; it is published in every namespace
	// (ConfigMap kube-root-ca.crt).
	RootCAFile string
}

// Audit configures upstream's audit backends. Without a policy nothing is
// recorded; without a path or a webhook the records go nowhere.
type Audit struct {
	PolicyFile        string
	LogPath           string // "-" is standard output
	LogMaxAge         int    // days
	LogMaxBackups     int
	LogMaxSize        int // megabytes
	WebhookConfigFile string
}

// Server is one workspace, ready to run.
type Server struct {
	chain       *aggregatorapiserver.APIAggregator
	prepared    func() // to call when the chain has been prepared
	storage     *keyspaceStorage
	controllers *controllers
	loopback    *rest.Config
	withdraw    func() // the metrics
	ready       chan struct{}
}

// New builds the server chain. It serves nothing until Run.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the API server of workspace %q: %w", cfg.Workspace, err)
	}
	storage := newKeyspaceStorage(cfg.Keyspace, cfg.CompactionInterval)
	chain, kinds, prepared, err := buildChain(ctx, cfg, storage)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	if err := shipRoles(chain.GenericAPIServer, cfg.ClusterRoles); err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	for _, service := range cfg.Services {
		chain.GenericAPIServer.Handler.NonGoRestfulMux.HandlePrefix(service.Prefix, service)
	}
	loopback := chain.GenericAPIServer.LoopbackClientConfig
	ctrl, err := newControllers(cfg, loopback, kinds, storage)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("prepare the controllers of workspace %q: %w", cfg.Workspace, err)
	}
	withdraw, err := exportMetrics(cfg.Workspace, cfg.Metrics)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	return &Server{
		chain:       chain,
		prepared:    prepared,
		storage:     storage,
		controllers: ctrl,
		loopback:    loopback,
		withdraw:    withdraw,
		ready:       make(chan struct{}),
	}, nil
}

func (c *Config) validate() error {
	switch {
	case c.Workspace == "":
		return errors.New("Workspace is empty: name it")
	case c.Keyspace == nil:
		return errors.New("Keyspace is nil: pass a client of the workspace's keyspace")
	case c.Listener == nil:
		return errors.New("Listener is nil: listen first")
	case c.TLS.CertFile == "" || c.TLS.KeyFile == "" || c.TLS.ClientCAFile == "" || c.TLS.RootCAFile == "":
		return errors.New("TLS is incomplete: all four files are needed")
	case c.ServiceAccountKeyFile == "":
		return errors.New("ServiceAccountKeyFile is empty: tokens could not be signed")
	case c.Identity == "":
		return errors.New("Identity is empty: elections need one per server")
	}
	return nil
}

// Run serves until ctx ends, then stops gracefully: requests under way are
// answered, controllers give their lease back, storage is closed last.
func (s *Server) Run(ctx context.Context) error {
	defer s.storage.stop()
	defer s.withdraw()

	// Controllers stop before the API that they talk to does.
	controllersDone := make(chan struct{})
	controllersCtx, stopControllers := context.WithCancel(ctx)
	defer stopControllers()
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()

	prepared, err := s.chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare to serve: %w", err)
	}
	s.prepared()
	go s.announceReady(controllersCtx)
	go func() {
		defer close(controllersDone)
		select {
		case <-s.ready:
			s.controllers.run(controllersCtx)
		case <-controllersCtx.Done():
		}
	}()
	go func() {
		<-controllersDone
		stopServing()
	}()

	err = prepared.Run(serveCtx)
	stopControllers()
	<-controllersDone
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Ready is closed once /readyz has been good.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Handler answers as the listener does, for another face of the same process:
// everything but authentication, which takes the user from the request's context
// (request.WithUser) if there is one. Whoever puts one there answers for it. To be
// called once the server is ready.
func (s *Server) Handler() http.Handler { return s.chain.GenericAPIServer.Handler }

// ClientConfig is a connection to this server for parts of the same process,
// as user, who is named in the audit log and may do everything.
func (s *Server) ClientConfig(user string) *rest.Config {
	cfg := rest.CopyConfig(s.loopback)
	cfg.UserAgent = user
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	// The loopback default is protobuf, which custom resources do not speak.
	cfg.ContentType = "application/json"
	cfg.AcceptContentTypes = ""
	return cfg
}

// announceReady asks /readyz, which covers every post-start hook, until it is
// good.
func (s *Server) announceReady(ctx context.Context) {
	const interval = 25 * time.Millisecond
	client, err := rest.HTTPClientFor(s.loopback)
	if err != nil {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if ok, _ := getOK(ctx, client, s.loopback.Host+"/readyz"); ok {
			close(s.ready)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func getOK(ctx context.Context, client *http.Client, url string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	return resp.StatusCode == http.StatusOK, resp.Body.Close()
}
