package plancontroller

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// writes counts the writes that the feed has reported since this server leads, by namespace.
type writes struct {
	clock clock.PassiveClock

	mu          sync.Mutex
	byNamespace map[string]*namespaceWrites
}

type namespaceWrites struct {
	// changes counts writes of objects and states.
	changes int64
	// first and last bound the writes that no policy has planned yet; zero if there are none.
	first, last time.Time
}

func newWrites(c clock.PassiveClock) *writes {
	return &writes{clock: c, byNamespace: map[string]*namespaceWrites{}}
}

// of returns the entry of a namespace. The caller holds the lock.
func (w *writes) of(namespace string) *namespaceWrites {
	n := w.byNamespace[namespace]
	if n == nil {
		n = &namespaceWrites{}
		w.byNamespace[namespace] = n
	}
	return n
}

// observe records a write of an object or of a state.
func (w *writes) observe(namespace string, state bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.of(namespace)
	n.changes++
	if state {
		return
	}
	n.last = w.clock.Now()
	if n.first.IsZero() {
		n.first = n.last
	}
}

// changes returns the number of writes so far.
func (w *writes) changes(namespace string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of(namespace).changes
}

// unplanned returns the times of the first and the last write that no policy has planned yet.
func (w *writes) unplanned(namespace string) (first, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.of(namespace)
	return n.first, n.last
}

// setUnplanned replaces those times.
func (w *writes) setUnplanned(namespace string, first, last time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.of(namespace)
	n.first, n.last = first, last
}

// perPlan keeps a T for each plan. The maps have a lock; a T has none, because only one worker reconciles a
// namespace at a time.
type perPlan[T any] struct {
	mu          sync.Mutex
	byNamespace map[string]map[types.UID]*T
}

// of returns the value of a plan, which is zero at first.
func (m *perPlan[T]) of(p *v1alpha1.Plan) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	plans := m.byNamespace[p.Namespace]
	if plans == nil {
		plans = map[types.UID]*T{}
		if m.byNamespace == nil {
			m.byNamespace = map[string]map[types.UID]*T{}
		}
		m.byNamespace[p.Namespace] = plans
	}
	if plans[p.UID] == nil {
		plans[p.UID] = new(T)
	}
	return plans[p.UID]
}

// dropGone removes the values of plans that no longer exist.
func (m *perPlan[T]) dropGone(s *snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.byNamespace[s.namespace] {
		if !slices.ContainsFunc(s.plans, func(p *v1alpha1.Plan) bool { return p.UID == uid }) {
			delete(m.byNamespace[s.namespace], uid)
		}
	}
}
