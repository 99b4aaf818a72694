package apiserver

import "github.com/prometheus/client_golang/prometheus"

// EncryptionMetrics are the metrics of a DefaultEncryption.
type EncryptionMetrics struct {
	rewritten *prometheus.CounterVec
	complete  prometheus.Gauge
	pending   prometheus.Gauge
}

// NewEncryptionMetrics returns metrics that are not registered yet.
func NewEncryptionMetrics() *EncryptionMetrics {
	return &EncryptionMetrics{
		rewritten: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "atoll_encryption_rewritten_objects_total",
			Help: "Stored objects that were written again to encrypt them with the present key, by resource.",
		}, []string{"resource"}),
		complete: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_encryption_complete",
			Help: "1 on the leading server once all stored objects are encrypted as configured, those of all workspaces included.",
		}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "atoll_encryption_pending_workspaces",
			Help: "On the leading server: workspaces that may have stored objects that are not encrypted as configured.",
		}),
	}
}

// Describe implements prometheus.Collector.
func (m *EncryptionMetrics) Describe(out chan<- *prometheus.Desc) {
	m.rewritten.Describe(out)
	m.complete.Describe(out)
	m.pending.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *EncryptionMetrics) Collect(out chan<- prometheus.Metric) {
	m.rewritten.Collect(out)
	m.complete.Collect(out)
	m.pending.Collect(out)
}
