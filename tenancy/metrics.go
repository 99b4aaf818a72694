package tenancy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the workspaces of one server. They have no label with a workspace: there may be ten thousand. A nil Metrics
// records nothing.
type Metrics struct {
	awake   prometheus.Gauge
	opening *prometheus.HistogramVec
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		awake: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_tenancy_workspaces_awake",
			Help: "Workspaces that are open on this server because requests use them, or have within the last minute."}),
		opening: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_tenancy_workspace_open_duration_seconds",
			Help: "Duration of the opening of workspaces, by result: opened or failed.", Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10}}, []string{"result"}),
	}
}

// opened records the end of an opening.
func (m *Metrics) opened(took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "opened"
	if err != nil {
		result = "failed"
	} else {
		m.awake.Inc()
	}
	m.opening.WithLabelValues(result).Observe(took.Seconds())
}

// closed records that a workspace was closed.
func (m *Metrics) closed() {
	if m != nil {
		m.awake.Dec()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.awake.Describe(out)
	m.opening.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.awake.Collect(out)
	m.opening.Collect(out)
}
