package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/atoll-dev/atoll/kv"
)

// Options of a Server. The zero value serves plaintext on loopback with etcd's limits.
type Options struct {
	// TLS configuration; required on addresses other than loopback. It determines whether
	// client certificates are required.
	TLS *tls.Config
	// Cluster names the keyspace, the same on all its servers; Member names this server.
	// The IDs that clients see are derived from them.
	Cluster, Member string
	// ClientURLs by which other clients can reach this server; nil means the addresses that
	// it listens on.
	ClientURLs []string
	// TracerProvider for the spans of calls, which join the client's trace; nil for none.
	TracerProvider trace.TracerProvider
	// MaxRequestBytes and MaxTxnOps limit one request; 0 means etcd's defaults.
	MaxRequestBytes, MaxTxnOps int
	// MaxResponseBytes bounds the keys and values of one answer. MaxWatchesPerConnection and
	// MaxWatches bound the watches, and MaxConcurrentStreams the calls of one connection at the
	// same time. 0 means the defaults, for streams no bound.
	MaxResponseBytes                    int64
	MaxWatchesPerConnection, MaxWatches int
	MaxConcurrentStreams                uint32
	// QuotaBytes bounds the part of the database that holds data. A put or a lease that
	// would exceed it raises the NOSPACE alarm, and from then on all of them are refused until
	// an operator disarms it. 0 means no bound; the alarm of another server counts anyway.
	QuotaBytes int64
	// OnAlarm is called when this server has raised or disarmed the alarm.
	OnAlarm func(raised bool, inUse, quota int64)

	// access restricts clients; nil: every client may do everything. See ServeConfig.
	access *accessControl
}

// etcd's settings for clients' pings and silence.
const (
	minPingInterval   = 5 * time.Second
	idlePingInterval  = 2 * time.Hour
	idlePingTimeout   = 20 * time.Second
	receiveOverhead   = 512 << 10
	connectionBuffer  = 64 << 10
	initialWindowSize = 1 << 20
	// streamWorkers is the number of goroutines kept for calls, because growing a new stack
	// for each took 15 % of all CPU in BenchmarkAPIs. A call holds its worker while it
	// waits for the disk, so there must be about as many as concurrent calls; additional
	// calls get new goroutines.
	streamWorkers = 256
)

// Server is a gRPC server for one keyspace.
type Server struct {
	adapter *adapter
	opts    Options
	health  *health.Server
	metrics *metrics
	grpc    *grpc.Server

	// ctx ends streams, which have no end of their own, when the server stops.
	ctx  context.Context
	stop context.CancelFunc

	mu        sync.Mutex
	addresses []string
}

// NewServer creates a server for ks. The caller closes the keyspace after Stop has
// returned.
func NewServer(ks kv.Keyspace, opts Options) *Server {
	if opts.Cluster == "" {
		opts.Cluster = "atoll"
	}
	if opts.Member == "" {
		opts.Member = "atoll"
	}
	if opts.MaxRequestBytes == 0 {
		opts.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if opts.MaxTxnOps == 0 {
		opts.MaxTxnOps = DefaultMaxTxnOps
	}
	opts.fillLimits()
	s := &Server{opts: opts, health: health.NewServer()}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.adapter = &adapter{
		ks:        ks,
		clusterID: identity(opts.Cluster), memberID: identity(opts.Cluster + "/" + opts.Member),
		member: opts.Member, clientURLs: s.clientURLs,
		maxRequestBytes: opts.MaxRequestBytes, maxTxnOps: opts.MaxTxnOps,
		maxResponseBytes: opts.MaxResponseBytes, watchLimit: newWatchLimit(opts.MaxWatchesPerConnection, opts.MaxWatches),
		quota: newQuotaGuard(ks, opts), access: opts.access,
	}
	s.metrics = newMetrics(ks)
	s.metrics.registry.MustRegister(newQuotaMetrics(s.adapter, opts.QuotaBytes))
	s.grpc = grpc.NewServer(s.grpcOptions()...)
	s.register(s.grpc)
	return s
}

func (o *Options) fillLimits() {
	if o.MaxResponseBytes == 0 {
		o.MaxResponseBytes = DefaultMaxResponseBytes
	}
	if o.MaxWatchesPerConnection == 0 {
		o.MaxWatchesPerConnection = DefaultMaxWatchesPerConnection
	}
	if o.MaxWatches == 0 {
		o.MaxWatches = DefaultMaxWatches
	}
	if o.MaxConcurrentStreams == 0 {
		o.MaxConcurrentStreams = math.MaxUint32
	}
}

func (s *Server) grpcOptions() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{mem.DefaultBufferPool()}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePingInterval, Timeout: idlePingTimeout}),
		// A request just over the limit gets an error that names the limit; a far larger
		// one is not even read.
		grpc.MaxRecvMsgSize(s.opts.MaxRequestBytes + receiveOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(s.opts.MaxConcurrentStreams),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.SharedWriteBuffer(true),
		grpc.WriteBufferSize(connectionBuffer),
		grpc.ReadBufferSize(connectionBuffer),
		grpc.InitialWindowSize(initialWindowSize),
		grpc.InitialConnWindowSize(initialWindowSize),
		grpc.ChainUnaryInterceptor(s.metrics.unary, s.opts.access.unary),
		grpc.ChainStreamInterceptor(s.metrics.stream, s.opts.access.stream),
	}
	if tp := s.opts.TracerProvider; tp != nil {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(tp),
			otelgrpc.WithPropagators(propagation.TraceContext{}),
			otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // metrics are in Prometheus
			otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		)))
	}
	if s.opts.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.opts.TLS)))
	}
	return opts
}

// register adds etcd's services, its locks and elections included, and the health service.
func (s *Server) register(g *grpc.Server) {
	svc := &services{s}
	g.RegisterService(keyValueService(), s.adapter)
	pb.RegisterWatchServer(g, svc)
	pb.RegisterLeaseServer(g, svc)
	pb.RegisterMaintenanceServer(g, s.adapter)
	pb.RegisterClusterServer(g, s.adapter)
	pb.RegisterAuthServer(g, &authService{f: s.adapter})
	s.registerLocks(g)
	healthpb.RegisterHealthServer(g, s.health)
}

// services adds the streaming calls to the adapter, and ends them on stop.
type services struct{ s *Server }

func (v *services) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return v.s.adapter.LeaseGrant(ctx, r)
}

func (v *services) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return v.s.adapter.LeaseRevoke(ctx, r)
}

func (v *services) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return v.s.adapter.LeaseTimeToLive(ctx, r)
}

func (v *services) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return v.s.adapter.LeaseLeases(ctx, r)
}

// LeaseKeepAlive mostly waits for the client; when the server stops, it may be abandoned
// without a loss.
func (v *services) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	done := make(chan error, 1)
	go func() { done <- v.s.adapter.keepAlive(stream) }()
	select {
	case err := <-done:
		return err
	case <-v.s.ctx.Done():
		return rpctypes.ErrGRPCStopped
	}
}

func (v *services) Watch(stream pb.Watch_WatchServer) error {
	v.s.metrics.watchStreams.Inc()
	defer v.s.metrics.watchStreams.Dec()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(v.s.ctx, func() { cancel(rpctypes.ErrGRPCStopped) })()
	return v.s.adapter.serveWatch(stoppableEnd{stream, ctx})
}

// stoppableEnd is a watch stream whose context also ends with the server.
type stoppableEnd struct {
	pb.Watch_WatchServer
	ctx context.Context
}

func (e stoppableEnd) Context() context.Context { return e.ctx }

// Serve answers on l until Stop, and then returns nil. It may be called for several
// listeners. It serves plaintext only where the network cannot read or spoof it.
func (s *Server) Serve(l net.Listener) error {
	if err := checkPlaintext(l.Addr(), s.opts.TLS != nil); err != nil {
		return err
	}
	s.mu.Lock()
	s.addresses = append(s.addresses, s.url(l.Addr()))
	s.mu.Unlock()
	err := s.grpc.Serve(l)
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("serve etcd clients on %s: %w", l.Addr(), err)
	}
	return nil
}

// checkPlaintext refuses an unencrypted listener that other hosts can reach.
func checkPlaintext(addr net.Addr, encrypted bool) error {
	tcp, ok := addr.(*net.TCPAddr)
	if encrypted || !ok || tcp.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("serve etcd clients on %s: refused, because without TLS anyone on the network could read and change all data: "+
		"specify a certificate and key, or listen on a loopback address such as 127.0.0.1:2379", addr)
}

func (s *Server) url(addr net.Addr) string {
	switch {
	case addr.Network() == "unix":
		return "unix://" + addr.String()
	case s.opts.TLS != nil:
		return "https://" + addr.String()
	default:
		return "http://" + addr.String()
	}
}

func (s *Server) clientURLs() []string {
	if s.opts.ClientURLs != nil {
		return s.opts.ClientURLs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.addresses...)
}

// Stop announces the shutdown to health checks and streams, lets calls in progress finish
// until ctx ends, and then closes all connections. Clients resume their watches on another
// server, or here after a restart.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	s.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.grpc.Stop()
		<-done
	}
}

// Metrics serves the server's metrics in Prometheus' format.
func (s *Server) Metrics() http.Handler { return s.metrics.handler() }

// Registry accepts further metrics for the same page, such as the engine's.
func (s *Server) Registry() prometheus.Registerer { return s.metrics.registry }
