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
	"log/slog"
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

// Config configures a Server.
type Config struct {
	// Workspace names the workspace. It is part of the issuer of the workspace's
	// service-account tokens, so that no other workspace accepts them.
	Workspace string

	// Keyspace stores all state. The caller closes it after Run has returned. No key
	// prefix is needed, because no other workspace uses this keyspace.
	Keyspace *kubernetes.Client
	// Probe, if set, reads from all parts of the keyspace. Without it, one key is read.
	Probe func(context.Context) error

	// Listener accepts the connections. The server owns it after New.
	Listener net.Listener
	// AdvertiseAddress is the API's address for clients that ask for one.
	AdvertiseAddress net.IP

	TLS   TLS
	Audit Audit

	// ServiceAccountKeyFile has the private key (PEM) that signs service-account
	// tokens. Its public key verifies them.
	ServiceAccountKeyFile string

	// AuthenticationConfigFile is upstream's AuthenticationConfiguration: the issuers whose JSON Web Tokens are accepted.
	// AuthorizationConfigFile is its AuthorizationConfiguration: the authorizers and their order; RBAC alone if it is empty.
	// Both are read again when they change.
	AuthenticationConfigFile, AuthorizationConfigFile string

	// MaxTokenAge is the longest time for which a service-account token is issued; 0 is no limit.
	MaxTokenAge time.Duration

	// EncryptionConfigFile is upstream's EncryptionConfiguration: which resources are
	// stored encrypted, and with which keys.
	EncryptionConfigFile string
	// DefaultEncryption, if set, is for the resources that it does not name.
	DefaultEncryption *DefaultEncryption

	// Shared is set if other servers may serve the same keyspace at the same time. A
	// new CRD is then announced only after a few seconds, so that all servers know it.
	Shared bool

	// OwnTypes are custom types of the control plane itself: /readyz fails until discovery
	// lists all of them. A client in this process has to create their CRDs once Serving is
	// closed.
	OwnTypes []schema.GroupVersionResource

	// ReadOnly refuses all changes by users, and runs no controllers.
	ReadOnly bool

	// WorkloadAPIs serves the built-in workload kinds (Pods, Services, apps, batch, …)
	// in addition to those of a pure control plane.
	WorkloadAPIs bool

	// SharedGroups, if set, provides the API groups of custom resources that the member
	// clusters share. If an object of such a group names an owner in another group,
	// garbage collection takes the owner for an object of a member, and never for a
	// missing one.
	//
	// The function is called when the controllers of this server start, and again after
	// an error. It returns when it knows the groups; until then nothing is collected.
	// The returned function must not block, is called from several goroutines, and
	// follows changes. A group that it no longer reports is collected like any other.
	SharedGroups func(context.Context) (shared func(group string) bool, err error)

	// Unowned are custom resources whose objects own nothing and have no owners, so
	// that the garbage collector need not keep each in memory. The server rejects what
	// only the collector could carry out: owner references in these objects, and
	// deletion in the foreground or with orphaned dependents.
	Unowned []schema.GroupVersionResource

	// OnMissingNamespace, if set, decides what happens when a user creates an object in
	// a namespace that does not exist. It must not block and is called from several
	// goroutines.
	OnMissingNamespace func(NamespaceRequest) MissingNamespace

	// OnNamespacedWrite, if set, is called before an object in a namespace is created or
	// changed, once the request is allowed and valid. The request waits for it. It is
	// called from several goroutines, not in a dry run, and not for namespaces that
	// every cluster has.
	OnNamespacedWrite func(context.Context, NamespacedWrite)

	// ClusterRoles are created at startup, and missing rules are added to them, as for
	// upstream's own. A role with the annotation
	// rbac.authorization.kubernetes.io/autoupdate: "false" is not changed.
	ClusterRoles []rbacv1.ClusterRole
	// RetiredRules has a rule of each ClusterRole, by name, that an earlier version gave it. It is removed at startup, unless
	// the role has that annotation.
	RetiredRules map[string]rbacv1.PolicyRule
	// ClusterRoleBindings are created like these.
	ClusterRoleBindings []rbacv1.ClusterRoleBinding

	// OnlySigners has the only signer, by group, whose certificates the users of the group may request.
	OnlySigners map[string]string

	// Authorizer, if set, is asked about requests that RBAC does not allow.
	Authorizer authorizer.Authorizer

	// Kinds, if set, creates the server of kinds without CRDs.
	Kinds func(ChainEnd) KindServer

	// Elsewhere, if set, has the pods of this workspace's objects that run in member clusters, their events, and nodes, and reaches
	// the APIs of these clusters.
	Elsewhere Elsewhere

	// Services are served beside the Kubernetes-style API.
	Services []Service

	// Workspaces, if set, creates the handler of the paths below WorkspacesPrefix. It authenticates its requests itself.
	Workspaces func(ForWorkspaces) (http.Handler, error)

	// Subresources are served in addition to those of custom resources.
	Subresources []Subresource

	// Admission has the steps that every create and update goes through.
	Admission []AdmissionStep
	// ObserveLabel observes the changes of objects with a label; nil observes none.
	ObserveLabel *LabelObserver

	// Warning, if set, is given to users who write objects of built-in kinds.
	Warning *Warning
	// WriteCheck, if set, is the last check of objects of any kind.
	WriteCheck *WriteCheck

	// DeletionProtection, if set, protects objects with a label from deletion.
	DeletionProtection *DeletionProtection

	// KeepNamespace returns why a namespace must not be deleted now, and what to do
	// first, or "" if it may be. It must be safe for concurrent use. May be nil.
	KeepNamespace func(ctx context.Context, namespace string) (string, error)

	// EnableAdmissionPlugins and DisableAdmissionPlugins change the default choice of
	// admission plugins, by their upstream names.
	EnableAdmissionPlugins, DisableAdmissionPlugins []string

	// CompactionInterval is how long past revisions can at least be listed and watched;
	// the maximum is twice that. 0 is upstream's default.
	CompactionInterval time.Duration

	// TracerProvider records the spans of requests; nil disables tracing. The
	// keyspace's spans join them.
	TracerProvider trace.TracerProvider

	// Metrics are exported in addition to upstream's, with the label workspace.
	Metrics []prometheus.Collector

	// Identity names this server in leader elections. A server that restarts with the
	// same identity takes over its leases at once. So two servers that run at the same
	// time must never share one.
	Identity string

	// Log is the logger of the controllers' elections; nil is slog.Default. All of
	// Kubernetes' code logs through klog, which exists once per process.
	Log *slog.Logger
}

// TLS names the files of the server's certificates. They are reloaded when they change.
type TLS struct {
	CertFile, KeyFile string
	// ClientCAFile verifies clients' certificates.
	ClientCAFile string
	// RootCAFile verifies this server. It is published in every namespace (ConfigMap
	// kube-root-ca.crt).
	RootCAFile string
	// SigningCertFile and SigningKeyFile are the authority that signs the certificates of clients on
	// request (CertificateSigningRequests). It is one certificate, without former ones. Without it,
	// approved requests are not signed.
	SigningCertFile, SigningKeyFile string
}

// Audit configures upstream's audit backends. Without a policy no event is recorded;
// without a path or a webhook, events are not sent anywhere.
type Audit struct {
	PolicyFile        string
	LogPath           string // "-" is standard output
	LogMaxAge         int    // days
	LogMaxBackups     int
	LogMaxSize        int // megabytes
	WebhookConfigFile string
}

// Server is the API server of one workspace.
type Server struct {
	chain             *aggregatorapiserver.APIAggregator
	prepared          func() // called once the chain has been prepared
	storage           *keyspaceStorage
	controllers       *controllerManager
	loopback          *rest.Config
	unregisterMetrics func() // unregisters the metrics
	types             *ownTypes
	serving           chan struct{} // closed once clients of this process may start
	ready             chan struct{}
	log               *slog.Logger
	readOnly          bool
}

// New builds the server chain. The server answers no request until Run.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the API server of workspace %q: %w", cfg.Workspace, err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	encryption, err := newEncryption(cfg.DefaultEncryption)
	if err != nil {
		return nil, fmt.Errorf("configure the API server of workspace %q: %w", cfg.Workspace, err)
	}
	storage := newKeyspaceStorage(cfg.Keyspace, cfg.Probe, cfg.CompactionInterval, cfg.Log)
	storage.encryption = encryption
	types := newOwnTypes(cfg.OwnTypes)
	chain, kinds, prepared, err := buildChain(ctx, cfg, storage, types)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	if err := installRoles(chain.GenericAPIServer, cfg); err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	for _, service := range cfg.Services {
		chain.GenericAPIServer.Handler.NonGoRestfulMux.HandlePrefix(service.Prefix, service)
	}
	loopback := chain.GenericAPIServer.LoopbackClientConfig
	ctrl, err := newControllerManager(cfg, loopback, kinds)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("prepare the controllers of workspace %q: %w", cfg.Workspace, err)
	}
	if cfg.DefaultEncryption != nil {
		ctrl.encryption = newRewriter(encryption, storage.client.KV, cfg.Log).run
	}
	withdraw, err := exportMetrics(cfg.Workspace, cfg.Metrics)
	if err != nil {
		storage.stop()
		return nil, fmt.Errorf("build the API server of workspace %q: %w", cfg.Workspace, err)
	}
	return &Server{
		chain:             chain,
		prepared:          prepared,
		storage:           storage,
		controllers:       ctrl,
		loopback:          loopback,
		unregisterMetrics: withdraw,
		types:             types,
		serving:           make(chan struct{}),
		ready:             make(chan struct{}),
		log:               cfg.Log,
		readOnly:          cfg.ReadOnly,
	}, nil
}

func (c *Config) validate() error {
	switch {
	case c.Workspace == "":
		return errors.New("Workspace is empty: set the workspace's name")
	case c.Keyspace == nil:
		return errors.New("Keyspace is nil: pass a client of the workspace's keyspace")
	case c.Listener == nil:
		return errors.New("Listener is nil: pass an open listener")
	case c.TLS.CertFile == "" || c.TLS.KeyFile == "" || c.TLS.ClientCAFile == "" || c.TLS.RootCAFile == "":
		return errors.New("TLS is incomplete: set all four files")
	case c.ServiceAccountKeyFile == "":
		return errors.New("ServiceAccountKeyFile is empty: set the key that signs service-account tokens")
	case c.Identity == "":
		return errors.New("Identity is empty: set one that is unique to this server, for leader election")
	}
	return nil
}

// Run serves until ctx ends, then stops gracefully: it finishes requests in flight, the
// controllers release their lease, and storage is closed last.
func (s *Server) Run(ctx context.Context) error {
	defer s.storage.stop()
	defer s.unregisterMetrics()

	// Controllers stop before the API that they use.
	controllersDone := make(chan struct{})
	controllersCtx, stopControllers := context.WithCancel(ctx)
	defer stopControllers()
	serveCtx, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()

	prepared, err := s.chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare the API server: %w", err)
	}
	s.prepared()
	go s.announceReady(controllersCtx)
	go func() {
		defer close(controllersDone)
		select {
		case <-s.serving:
			if s.readOnly {
				<-controllersCtx.Done()
				return
			}
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

// Serving returns a channel that is closed once the API answers requests, possibly before it knows
// OwnTypes. It is for the clients in this process, which create them.
func (s *Server) Serving() <-chan struct{} { return s.serving }

// Ready returns a channel that is closed once /readyz has succeeded.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Handler serves what the listener serves, for another port of the same process, except
// for authentication: a user in the request's context (request.WithUser) is trusted.
// The caller must authenticate that user. Call Handler only once the API serves.
func (s *Server) Handler() http.Handler { return s.chain.GenericAPIServer.Handler }

// ClientConfig returns a client configuration for other parts of this process. Requests
// are made as user, who appears in the audit log and has every permission.
func (s *Server) ClientConfig(user string) *rest.Config {
	cfg := rest.CopyConfig(s.loopback)
	cfg.UserAgent = user
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	// The loopback default is protobuf, which custom resources do not support.
	cfg.ContentType = "application/json"
	cfg.AcceptContentTypes = ""
	return cfg
}

// announceReady polls /readyz, which covers every post-start hook, and closes serving and ready.
func (s *Server) announceReady(ctx context.Context) {
	client, err := rest.HTTPClientFor(s.loopback)
	if err != nil {
		return
	}
	readyz := s.loopback.Host + "/readyz"
	if !poll(ctx, client, readyz+"?exclude="+ownTypesCheckName) {
		return
	}
	close(s.serving)
	s.types.await(ctx, s.loopback, s.log)
	if poll(ctx, client, readyz) {
		close(s.ready)
	}
}

// poll gets the page until it succeeds or ctx ends, and reports whether it succeeded.
func poll(ctx context.Context, client *http.Client, page string) bool {
	const interval, timeout = 25 * time.Millisecond, 10 * time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, timeout) // a lost answer does not keep the server from being ready
		ok, _ := getOK(bounded, client, page)
		cancel()
		if ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
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
