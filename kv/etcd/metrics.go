package etcd

import (
	"context"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/kv"
)

// metrics are the metrics of one server, in their own registry.
type metrics struct {
	registry     *prometheus.Registry
	handled      *prometheus.CounterVec
	seconds      *prometheus.HistogramVec
	watchStreams prometheus.Gauge

	// methods caches the metrics that a successful call of a method updates.
	methods sync.Map
}

type methodMetrics struct {
	ok      prometheus.Counter
	seconds prometheus.Observer
}

func newMetrics(ks kv.Keyspace) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grpc_server_handled_total",
			Help: "Calls completed, by outcome.",
		}, []string{"grpc_service", "grpc_method", "grpc_code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "grpc_server_handling_seconds",
			Help:    "Time from a call's arrival to its answer, of calls that are not streams.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}, []string{"grpc_service", "grpc_method"}),
		watchStreams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_kv_watch_streams",
			Help: "Watch streams open now.",
		}),
	}
	m.registry.MustRegister(m.handled, m.seconds, m.watchStreams, NewKeyspaceMetrics(ks))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

func (m *metrics) method(full string) *methodMetrics {
	if v, ok := m.methods.Load(full); ok {
		return v.(*methodMetrics)
	}
	service, method := split(full)
	v, _ := m.methods.LoadOrStore(full, &methodMetrics{
		ok:      m.handled.WithLabelValues(service, method, codes.OK.String()),
		seconds: m.seconds.WithLabelValues(service, method),
	})
	return v.(*methodMetrics)
}

// split splits "/package.Service/Method".
func split(full string) (service, method string) {
	dir, method := path.Split(full)
	return path.Clean(dir)[1:], method
}

func (m *metrics) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	start := time.Now()
	resp, err := next(ctx, req)
	mm := m.method(info.FullMethod)
	mm.seconds.Observe(time.Since(start).Seconds())
	m.count(info.FullMethod, mm, err)
	return resp, err
}

func (m *metrics) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	err := next(srv, ss)
	service, method := split(info.FullMethod)
	m.handled.WithLabelValues(service, method, status.Code(err).String()).Inc()
	return err
}

func (m *metrics) count(full string, mm *methodMetrics, err error) {
	if err == nil {
		mm.ok.Inc()
		return
	}
	service, method := split(full)
	m.handled.WithLabelValues(service, method, status.Code(err).String()).Inc()
}
