package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Metrics are the scheduler's metrics. A nil Metrics records nothing.
type Metrics struct {
	decisions *prometheus.CounterVec
	seconds   prometheus.Histogram
	victims   prometheus.Counter
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_scheduler_decisions_total",
			Help: "Decisions about the placement of objects, by outcome."}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_fleet_scheduler_decision_duration_seconds",
			Help: "Duration of decisions, with the wait for others that use the same capacity, without the writes.", Buckets: prometheus.ExponentialBuckets(0.00005, 4, 10)}),
		victims: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_fleet_scheduler_preemption_victims_total",
			Help: "Objects, one for each cluster, that make room for others of a higher priority."}),
	}
}

// preempted records the objects that make room for another.
func (m *Metrics) preempted(p *v1alpha1.Preemption) {
	if m != nil {
		m.victims.Add(float64(len(p.Victims)))
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
	m.victims.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.decisions.Collect(out)
	m.seconds.Collect(out)
	m.victims.Collect(out)
}
