package view

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the views that one server serves. A nil Metrics records nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	watches  *prometheus.GaugeVec
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_view_requests_total",
			Help: "Requests to views of clusters in mode Pull, by HTTP method (or WATCH) and status code."}, []string{"cluster", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_fleet_view_request_duration_seconds",
			Help: "Duration of requests to views that are not watches.", Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}}, []string{"method"}),
		watches: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_fleet_view_watches",
			Help: "Watches of views that are open now."}, []string{"cluster"}),
	}
}

// methodWatch is the method label of watches.
const methodWatch = "WATCH"

// begin records that a request for the view of a joined cluster begins. The caller writes the response
// to the returned writer, and then calls end.
func (m *Metrics) begin(w http.ResponseWriter, r *http.Request, cluster string, now func() time.Time) (_ http.ResponseWriter, end func()) {
	if m == nil {
		return w, func() {}
	}
	recorder := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
	if Watches(r) {
		open := m.watches.WithLabelValues(cluster)
		open.Inc()
		return recorder, func() {
			open.Dec()
			m.requests.WithLabelValues(cluster, methodWatch, strconv.Itoa(recorder.code)).Inc()
		}
	}
	method := methodOf(r)
	began := now()
	return recorder, func() {
		m.requests.WithLabelValues(cluster, method, strconv.Itoa(recorder.code)).Inc()
		m.seconds.WithLabelValues(method).Observe(now().Sub(began).Seconds())
	}
}

// methodOf returns the method of a request for a label. A client can send any word.
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodPut, http.MethodPost:
		return r.Method
	}
	return "OTHER"
}

// forget removes the series of a cluster that has left.
func (m *Metrics) forget(cluster string) {
	if m != nil {
		m.requests.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
		m.watches.DeleteLabelValues(cluster)
	}
}

// statusRecorder remembers the status code of a response.
type statusRecorder struct {
	http.ResponseWriter
	code int
}

func (w *statusRecorder) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController, which flushes watches.
func (w *statusRecorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.watches}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
}
