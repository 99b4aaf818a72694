package providercontroller

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zclconf/go-cty/cty"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Metrics are the metrics of this server's providers. A nil Metrics records nothing.
type Metrics struct {
	calls     *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	inFlight  *prometheus.GaugeVec
	starts    *prometheus.CounterVec
	installed *prometheus.Desc
	registry  atomic.Pointer[Registry]
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	return &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_infra_provider_calls_total",
			Help: "Calls of providers that ended, by method and result."}, []string{"provider", "method", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_infra_provider_call_duration_seconds",
			Help:    "Duration of calls of providers, with the wait for the provider's limits and for its start.",
			Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}}, []string{"provider", "method"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "atoll_infra_provider_calls_in_flight",
			Help: "Calls of providers that run or wait now."}, []string{"provider"}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_infra_provider_configurations_total",
			Help: "Providers that were started and configured for a ProviderConfig, by result."}, []string{"provider", "result"}),
		installed: prometheus.NewDesc("atoll_infra_provider_installed", "1 if the Provider's package is installed on this server.", []string{"provider"}, nil),
	}
}

// Results of the metrics of calls and starts.
const (
	resultOK          = "ok"
	resultError       = "error"       // the provider answered with errors
	resultUnavailable = "unavailable" // no answer: the outcome is unknown
	resultNotCalled   = "not_called"  // the call did not reach the provider
	resultInvalid     = "invalid"     // the answer violates the protocol
)

func resultOf(diagnostics providerapi.Diagnostics, err error) string {
	switch {
	case err == nil && diagnostics.Failed():
		return resultError
	case err == nil:
		return resultOK
	case errors.Is(err, providerapi.ErrNotCalled):
		return resultNotCalled
	case errors.Is(err, providerapi.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return resultUnavailable
	}
	return resultInvalid
}

// measured returns an instance whose calls are counted.
func (m *Metrics) measured(provider string, i instance, clock clock.PassiveClock) instance {
	if m == nil {
		return i
	}
	return measuredInstance{i, m, provider, clock}
}

func (m *Metrics) started(provider string, diagnostics providerapi.Diagnostics, err error) {
	if m != nil {
		m.starts.WithLabelValues(provider, resultOf(diagnostics, err)).Inc()
	}
}

// forget removes the series of a Provider that no longer exists.
func (m *Metrics) forget(provider string) {
	if m == nil {
		return
	}
	of := prometheus.Labels{"provider": provider}
	m.calls.DeletePartialMatch(of)
	m.seconds.DeletePartialMatch(of)
	m.inFlight.DeletePartialMatch(of)
	m.starts.DeletePartialMatch(of)
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.seconds, m.inFlight, m.starts}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
	out <- m.installed
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
	r := m.registry.Load()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, e := range r.entries {
		is := 0.0
		if e.usable {
			is = 1
		}
		out <- prometheus.MustNewConstMetric(m.installed, prometheus.GaugeValue, is, name)
	}
}

// measuredInstance counts the calls of an instance.
type measuredInstance struct {
	instance
	metrics  *Metrics
	provider string
	clock    clock.PassiveClock
}

// begin records the begin of a call. The function that it returns records the end.
func (i measuredInstance) begin(method string) (end func(providerapi.Diagnostics, error)) {
	running := i.metrics.inFlight.WithLabelValues(i.provider)
	running.Inc()
	began := i.clock.Now()
	return func(diagnostics providerapi.Diagnostics, err error) {
		running.Dec()
		i.metrics.calls.WithLabelValues(i.provider, method, resultOf(diagnostics, err)).Inc()
		i.metrics.seconds.WithLabelValues(i.provider, method).Observe(i.clock.Since(began).Seconds())
	}
}

// ValidateResource implements providerapi.Provider.
func (i measuredInstance) ValidateResource(ctx context.Context, typeName string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	end := i.begin("ValidateResource")
	answer, err := i.instance.ValidateResource(ctx, typeName, config)
	end(answer, err)
	return answer, err
}

// ValidateData implements providerapi.Provider.
func (i measuredInstance) ValidateData(ctx context.Context, typeName string, config cty.Value) (providerapi.Diagnostics, error) {
	end := i.begin("ValidateData")
	answer, err := i.instance.ValidateData(ctx, typeName, config)
	end(answer, err)
	return answer, err
}

// Upgrade implements providerapi.Provider.
func (i measuredInstance) Upgrade(ctx context.Context, typeName string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	end := i.begin("Upgrade")
	answer, err := i.instance.Upgrade(ctx, typeName, stored)
	end(answer.Diagnostics, err)
	return answer, err
}

// Read implements providerapi.Provider.
func (i measuredInstance) Read(ctx context.Context, request providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	end := i.begin("Read")
	answer, err := i.instance.Read(ctx, request)
	end(answer.Diagnostics, err)
	return answer, err
}

// Plan implements providerapi.Provider.
func (i measuredInstance) Plan(ctx context.Context, request providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	end := i.begin("Plan")
	answer, err := i.instance.Plan(ctx, request)
	end(answer.Diagnostics, err)
	return answer, err
}

// Apply implements providerapi.Provider.
func (i measuredInstance) Apply(ctx context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	end := i.begin("Apply")
	answer, err := i.instance.Apply(ctx, request)
	end(answer.Diagnostics, err)
	return answer, err
}

// Import implements providerapi.Provider.
func (i measuredInstance) Import(ctx context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	end := i.begin("Import")
	answer, err := i.instance.Import(ctx, typeName, id)
	end(answer.Diagnostics, err)
	return answer, err
}

// Move implements providerapi.Provider.
func (i measuredInstance) Move(ctx context.Context, request providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	end := i.begin("Move")
	answer, err := i.instance.Move(ctx, request)
	end(answer.Diagnostics, err)
	return answer, err
}

// ReadData implements providerapi.Provider.
func (i measuredInstance) ReadData(ctx context.Context, typeName string, config cty.Value) (providerapi.DataAnswer, error) {
	end := i.begin("ReadData")
	answer, err := i.instance.ReadData(ctx, typeName, config)
	end(answer.Diagnostics, err)
	return answer, err
}
