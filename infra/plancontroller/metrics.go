package plancontroller

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/applier"
	"github.com/atoll-dev/atoll/infra/feed"
	"github.com/atoll-dev/atoll/infra/planner"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Metrics are the metrics of plans and applies. Objects and resources are counted while this server
// leads, when the metrics are read. A nil Metrics records nothing.
type Metrics struct {
	leader                         prometheus.Gauge
	plans, applies                 *prometheus.CounterVec
	planSeconds, applySeconds      *prometheus.HistogramVec
	planResources                  prometheus.Histogram
	planned, applied, notApplied   *prometheus.CounterVec
	notPlanned                     prometheus.Counter
	errors                         *prometheus.CounterVec
	planPhases, applyPhases        *prometheus.Desc
	resourceCount, driftedResource *prometheus.Desc
	session                        atomic.Pointer[measuredSession]
}

// measuredSession is what the session of the leader is counted from.
type measuredSession struct {
	caches *caches
	feed   *feed.Feed
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_infra_" + name, Help: help}, labels)
	}
	seconds := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "atoll_infra_" + name, Help: help,
			Buckets: []float64{0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200}}, []string{"result"})
	}
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc("atoll_infra_"+name, help, []string{label}, nil)
	}
	return &Metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_infra_leader", Help: "1 if this server runs plans and applies."}),
		plans:  counter("plans_finished_total", "Plans that were computed or failed, by result.", "result"),
		planSeconds: seconds("plan_duration_seconds",
			"Time from the start of a plan until it was computed or failed, with retries."),
		planResources: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "atoll_infra_plan_resources",
			Help: "Resources that a plan decided about.", Buckets: prometheus.ExponentialBuckets(1, 4, 10)}),
		planned:    counter("plan_changes_total", "Changes in computed plans, by action.", "action"),
		notPlanned: prometheus.NewCounter(prometheus.CounterOpts{Name: "atoll_infra_plan_unplanned_resources_total", Help: "Resources that plans could not plan, with their dependents."}),
		applies:    counter("applies_finished_total", "Applies that ended, by result.", "result"),
		applySeconds: seconds("apply_duration_seconds",
			"Time from the start of an apply until it ended."),
		applied:         counter("apply_changes_total", "Changes that applies carried out, by action.", "action"),
		notApplied:      counter("apply_changes_failed_total", "Changes that applies did not carry out, by reason.", "reason"),
		errors:          counter("errors_total", "Attempts that failed and are repeated, by operation and reason.", "operation", "reason"),
		planPhases:      desc("plans", "Stored Plans by phase.", "phase"),
		applyPhases:     desc("applies", "Stored Applies by phase.", "phase"),
		resourceCount:   desc("resources", "Objects of resources and data sources, by provider.", "provider"),
		driftedResource: desc("resources_drifted", "Objects whose resource was changed outside of Atoll, by provider.", "provider"),
	}
}

// lead records that a session leads, until end is called.
func (m *Metrics) lead(s *measuredSession) (end func()) {
	if m == nil {
		return func() {}
	}
	m.session.Store(s)
	m.leader.Set(1)
	return func() {
		m.leader.Set(0)
		m.session.Store(nil)
	}
}

// planFinished records a plan that was computed; result is nil if it failed.
func (m *Metrics) planFinished(p *v1alpha1.Plan, result *planner.Result) {
	if m == nil {
		return
	}
	outcome := "failed"
	if result != nil {
		outcome = "complete"
		if len(result.Problems) > 0 || result.NotPlanned > 0 {
			outcome = "incomplete"
		}
		c := &result.Contents.Counts
		m.planResources.Observe(float64(c.Changes + result.NotPlanned))
		m.notPlanned.Add(float64(result.NotPlanned))
		countActions(m.planned, &v1alpha1.PlanSummary{Create: int64(c.Create), Update: int64(c.Update), Replace: int64(c.Replace), Delete: int64(c.Delete),
			Read: int64(c.Read), Import: int64(c.Import), Move: int64(c.Move), Forget: int64(c.Forget), Place: int64(c.Place)})
	}
	m.plans.WithLabelValues(outcome).Inc()
	observe(m.planSeconds.WithLabelValues(outcome), p.Status.StartTime, p.Status.CompletionTime)
}

// applyFinished records an apply that ended; result is nil if it did nothing.
func (m *Metrics) applyFinished(a *v1alpha1.Apply, result *applier.Result) {
	if m == nil {
		return
	}
	outcome := strings.ToLower(string(a.Status.Phase))
	m.applies.WithLabelValues(outcome).Inc()
	observe(m.applySeconds.WithLabelValues(outcome), a.Status.StartTime, a.Status.CompletionTime)
	if result == nil {
		return
	}
	countActions(m.applied, &result.Summary)
	for reason, n := range map[string]int64{"failed": result.Failed, "stale": result.Refused, "blocked": result.Blocked, "canceled": result.Canceled} {
		if n > 0 {
			m.notApplied.WithLabelValues(reason).Add(float64(n))
		}
	}
}

func observe(seconds prometheus.Observer, start, end *metav1.MicroTime) {
	if start != nil && end != nil {
		seconds.Observe(end.Sub(start.Time).Seconds())
	}
}

// countActions adds the changes of a plan or an apply by action, without those that change nothing.
func countActions(to *prometheus.CounterVec, s *v1alpha1.PlanSummary) {
	for action, n := range map[string]int64{"create": s.Create, "update": s.Update, "replace": s.Replace, "delete": s.Delete,
		"read": s.Read, "import": s.Import, "move": s.Move, "forget": s.Forget, "place": s.Place} {
		if n > 0 {
			to.WithLabelValues(action).Add(float64(n))
		}
	}
}

// Operations of the metric of errors.
const (
	operationPlan      = "plan"
	operationApply     = "apply"
	operationReconcile = "reconcile"
)

func (m *Metrics) failed(operation string, err error) {
	if m != nil {
		m.errors.WithLabelValues(operation, errorReason(err)).Inc()
	}
}

// errorReason returns the reason of an error for a metric. It is one of few.
func errorReason(err error) string {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, providerapi.ErrUnavailable):
		return "ProviderUnavailable"
	case errors.Is(err, infra.ErrNotServed):
		return "NotServed"
	case errors.Is(err, infra.ErrStale), apierrors.IsConflict(err):
		return "Conflict"
	case errors.Is(err, feed.ErrNotRunning), errors.Is(err, context.DeadlineExceeded), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return "Timeout"
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return "Forbidden"
	case errors.As(err, &status):
		return "API"
	}
	return "Other"
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.leader, m.plans, m.planSeconds, m.planResources, m.planned, m.notPlanned, m.applies, m.applySeconds, m.applied, m.notApplied, m.errors}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(out)
	}
	for _, d := range []*prometheus.Desc{m.planPhases, m.applyPhases, m.resourceCount, m.driftedResource} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(out)
	}
	s := m.session.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, n int, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
	}
	for phase, n := range countBy(s.caches.plans.All(), func(p *v1alpha1.Plan) v1alpha1.PlanPhase { return p.Status.Phase }, v1alpha1.PlanPending) {
		gauge(m.planPhases, n, string(phase))
	}
	for phase, n := range countBy(s.caches.applies.All(), func(a *v1alpha1.Apply) v1alpha1.ApplyPhase { return a.Status.Phase }, v1alpha1.ApplyPending) {
		gauge(m.applyPhases, n, string(phase))
	}
	for group, n := range s.feed.Counts() {
		provider := strings.TrimSuffix(group, "."+v1alpha1.ProvidersDomain)
		gauge(m.resourceCount, n.Objects, provider)
		gauge(m.driftedResource, n.Drifted, provider)
	}
}

// countBy counts objects by their phase. New objects have none yet.
func countBy[T any, P ~string](all []*T, phaseOf func(*T) P, initial P) map[P]int {
	out := map[P]int{}
	for _, object := range all {
		phase := phaseOf(object)
		if phase == "" {
			phase = initial
		}
		out[phase]++
	}
	return out
}
