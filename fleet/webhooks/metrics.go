package webhooks

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Metrics are the metrics of the requests to webhooks that one server sends. A nil Metrics records nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_webhook_requests_total",
			Help: "Requests to webhooks of ResourceInterpretations, by operation and result: answered, refused or failed."}, []string{"operation", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_fleet_webhook_request_duration_seconds",
			Help: "Duration of requests to webhooks of ResourceInterpretations.", Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}}, []string{"operation"}),
	}
}

// asked records one request.
func (m *Metrics) asked(operation v1alpha1.InterpretationOperation, err error, took time.Duration) {
	if m == nil {
		return
	}
	result := "answered"
	var refused *interpret.RefusedError
	switch {
	case errors.As(err, &refused):
		result = "refused"
	case err != nil:
		result = "failed"
	}
	m.requests.WithLabelValues(string(operation), result).Inc()
	m.seconds.WithLabelValues(string(operation)).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.requests.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.requests.Collect(out)
	m.seconds.Collect(out)
}
