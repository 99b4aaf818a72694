package aggregate

import "github.com/prometheus/client_golang/prometheus"

// Metrics count the requests of members. A nil Metrics records nothing.
type Metrics struct {
	requests *prometheus.CounterVec
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_member_requests_total",
		Help: "Requests on the member port, by member and whether they were accepted."}, []string{"cluster", "result"})}
}

// Results of the metric of requests.
const (
	resultAccepted     = "accepted"
	resultUnavailable  = "unavailable"  // this server does not know the members yet
	resultUnauthorized = "unauthorized" // no member's certificate, or no user
	resultRefused      = "refused"      // the group is not exposed to the member, or the request is malformed
)

// count counts a request. cluster is empty if the request is not from a member.
func (m *Metrics) count(cluster, result string) {
	if m != nil {
		m.requests.WithLabelValues(cluster, result).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { m.requests.Describe(out) }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) { m.requests.Collect(out) }
