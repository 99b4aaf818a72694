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
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// FieldManager owns the fields that the syncer applies in the member.
const FieldManager = v1alpha1.SyncerFieldManager

const (
	// workers is the number of parallel reconciles; each waits for the member most of the time.
	workers = 8
	// batchWindow is how long a change in the member is delayed so that further changes of the
	// same object are batched: a controller often writes several times in a row.
	batchWindow = 20 * time.Millisecond
	// reportInterval is the minimum time between two reports of an object that is still
	// progressing. A rollout changes a status many times a second, and each report is a write
	// that causes further writes. Healthy, degraded and failed states are reported at once.
	reportInterval = 500 * time.Millisecond
	// maxBackoff is the longest pause between failing attempts.
	maxBackoff = 30 * time.Second
)

// Syncer synchronizes one cluster.
type Syncer struct {
	View
	cluster string
	clock   clock.WithTicker
	log     *slog.Logger
	member  *memberClient
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]

	catchUp catchUp
	metrics *Metrics // may be nil
	changes changes

	mu      sync.Mutex
	records map[types.NamespacedName]*record
	breaker breaker
	// removalMu serializes the last steps of removals. When the last two objects of a namespace
	// are removed at the same time, one of them then sees that it is the last.
	removalMu sync.Mutex
	fencing   *Fencing // may be nil
	endpoints endpointWatches
}

// record is what the syncer remembers about one binding beyond the cache, which lags behind its
// own writes. Losing it is harmless: it only saves work.
type record struct {
	mu sync.Mutex
	// uid is the UID of the binding that this record is about.
	uid types.UID
	// entry is the last recorded entry of this cluster, or nil. It is valid once loaded is set.
	entry  *v1alpha1.ClusterState
	loaded bool
	// volumes are the reports on the transfers of volumes.
	volumes []v1alpha1.VolumeReport
	// drain is the report on pods that leave the endpoints of exported Services; nil if none do.
	drain *v1alpha1.EndpointDrainReport
	// reportedAt is when entry was written.
	reportedAt time.Time
	// gone is set while the binding has no entry of this cluster. It is read without mu, under
	// Syncer.removalMu.
	gone atomic.Bool
	// lastApplied is the digest of the manifest that was last applied, and lastObserved the
	// digest of the object that the member stored for it. While both match, there is nothing to
	// apply.
	lastApplied, lastObserved string
	// observedVersion is the resourceVersion of the object that lastObserved describes.
	observedVersion string
	// driftMessage lists the fields that differ in the member and are left as they are by
	// policy; "" if none does.
	driftMessage string
	drift        drift
	// contestMessage names the managers that keep reverting the object in the member.
	contestMessage string
	// removalStart is when the syncer first learned that the object is to be removed.
	removalStart time.Time
	// lifted: its replicas were stopped here without contact, and are to run again. That is no change by a user.
	lifted bool
	// pods is the last finding about pods that the object lacks in the member.
	pods podCheck
	// endpoints is the last report on those of an exported Service.
	endpoints reportedEndpoints
	// goneChecks counts the checks whether an object that is being deleted is gone.
	goneChecks int
}

// reset clears the record and assigns it to another binding.
func (m *record) reset(uid types.UID) {
	m.uid, m.entry, m.loaded, m.reportedAt, m.volumes, m.drain = uid, nil, false, time.Time{}, nil, nil
	m.gone.Store(false)
	m.invalidate()
	m.drift, m.removalStart, m.goneChecks, m.pods, m.endpoints = drift{}, time.Time{}, 0, podCheck{}, reportedEndpoints{}
}

// invalidate clears the digests, so that the object is applied again.
func (m *record) invalidate() {
	m.lastApplied, m.lastObserved, m.observedVersion, m.driftMessage = "", "", "", ""
}

// observe records the digest of an applied manifest, and that of the object that the member
// stored for it.
func (m *record) observe(applied, settled string, live *unstructured.Unstructured) {
	m.lastApplied, m.lastObserved, m.observedVersion, m.driftMessage = applied, settled, live.GetResourceVersion(), ""
}

// encodeApplied returns the value of the entry's Applied field, for a syncer that starts later:
// the digest of the last applied manifest and, if the object has not changed since, the digest
// of the stored object.
func (m *record) encodeApplied() string {
	if m.lastObserved == "" || m.driftMessage != "" {
		return m.lastApplied
	}
	return m.lastApplied + "." + m.lastObserved
}

// restoreApplied loads the digests from an entry's Applied field. Without the second digest the
// object has to be applied again to learn what the member stores.
func (m *record) restoreApplied(field string) {
	if applied, settled, both := strings.Cut(field, "."); both {
		m.lastApplied, m.lastObserved = applied, settled
	}
}

// appliedDigest returns the digest of the last applied manifest, from an entry.
func appliedDigest(entry *v1alpha1.ClusterState) string {
	applied, _, _ := strings.Cut(entry.Applied, ".")
	return applied
}

// isOutdated reports whether live, from a cache, is older than the last apply.
func (m *record) isOutdated(live *unstructured.Unstructured) bool {
	if m.observedVersion == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(live.GetResourceVersion(), m.observedVersion)
	return err == nil && order < 0
}

// Options name the cluster to synchronize, and the clock.
type Options struct {
	Cluster string
	Clock   clock.WithTicker
	Log     *slog.Logger
	Metrics *Metrics // may be nil
	// Fencing, if set, stops replicas while there is no contact to the control plane.
	Fencing *Fencing
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
		records: map[types.NamespacedName]*record{}, breaker: breaker{batchWindow: removalBatchWindow, recheckInterval: recheckInterval},
		catchUp: catchUp{caughtUp: o.CaughtUp}, metrics: o.Metrics, fencing: o.Fencing,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](100*time.Millisecond, maxBackoff),
			// Without a name the queue has no metrics: a thousand queues would write the same
			// ones, each twice a second.
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: o.Clock}),
	}
	s.member = newMemberClient(dyn, meta, disco, s.onMemberChange)
	s.endpoints = endpointWatches{dyn: dyn, onChange: s.onMemberChange}
	s.member.volumes = volumeClient{cluster: cluster, dyn: dyn}
	s.member.onWatchable = s.requeueKind
	s.member.keeps = func(key types.NamespacedName) bool {
		_, bound := s.Binding(key)
		return bound
	}
	return s, nil
}

func (s *Syncer) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.member.start(ctx)
	defer s.member.wait()
	defer s.endpoints.running.Wait()
	defer stop()
	defer s.queue.ShutDown()
	defer s.metrics.begin(s)()
	defer s.Subscribe(func(key types.NamespacedName) {
		if !s.catchUp.add(key) && s.metrics != nil {
			s.changes.add(key, s.clock.Now())
		}
		s.queue.Add(key)
	})()
	s.catchUp.listed()
	s.restoreLeaving()
	var minding sync.WaitGroup
	defer minding.Wait()
	defer stop()
	minding.Go(func() { s.breaker.run(ctx, s) })
	minding.Go(func() { s.requeueLeftNamespaces(ctx) })
	controllers.RunWorkers(ctx, s.queue, workers, func(ctx context.Context, key types.NamespacedName) error {
		defer s.catchUp.processed(key)
		return s.reconcile(ctx, key)
	}, s.onFailure)
	return nil
}

// onMemberChange queues a changed object that carries Atoll's labels.
func (s *Syncer) onMemberChange(key types.NamespacedName) { s.queue.AddAfter(key, batchWindow) }

// requeueKind queues all bindings of a kind, after the kind became watchable or stopped being
// so.
func (s *Syncer) requeueKind(k interpret.KindInfo) {
	for _, b := range s.Bindings() {
		if b.Spec.Resource.GroupVersionKind().GroupKind() == k.GroupKind() {
			s.queue.Add(b.Key())
		}
	}
}

func (s *Syncer) onFailure(key types.NamespacedName, err error) (again bool) {
	if !apierrors.IsConflict(err) {
		s.log.Debug("sync failed; retrying", "binding", key.String(), "error", err)
	}
	return true
}

func (s *Syncer) recordOf(key types.NamespacedName) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.records[key]
	if m == nil {
		m = &record{}
		s.records[key] = m
	}
	return m
}

func (s *Syncer) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, key)
}
