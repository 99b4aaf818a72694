package syncer

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Metrics are the metrics of all syncers in a process. A nil Metrics records nothing.
type Metrics struct {
	seconds                     *prometheus.HistogramVec
	writes, errors, corrections *prometheus.CounterVec
	queued, held                *prometheus.Desc

	mu      sync.Mutex
	running map[*Syncer]bool
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_sync_" + name, Help: help}, append([]string{"cluster"}, labels...))
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("atoll_fleet_sync_"+name, help, []string{"cluster"}, nil)
	}
	return &Metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_fleet_sync_duration_seconds",
			Help: "Time from when a syncer hears of a changed object or decision until the cluster has stored it, with retries.",
			// There are as many of these as clusters.
			Buckets: []float64{0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}}, []string{"cluster"}),
		writes:      counter("writes_total", "Writes of objects to the cluster.", "operation"),
		errors:      counter("errors_total", "Failed attempts to synchronize an object, by reason.", "reason"),
		corrections: counter("drift_corrections_total", "Changes made in the cluster that the syncer reverted."),
		queued:      desc("queue_depth", "Objects that wait for a worker of the syncer."),
		held:        desc("held_removals", "Removals that the syncer holds because there are too many."),
		running:     map[*Syncer]bool{},
	}
}

// begin adds a running syncer, until end is called.
func (m *Metrics) begin(s *Syncer) (end func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running[s] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running, s)
		if _, joined := s.Cluster(); !joined {
			m.forget(s.cluster)
		}
	}
}

// forget removes the series of a cluster that has left.
func (m *Metrics) forget(cluster string) {
	m.seconds.DeleteLabelValues(cluster)
	of := prometheus.Labels{"cluster": cluster}
	for _, c := range []*prometheus.CounterVec{m.writes, m.errors, m.corrections} {
		c.DeletePartialMatch(of)
	}
}

func (m *Metrics) synced(cluster string, took time.Duration) {
	if m != nil {
		m.seconds.WithLabelValues(cluster).Observe(took.Seconds())
	}
}

// Operations of the metric of writes.
const (
	operationApply   = "apply"
	operationDelete  = "delete"
	operationRelease = "release" // removes Atoll's labels and keeps the object
)

func (m *Metrics) wrote(cluster, operation string) {
	if m != nil {
		m.writes.WithLabelValues(cluster, operation).Inc()
	}
}

func (m *Metrics) corrected(cluster string) {
	if m != nil {
		m.corrections.WithLabelValues(cluster).Inc()
	}
}

func (m *Metrics) failed(cluster string, err error) {
	var foreign conflictError
	switch {
	case m == nil, errors.Is(err, errRequeue), apierrors.IsConflict(err):
		// The next attempt is part of the normal course.
	case errors.As(err, &foreign):
		m.errors.WithLabelValues(cluster, "ForeignObject").Inc()
	case interpret.IsWaiting(err):
		m.errors.WithLabelValues(cluster, "Webhook").Inc()
	case errors.Is(err, fleet.ErrTransform):
		m.errors.WithLabelValues(cluster, "Override").Inc()
	default:
		m.errors.WithLabelValues(cluster, fleet.ErrorReason(err)).Inc()
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.seconds, m.writes, m.errors, m.corrections}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
	out <- m.queued
	out <- m.held
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	queued, held := map[string]int{}, map[string]int{}
	for s := range m.running {
		queued[s.cluster] += s.queue.Len()
		held[s.cluster] += s.breaker.held()
	}
	for cluster, n := range queued {
		out <- prometheus.MustNewConstMetric(m.queued, prometheus.GaugeValue, float64(n), cluster)
		out <- prometheus.MustNewConstMetric(m.held, prometheus.GaugeValue, float64(held[cluster]), cluster)
	}
}

// changes has when the syncer heard of changes that it has not handled yet. It is empty without
// metrics.
type changes struct {
	mu    sync.Mutex
	heard map[types.NamespacedName]time.Time // by binding
}

// add records that a binding or its object changed.
func (c *changes) add(key types.NamespacedName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard == nil {
		c.heard = map[types.NamespacedName]time.Time{}
	}
	if _, waits := c.heard[key]; !waits {
		c.heard[key] = now
	}
}

// take returns when the oldest change was heard of that is not handled yet; zero if there is none.
func (c *changes) take(key types.NamespacedName) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.heard[key]
	delete(c.heard, key)
	return at
}

// putBack is called with the result of take after a failure. A later change does not replace it.
func (c *changes) putBack(key types.NamespacedName, at time.Time) {
	if at.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard[key] = at
}
