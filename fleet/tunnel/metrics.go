package tunnel

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the tunnels of one server. A nil Metrics records nothing.
type Metrics struct{ open *prometheus.GaugeVec }

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_tunnels",
		Help: "Tunnels of clusters in mode Pull that this server has."}, []string{"cluster"})}
}

// opened records that a cluster has a tunnel. The caller calls ended when it has none.
func (m *Metrics) opened(cluster string) (ended func()) {
	if m == nil {
		return func() {}
	}
	open := m.open.WithLabelValues(cluster)
	open.Inc()
	return open.Dec
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { m.open.Describe(out) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) { m.open.Collect(out) }
