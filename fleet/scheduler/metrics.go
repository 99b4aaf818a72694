package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the scheduler's metrics. A nil Metrics records nothing.
type Metrics struct {
	decisions *prometheus.CounterVec
	seconds   prometheus.Histogram
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_scheduler_decisions_total",
			Help: "Decisions about the placement of objects, by outcome."}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_fleet_scheduler_decision_duration_seconds",
			Help: "Duration of decisions, with the wait for others that use the same capacity, without the writes.", Buckets: prometheus.ExponentialBuckets(0.00005, 4, 10)}),
	}
}

// decided records a decision. Its outcome is the reason of the condition Scheduled.
func (m *Metrics) decided(r *Result, took time.Duration) {
	if m == nil {
		return
	}
	m.decisions.WithLabelValues(r.Condition.Reason).Inc()
	m.seconds.Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.decisions.Describe(out)
	m.seconds.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.decisions.Collect(out)
	m.seconds.Collect(out)
}
