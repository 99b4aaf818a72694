package fleet

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Metrics are the metrics of the fleet on one server. The state of clusters and objects is counted in
// the caches of the leading session when the metrics are read. Other servers export none of it, so a
// sum over all servers counts nothing twice. A nil Metrics records nothing.
type Metrics struct {
	leader prometheus.Gauge
	errors *prometheus.CounterVec
	// These are counted in the session.
	ready, halted, objects, bindings *prometheus.Desc
	session                          atomic.Pointer[Session]
}

// NewMetrics returns metrics that are all zero.
func NewMetrics() *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("atoll_fleet_"+name, help, labels, nil)
	}
	return &Metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{Name: "atoll_fleet_leader", Help: "1 if this server runs the fleet's controllers."}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "atoll_fleet_reconcile_errors_total",
			Help: "Failed reconciles, by controller and reason."}, []string{"controller", "reason"}),
		ready:    desc("cluster_ready", "1 if the cluster is Ready.", "cluster"),
		halted:   desc("cluster_deletions_halted", "1 if the cluster's syncer holds removals because there are too many.", "cluster"),
		objects:  desc("cluster_objects", "Objects that are or should be in the cluster, by state and health.", "cluster", "state", "health"),
		bindings: desc("bindings", "Bindings, by whether the scheduler found clusters for the whole object.", "scheduled"),
	}
}

// lead records that a session leads, until end is called.
func (m *Metrics) lead(s *Session) (end func()) {
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

// Measured returns reconcile with its errors counted under the name of a controller.
func Measured[K comparable](m *Metrics, controller string, reconcile func(context.Context, K) error) func(context.Context, K) error {
	if m == nil {
		return reconcile
	}
	return func(ctx context.Context, key K) error {
		err := reconcile(ctx, key)
		if err != nil && ctx.Err() == nil {
			m.errors.WithLabelValues(controller, ErrorReason(err)).Inc()
		}
		return err
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.leader.Describe(out)
	m.errors.Describe(out)
	for _, d := range []*prometheus.Desc{m.ready, m.halted, m.objects, m.bindings} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.leader.Collect(out)
	m.errors.Collect(out)
	s := m.session.Load()
	if s == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	joined := map[string]bool{}
	for _, c := range s.Clusters.All() {
		joined[c.Name] = true
		gauge(m.ready, oneIf(meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady)), c.Name)
		gauge(m.halted, oneIf(meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted)), c.Name)
	}
	counts := count(s.Bindings.All(), joined)
	gauge(m.bindings, counts.scheduled, "true")
	gauge(m.bindings, counts.unscheduled, "false")
	for k, n := range counts.objects {
		gauge(m.objects, n, k.cluster, k.state, string(k.health))
	}
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// objectState is what objects in clusters are counted by.
type objectState struct {
	cluster, state string
	health         v1alpha1.Health
}

type bindingCounts struct {
	scheduled, unscheduled int
	objects                map[objectState]int
}

// States of an object in a cluster, besides the State constants of its entry.
const (
	stateSynced  = "Synced"  // the cluster has the last applied version
	statePending = "Pending" // the cluster was chosen and has reported nothing yet
	stateOther   = "Other"   // a state that this version does not know
)

// count counts bindings, and their entries in joined clusters. Labels come from reports, so unknown
// values are replaced: a member could otherwise create any number of series.
func count(bindings []*v1alpha1.ResourceBinding, joined map[string]bool) bindingCounts {
	out := bindingCounts{objects: map[objectState]int{}}
	reported := map[string]bool{}
	for _, b := range bindings {
		if meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.BindingScheduled) {
			out.unscheduled++
		} else {
			out.scheduled++
		}
		clear(reported)
		for i := range b.Status.Clusters {
			entry := &b.Status.Clusters[i]
			reported[entry.Name] = true
			if joined[entry.Name] {
				out.objects[objectState{entry.Name, stateOf(entry.Reason), healthOf(entry.Health)}]++
			}
		}
		for i := range b.Spec.Clusters {
			if name := b.Spec.Clusters[i].Name; joined[name] && !reported[name] {
				out.objects[objectState{name, statePending, v1alpha1.Unknown}]++
			}
		}
	}
	return out
}

func stateOf(reason string) string {
	switch reason {
	case "":
		return stateSynced
	case v1alpha1.StateApplying, v1alpha1.StateConflict, v1alpha1.StateApplyFailed, v1alpha1.StateForbidden, v1alpha1.StateRemoving, v1alpha1.StateHeld, v1alpha1.StateAwaitsReplacement,
		v1alpha1.StateDrifted, v1alpha1.StateContested, v1alpha1.StateUnwatched, v1alpha1.StateSuspended:
		return reason
	}
	return stateOther
}

func healthOf(health v1alpha1.Health) v1alpha1.Health {
	switch health {
	case v1alpha1.Healthy, v1alpha1.Progressing, v1alpha1.Degraded:
		return health
	}
	return v1alpha1.Unknown
}

// ErrorReason returns the reason of an error for a metric: the API's reason if it is one of Kubernetes'
// own, Timeout, Unreachable, or Other. Webhooks can return any reason, and there must not be a series
// for each.
func ErrorReason(err error) string {
	reason := apierrors.ReasonForError(err)
	known := []metav1.StatusReason{
		metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonNotFound, metav1.StatusReasonAlreadyExists,
		metav1.StatusReasonConflict, metav1.StatusReasonGone, metav1.StatusReasonInvalid, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTimeout, metav1.StatusReasonTooManyRequests, metav1.StatusReasonBadRequest, metav1.StatusReasonMethodNotAllowed,
		metav1.StatusReasonRequestEntityTooLarge, metav1.StatusReasonInternalError, metav1.StatusReasonExpired, metav1.StatusReasonServiceUnavailable,
	}
	var network net.Error
	switch {
	case slices.Contains(known, reason):
		return string(reason)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return string(metav1.StatusReasonTimeout)
	case errors.As(err, &network):
		return "Unreachable"
	}
	return "Other"
}
