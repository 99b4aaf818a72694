// Package syncer keeps one member cluster in line with what is bound to it, and
// reports what becomes of it there. It is given a view of the control plane and a
// way to reach the member, so it runs anywhere.
//
// All that it must not forget stands in the control plane: before the first write
// of an object to the member, an entry in the binding says so, and the entry goes
// only when the object is known to be gone. So a crash, a lost connection or a
// restart leaves nothing behind unknown, and deletes nothing.
package syncer

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// FieldManager owns in the member what the syncer applies there.
const FieldManager = v1alpha1.SyncerFieldManager

const (
	// workers apply in parallel; each waits for the member most of the time.
	workers = 8
	// gather is how long a change in the member waits for more of its kind: a
	// controller there often writes several times in a row.
	gather = 20 * time.Millisecond
	// pace is how long it takes at least from one report that an object is on its way
	// to the next: a rollout changes a status many times a second, and each report is
	// a write and makes others. That it is there, or in trouble, is told at once.
	pace = 500 * time.Millisecond
	// patience is the longest pause between attempts that fail.
	patience = 30 * time.Second
)

// Syncer serves one cluster.
type Syncer struct {
	View
	cluster string
	clock   clock.WithTicker
	log     *slog.Logger
	member  *member
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]

	catching catching

	mu      sync.Mutex
	known   map[types.NamespacedName]*memory
	breaker breaker
	// last serialises the last steps of removals, so that of two last objects of
	// a namespace one sees that it is the last.
	last sync.Mutex
}

// memory is what the syncer knows of one binding beyond the cache, which lags
// behind its own writes. All of it can be lost: it saves work.
type memory struct {
	mu sync.Mutex
	// uid of the binding that this is about.
	uid types.UID
	// entry as last written; nil if there is none, and unset if not known.
	entry *v1alpha1.ClusterState
	set   bool
	// told is when that was.
	told time.Time
	// gone: set while the binding has no entry of this cluster. It is read without
	// mu, under Syncer.last.
	gone atomic.Bool
	// applied is a digest of what was applied last, and settled a digest of what
	// the member made of it: while both hold, there is nothing to apply.
	applied, settled string
	// version of the object in the member that settled is about.
	version string
	// drifted says what differs there and is left so; "" if nothing does.
	drifted string
	drift   drift
	// contest says who keeps changing it there, while somebody does.
	contest string
	// leaving is since when it is known that the object is to be removed.
	leaving time.Time
}

// begin forgets all and is about another binding from now on.
func (m *memory) begin(uid types.UID) {
	m.uid, m.entry, m.set, m.told = uid, nil, false, time.Time{}
	m.gone.Store(false)
	m.unsettle()
	m.drift, m.leaving = drift{}, time.Time{}
}

// unsettle forgets what was applied, so that it will be again.
func (m *memory) unsettle() { m.applied, m.settled, m.version, m.drifted = "", "", "", "" }

// settle remembers what was applied and what the member made of it.
func (m *memory) settle(applied, settled string, live *unstructured.Unstructured) {
	m.applied, m.settled, m.version, m.drifted = applied, settled, live.GetResourceVersion(), ""
}

// said is what an entry keeps of this, for a syncer that begins: what was applied and,
// unless somebody changed it since, what the member made of it.
func (m *memory) said() string {
	if m.settled == "" || m.drifted != "" {
		return m.applied
	}
	return m.applied + "." + m.settled
}

// recall takes up what an entry keeps. Without what the member made of it, it has to be
// applied again to find that out.
func (m *memory) recall(said string) {
	if applied, settled, both := strings.Cut(said, "."); both {
		m.applied, m.settled = applied, settled
	}
}

// lastApplied gives of an entry what was applied.
func lastApplied(entry *v1alpha1.ClusterState) string {
	applied, _, _ := strings.Cut(entry.Applied, ".")
	return applied
}

// outdated tells whether live, from a cache, is older than what was applied.
func (m *memory) outdated(live *unstructured.Unstructured) bool {
	if m.version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(live.GetResourceVersion(), m.version)
	return err == nil && order < 0
}

// Options say which cluster a syncer serves, and by which clock.
type Options struct {
	Cluster string
	Clock   clock.WithTicker
	Log     *slog.Logger
	// CaughtUp, if set, is called once: when all that was bound at the beginning has been
	// looked at, whether that succeeded or not.
	CaughtUp func()
}

// Run serves a cluster, to which cfg leads, until ctx ends. It returns early only if it
// cannot begin.
func Run(ctx context.Context, view View, o Options, cfg *rest.Config) error {
	s, err := newSyncer(view, o, cfg)
	if err != nil {
		return err
	}
	return s.run(ctx)
}

func newSyncer(view View, o Options, cfg *rest.Config) (*Syncer, error) {
	cluster := o.Cluster
	cfg = rest.CopyConfig(cfg)
	// The member guards itself with priority and fairness; a fixed number of
	// workers is the limit on this side.
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = FieldManager
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: make a client of cluster %s: %w", cluster, err)
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: make a client of cluster %s: %w", cluster, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: make a client of cluster %s: %w", cluster, err)
	}
	s := &Syncer{View: view, cluster: cluster, clock: o.Clock, log: o.Log.With("cluster", cluster),
		known: map[types.NamespacedName]*memory{}, breaker: breaker{wave: wave, glance: glance},
		catching: catching{caughtUp: o.CaughtUp},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, patience),
			// Without a name it has no metrics: a thousand queues would write the same ones,
			// each twice a second.
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: o.Clock}),
	}
	s.member = newMember(dyn, meta, disco, s.memberChanged)
	s.member.sighted = s.lookAgain
	return s, nil
}

func (s *Syncer) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.member.start(ctx)
	defer s.member.wait()
	defer stop()
	defer s.queue.ShutDown()
	defer s.Subscribe(func(key types.NamespacedName) {
		s.catching.expect(key)
		s.queue.Add(key)
	})()
	s.catching.expected()
	var minding sync.WaitGroup
	defer minding.Wait()
	defer stop()
	minding.Go(func() { s.breaker.mind(ctx, s) })
	fleet.Work(ctx, s.queue, workers, func(ctx context.Context, key types.NamespacedName) error {
		defer s.catching.looked(key)
		return s.reconcile(ctx, key)
	}, s.failed)
	return nil
}

// memberChanged hears of each change of an object that carries our mark.
func (s *Syncer) memberChanged(key types.NamespacedName) { s.queue.AddAfter(key, gather) }

// lookAgain has everything of a kind looked at: whether the member tells of its changes
// is not as it was.
func (s *Syncer) lookAgain(k interpret.Kind) {
	for _, b := range s.Bindings() {
		if b.Spec.Resource.GroupVersionKind().GroupKind() == k.GroupKind() {
			s.queue.Add(b.Key())
		}
	}
}

func (s *Syncer) failed(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		s.log.Debug("cannot sync; will try again", "binding", key.String(), "error", err)
	}
	return true
}

func (s *Syncer) remember(key types.NamespacedName) *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.known[key]
	if m == nil {
		m = &memory{}
		s.known[key] = m
	}
	return m
}

func (s *Syncer) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, key)
}
