package clusters

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Metrics are the metrics of probes and heartbeats. A nil Metrics records nothing.
type Metrics struct {
	contact *prometheus.GaugeVec
	probes  *prometheus.CounterVec
	seconds prometheus.Histogram
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		contact: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_cluster_last_contact_timestamp_seconds",
			Help: "When the cluster last answered a probe or its syncer last sent a heartbeat, in Unix time."}, []string{"cluster"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_cluster_probes_total",
			Help: "Probes of clusters in mode Push, by result."}, []string{"cluster", "result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_fleet_cluster_probe_duration_seconds",
			Help: "Duration of probes.", Buckets: []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5}}),
	}
}

// probed records the result of a probe.
func (m *Metrics) probed(cluster string, r result, took time.Duration) {
	if m == nil {
		return
	}
	outcome := "failed"
	switch {
	case r.ready:
		outcome = "ready"
	case r.reason == v1alpha1.ReasonClusterNotReady:
		outcome = "not_ready"
	case r.reason == v1alpha1.ReasonWrongCluster:
		outcome = "wrong_cluster"
	case r.reason == v1alpha1.ReasonOtherControlPlane:
		outcome = "other_control_plane"
	}
	m.probes.WithLabelValues(cluster, outcome).Inc()
	m.seconds.Observe(took.Seconds())
	if outcome == "ready" || outcome == "not_ready" {
		m.heard(cluster, r.at)
	}
}

// heard records that a cluster answered or sent a heartbeat.
func (m *Metrics) heard(cluster string, at time.Time) {
	if m != nil {
		m.contact.WithLabelValues(cluster).Set(float64(at.UnixMilli()) / 1000)
	}
}

// forget removes the series of a cluster that has left.
func (m *Metrics) forget(cluster string) {
	if m != nil {
		m.contact.DeleteLabelValues(cluster)
		m.probes.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	}
}

// end is called when this server stops leading: the next leader hears from the clusters.
func (m *Metrics) end() {
	if m != nil {
		m.contact.Reset()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.contact.Describe(out)
	m.probes.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.contact.Collect(out)
	m.probes.Collect(out)
	m.seconds.Collect(out)
}
