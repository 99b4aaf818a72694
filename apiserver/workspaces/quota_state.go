package workspaces

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	quota "k8s.io/apiserver/pkg/quota/v1"
)

// quotaStates are the namespaces of an open workspace in which this process has used quotas.
type quotaStates struct {
	mu     sync.Mutex
	all    map[string]*quotaState // by namespace
	counts sync.WaitGroup
	// ctx ends the counts. It is nil until the first one.
	ctx    context.Context //nolint:containedctx // it is that of the goroutines of an open workspace
	cancel context.CancelFunc
	closed bool
}

// quotaState is what this process knows about the quotas of one namespace.
type quotaState struct {
	namespace string
	// locked has one place. Only its holder checks, charges and counts the quotas.
	locked chan struct{}
	// counted is set once the objects were counted, under the lock.
	counted bool

	mu sync.Mutex
	// running are the charges of requests that have not ended.
	running map[*charge]bool
	// counting is set while a goroutine counts. again is set if it has to count again.
	counting, again bool
}

// known returns the state of a namespace in which this process has used quotas, nil if it has not.
func (s *quotaStates) known(namespace string) *quotaState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[namespace]
}

// of returns the state of a namespace that has quotas.
func (s *quotaStates) of(namespace string) *quotaState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*quotaState{}
	}
	if s.all[namespace] == nil {
		s.all[namespace] = &quotaState{namespace: namespace, locked: make(chan struct{}, 1), running: map[*charge]bool{}}
	}
	return s.all[namespace]
}

// start runs count in a goroutine, unless one counts the namespace already. That one counts again if again is set.
func (s *quotaStates) start(state *quotaState, again bool, count func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || !state.begins(again) {
		return
	}
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(context.Background())
	}
	ctx := s.ctx
	s.counts.Go(func() { count(ctx) })
}

// close ends all counts, and waits for that: the keyspace is closed next.
func (s *quotaStates) close() {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.counts.Wait()
}

// begins reports whether a goroutine must be started to count.
func (s *quotaState) begins(again bool) (start bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	start = !s.counting
	s.counting, s.again = true, s.again || start || again
	return start
}

// takeAgain reports whether there is a reason to count, and takes it.
func (s *quotaState) takeAgain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.again
	s.again = false
	return again
}

// end ends the counting, unless there is a new reason to count.
func (s *quotaState) end(force bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.again && !force {
		return false
	}
	s.counting = false
	return true
}

func (s *quotaState) lock(ctx context.Context) error {
	select {
	case s.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *quotaState) unlock() { <-s.locked }

// charge is the usage that one request has added to quotas.
type charge struct {
	resource schema.GroupResource
	used     map[types.UID]corev1.ResourceList // by quota
	// written is set once the object of the request is written.
	written atomic.Bool
}

func newCharge(resource schema.GroupResource) *charge {
	return &charge{resource: resource, used: map[types.UID]corev1.ResourceList{}}
}

func (c *charge) has(of corev1.ResourceQuota) bool { return c.used[of.UID] != nil }

// begin records a charge, before it is written. It ends with the request.
func (s *quotaState) begin(ctx context.Context, q *quotas, charged *charge, of types.UID, used corev1.ResourceList) {
	s.mu.Lock()
	charged.used[of] = used
	known := s.running[charged]
	s.running[charged] = true
	s.mu.Unlock()
	if known {
		return
	}
	end := func(kept bool) {
		s.mu.Lock()
		delete(s.running, charged)
		s.mu.Unlock()
		if w := workspaceOf(ctx); !kept && w != nil {
			q.countSoon(w, s.namespace)
		}
	}
	if r, _ := ctx.Value(chargesKey{}).(*requestCharges); r == nil || !r.add(charged, end) {
		end(false)
	}
}

// revoke forgets a charge that was not written.
func (s *quotaState) revoke(charged *charge, of types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(charged.used, of)
}

// charges returns what running requests have charged for objects that they have not written yet, by quota.
func (s *quotaState) charges() map[types.UID]corev1.ResourceList {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := map[types.UID]corev1.ResourceList{}
	for c := range s.running {
		if c.written.Load() {
			continue // a count sees it
		}
		for of, used := range c.used {
			sum[of] = quota.Add(sum[of], used)
		}
	}
	return sum
}

type chargesKey struct{}

// requestCharges are the charges of one request.
type requestCharges struct {
	mu       sync.Mutex
	all      []*charge
	end      []func(kept bool)
	finished bool
}

// add adds a charge, unless the request has ended: upstream's handlers do not wait for a storage that is too slow.
func (r *requestCharges) add(c *charge, end func(kept bool)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.finished {
		r.all, r.end = append(r.all, c), append(r.end, end)
	}
	return !r.finished
}

// wrote records that the request has written an object of a resource.
func (r *requestCharges) wrote(resource schema.GroupResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		if c.resource == resource {
			c.written.Store(true)
		}
	}
}

// finish ends the charges. A request that was refused after it charged, or that charged more than once because it tried again, has
// charged too much.
func (r *requestCharges) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	for i, end := range r.end {
		end(r.all[i].written.Load() && len(r.all) == 1)
	}
}

// withCharges ends the charges of each request with it.
func withCharges(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			next.ServeHTTP(w, r)
			return
		}
		charges := &requestCharges{}
		defer charges.finish()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chargesKey{}, charges)))
	})
}
