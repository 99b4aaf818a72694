// Package syncer applies the objects bound to one member cluster there, and reports their state
// back. It is given a view of the control plane and a client configuration for the member, so
// it runs anywhere.
//
// All durable state is in the control plane. Before the syncer first writes an object to the
// member, it records an entry in the binding. It removes the entry only once it knows that the
// object is gone. So a crash, a lost connection or a restart leaves no untracked object behind,
// and deletes nothing.
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

// FieldManager owns the fields that the syncer applies in the member.
const FieldManager = v1alpha1.SyncerFieldManager

const (
	// workers is the number of parallel reconciles; each waits for the member most of the time.
	workers = 8
	// batchWindow is how long a change in the member is delayed so that further changes of the
	// same object are batched: a controller often writes several times in a row.
	gather = 20 * time.Millisecond
	// reportInterval is the minimum time between two reports of an object that is still
	// progressing. A rollout changes a status many times a second, and each report is a write
	// that causes further writes. Healthy, degraded and failed states are reported at once.
	pace = 500 * time.Millisecond
	// maxBackoff is the longest pause between failing attempts.
	patience = 30 * time.Second
)

// Syncer synchronizes one cluster.
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
	// removalMu serializes the last steps of removals. When the last two objects of a namespace
	// are removed at the same time, one of them then sees that it is the last.
	last sync.Mutex
}

// record is what the syncer remembers about one binding beyond the cache, which lags behind its
// own writes. Losing it is harmless: it only saves work.
type memory struct {
	mu sync.Mutex
	// uid is the UID of the binding that this record is about.
	uid types.UID
	// entry is the last recorded entry of this cluster, nil if there is none. It is valid once
	// loaded is set.
	entry *v1alpha1.ClusterState
	set   bool
	// reportedAt is when entry was written.
	told time.Time
	// gone is set while the binding has no entry of this cluster. It is read without mu, under
	// Syncer.removalMu.
	gone atomic.Bool
	// lastApplied is the digest of the manifest that was last applied, and lastObserved the
	// digest of the object that the member stored for it. While both match, there is nothing to
	// apply.
	applied, settled string
	// observedVersion is the resourceVersion of the object that lastObserved describes.
	version string
	// driftMessage lists the fields that differ in the member and are left as they are by
	// policy; "" if none does.
	drifted string
	drift   drift
	// contestMessage names the managers that keep reverting the object in the member.
	contest string
	// removalStart is when the syncer first learned that the object is to be removed.
	leaving time.Time
}

// reset clears the record and assigns it to another binding.
func (m *memory) begin(uid types.UID) {
	m.uid, m.entry, m.set, m.told = uid, nil, false, time.Time{}
	m.gone.Store(false)
	m.unsettle()
	m.drift, m.leaving = drift{}, time.Time{}
}

// invalidate clears the digests, so that the object is applied again.
func (m *memory) unsettle() { m.applied, m.settled, m.version, m.drifted = "", "", "", "" }

// observe records what was applied and what the member stored for it.
func (m *memory) settle(applied, settled string, live *unstructured.Unstructured) {
	m.applied, m.settled, m.version, m.drifted = applied, settled, live.GetResourceVersion(), ""
}

// encodeApplied returns the value of the entry's Applied field, for a syncer that starts later:
// the digest of what was applied and, unless the object has been changed since, the digest
// of what the member stored.
func (m *memory) said() string {
	if m.settled == "" || m.drifted != "" {
		return m.applied
	}
	return m.applied + "." + m.settled
}

// restoreApplied loads the digests from an entry's Applied field. Without the second digest the
// object has to be applied again to learn what the member stores.
func (m *memory) recall(said string) {
	if applied, settled, both := strings.Cut(said, "."); both {
		m.applied, m.settled = applied, settled
	}
}

// appliedDigest returns the digest of what was applied, from an entry.
func lastApplied(entry *v1alpha1.ClusterState) string {
	applied, _, _ := strings.Cut(entry.Applied, ".")
	return applied
}

// isOutdated reports whether live, from a cache, is older than what was applied.
func (m *memory) outdated(live *unstructured.Unstructured) bool {
	if m.version == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(live.GetResourceVersion(), m.version)
	return err == nil && order < 0
}

// Options name the cluster to synchronize, and the clock.
type Options struct {
	Cluster string
	Clock   clock.WithTicker
	Log     *slog.Logger
	// CaughtUp, if set, is called once: when every binding that existed at the start has been
	// reconciled, successfully or not.
	CaughtUp func()
}

// Run synchronizes the cluster that cfg connects to until ctx ends. It returns early only if it
// cannot start.
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
	// The member protects itself with API priority and fairness; on this side the fixed number
	// of workers is the limit.
	cfg.QPS, cfg.Burst = -1, -1
	cfg.UserAgent = FieldManager
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: create a client for cluster %s: %w", cluster, err)
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: create a client for cluster %s: %w", cluster, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("syncer: create a client for cluster %s: %w", cluster, err)
	}
	s := &Syncer{View: view, cluster: cluster, clock: o.Clock, log: o.Log.With("cluster", cluster),
		known: map[types.NamespacedName]*memory{}, breaker: breaker{wave: wave, glance: glance},
		catching: catching{caughtUp: o.CaughtUp},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, patience),
			// Without a name the queue has no metrics: a thousand queues would write the same
			// ones, each twice a second.
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

// onMemberChange queues a changed object that carries Atoll's labels.
func (s *Syncer) memberChanged(key types.NamespacedName) { s.queue.AddAfter(key, gather) }

// requeueKind queues all bindings of a kind, after the kind became watchable or stopped being
// so.
func (s *Syncer) lookAgain(k interpret.Kind) {
	for _, b := range s.Bindings() {
		if b.Spec.Resource.GroupVersionKind().GroupKind() == k.GroupKind() {
			s.queue.Add(b.Key())
		}
	}
}

func (s *Syncer) failed(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		s.log.Debug("sync failed; retrying", "binding", key.String(), "error", err)
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
