package expose

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics count the shared APIs of each member, while this server leads. A nil Metrics records
// nothing.
type Metrics struct {
	shared *prometheus.Desc
	leads  atomic.Pointer[controller]
}

// NewMetrics returns metrics that are empty.
func NewMetrics() *Metrics {
	return &Metrics{shared: prometheus.NewDesc("atoll_fleet_shared_apis",
		"SharedAPIs by member and reason, which is Exposed if the member serves all groups.", []string{"cluster", "reason"}, nil)}
}

// lead records that a controller leads, until end is called.
func (m *Metrics) lead(c *controller) (end func()) {
	if m == nil {
		return func() {}
	}
	m.leads.Store(c)
	return func() { m.leads.Store(nil) }
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.shared }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	c := m.leads.Load()
	if c == nil {
		return
	}
	type labels struct{ cluster, reason string }
	counts := map[labels]int{}
	for _, s := range c.shared.All() {
		for _, e := range s.Status.Clusters {
			counts[labels{e.Name, e.Reason}]++
		}
	}
	for l, n := range counts {
		out <- prometheus.MustNewConstMetric(m.shared, prometheus.GaugeValue, float64(n), l.cluster, l.reason)
	}
}
