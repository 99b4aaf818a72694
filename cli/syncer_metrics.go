package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metricsListener serves the metrics of a process that has no API of its own.
type metricsListener struct {
	listener net.Listener
	registry *prometheus.Registry
}

// listenForMetrics opens the listener. The metrics are those of the process and the given ones.
func listenForMetrics(address string, metrics ...prometheus.Collector) (*metricsListener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w: set --metrics-listen to a free address", err)
	}
	m := &metricsListener{listener, prometheus.NewRegistry()}
	m.registry.MustRegister(append(metrics, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))...)
	return m, nil
}

// serve serves /metrics until ctx ends.
func (m *metricsListener) serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(m.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
