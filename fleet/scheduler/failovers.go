package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ReasonFailedOver is the reason of an object's event when it leaves a cluster that is unreachable, or in which it is not
// Healthy.
const ReasonFailedOver = "FailedOver"

// failoversKept is how long the scheduler remembers the failovers that it recorded. Its cache of bindings lags by
// moments, and with an earlier version of the list a write would remove the latest entries.
const failoversKept = 10 * time.Minute

// failovers are the failovers that this leader has recorded lately, by the UID of the binding.
type failovers struct {
	mu sync.Mutex
	of map[types.UID][]v1alpha1.FailoverRecord
}

// add remembers new records of a binding.
func (f *failovers) add(binding types.UID, records []v1alpha1.FailoverRecord, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[types.UID][]v1alpha1.FailoverRecord{}
	}
	for other, list := range f.of {
		if now.Sub(list[0].Time.Time) > failoversKept {
			delete(f.of, other)
		}
	}
	f.of[binding] = mergeFailovers(records, f.of[binding])
}

// with returns the failovers of a binding, latest first.
func (f *failovers) with(b *v1alpha1.ResourceBinding) []v1alpha1.FailoverRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	if recent := f.of[b.UID]; len(recent) > 0 {
		return mergeFailovers(recent, b.Status.Failovers)
	}
	return b.Status.Failovers
}

// mergeFailovers returns the latest records of two lists, latest first.
func mergeFailovers(a, b []v1alpha1.FailoverRecord) []v1alpha1.FailoverRecord {
	out := slices.Clone(a)
	for _, r := range b {
		if !slices.ContainsFunc(out, func(o v1alpha1.FailoverRecord) bool { return o.Cluster == r.Cluster && o.Time.Equal(&r.Time) }) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b v1alpha1.FailoverRecord) int { return b.Time.Compare(a.Time.Time) })
	return out[:min(len(out), v1alpha1.MaxFailoverRecords)]
}

// recordFailovers records the failovers of a decision that was written, with an event of the object. The next write of
// the binding's status has them.
func (s *scheduler) recordFailovers(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, p bindingUpdate) {
	if b == nil {
		return
	}
	now, to, chosen := s.Clock.Now(), describe(p.shares), clustersIn(p.shares)
	var records []v1alpha1.FailoverRecord
	var from []string
	for _, name := range p.evicted {
		if chosen[name] {
			continue // others need it there
		}
		c, _ := s.fleetSnapshot().Cluster(name)
		// Times in the API have whole seconds.
		records = append(records, v1alpha1.FailoverRecord{Time: metav1.NewTime(now.Truncate(time.Second)), Cluster: name, Reason: c.Why, To: to})
		from = append(from, fmt.Sprintf("%s (%s since %s)", name, c.Why, c.Since.UTC().Format(time.RFC3339)))
	}
	for _, name := range p.degraded {
		if chosen[name] {
			continue
		}
		records = append(records, v1alpha1.FailoverRecord{Time: metav1.NewTime(now.Truncate(time.Second)), Cluster: name, Reason: v1alpha1.AvoidedDegraded, To: to})
		from = append(from, fmt.Sprintf("%s (%s since %s)", name, v1alpha1.AvoidedDegraded, p.result.Request.Degraded[name].UTC().Format(time.RFC3339)))
	}
	if len(records) == 0 {
		return
	}
	s.failovers.add(b.UID, records, now)
	s.Events.Eventf(obj, corev1.EventTypeWarning, ReasonFailedOver, "Left %s, runs in %s", strings.Join(from, ", "), to)
}
