package scheduler

import (
	"iter"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// cache holds the input of decisions. It is prepared once, and again when a Cluster or a policy
// changes, so that a decision takes microseconds.
type cache struct {
	mu       sync.RWMutex
	fleet    *placement.Fleet
	policies *placement.Policies
	// inputs are those of these policies.
	inputs map[types.UID]string

	// allocationsMu guards allocations and rooms. Contended decisions are made while it is held.
	allocationsMu sync.Mutex
	allocations   *placement.Allocations
	rooms         *placement.Rooms
	// reported are the clusters with news about their nodes, and roomChanged has an element if there are any.
	reported    map[string]bool
	roomChanged chan struct{}
	pendingPods *pending
	// waiting are the objects that wait for room, by when they began to.
	waiting map[object]waitingObject

	// policiesChanged has an element if policies may have changed.
	policiesChanged chan struct{}
	// namesChanged has an element if a Cluster or a kind was added or removed.
	namesChanged chan struct{}
	// conditionsChanged has an element if conditions of Clusters may have changed.
	conditionsChanged chan struct{}

	// clusterChanges are the pending changes of Clusters. They are processed in batches: when a
	// leader starts, or the network is lost, a thousand Clusters change, and there may be a
	// hundred thousand objects.
	changesMu       sync.Mutex
	clusterChanges  []clusterChange
	clustersChanged chan struct{} // has an element if there are any

	pendingMu sync.Mutex
	// pending are, by namespace, objects with an affinity to others that are not placed because
	// of it.
	pending map[string]map[object]bool
	// overQuota are, by namespace, objects that a quota keeps out of further clusters.
	overQuota map[string]map[object]bool
	// missing are, by namespace, objects whose pods read something that the control plane lacks.
	missing map[string]map[object]bool
	// withGaps are objects for which some cluster lacks something. read are the clusters whose
	// fields changed since the objects were last checked.
	withGaps map[object]bool
	read     map[string]bool
	// fieldsRead has an element if read may have.
	fieldsRead chan struct{}
}

func newCache() *cache {
	return &cache{inputs: map[types.UID]string{}, allocations: placement.NewAllocations(), rooms: placement.NewRooms(), reported: map[string]bool{}, roomChanged: make(chan struct{}, 1), pendingPods: newPending(), waiting: map[object]waitingObject{}, policiesChanged: make(chan struct{}, 1), namesChanged: make(chan struct{}, 1), conditionsChanged: make(chan struct{}, 1), clustersChanged: make(chan struct{}, 1), pending: map[string]map[object]bool{},
		overQuota: map[string]map[object]bool{}, missing: map[string]map[object]bool{}, withGaps: map[object]bool{}, read: map[string]bool{}, fieldsRead: make(chan struct{}, 1)}
}

// snapshot returns the current input of decisions.
func (s *scheduler) snapshot() *Snapshot {
	s.cache.mu.RLock()
	defer s.cache.mu.RUnlock()
	return &Snapshot{Fleet: s.cache.fleet, Policies: s.cache.policies, Allocations: s.cache.allocations, Rooms: s.cache.rooms, Pending: s.pendingOf, Tenants: &schedulerTenants{scheduler: s}, Now: s.Clock.Now(),
		Namespace: s.namespaceLabels, Obstacles: s.obstacles, Missing: s.missingOf, Quotas: s.Quotas.In, Gapped: s.gapped, Follows: s.following, Groups: s, Peers: s.peers, AllPeers: s.allPeers, Rights: s.rightsOf, Types: s.typesOf,
		Volumes: s.volumes.current(), Claim: s.claimOf,
		Autoscaler: func(k interpret.KindInfo, obj *unstructured.Unstructured) *unstructured.Unstructured {
			return s.autoscalerOf(refOf(k.GroupKind(), obj))
		}}
}

func (s *scheduler) namespaceLabels(name string) map[string]string {
	ns, ok := s.Namespaces.Get(name)
	if !ok {
		return nil
	}
	return ns.GetLabels()
}

func (s *scheduler) fleetSnapshot() *placement.Fleet {
	s.cache.mu.RLock()
	defer s.cache.mu.RUnlock()
	return s.cache.fleet
}

func (s *scheduler) peers(namespace string) iter.Seq[Peer] {
	return peersOf(s.assumed.In(namespace), s.labelsOf)
}

func (s *scheduler) allPeers() iter.Seq[Peer] { return peersOf(s.assumed.All(), s.labelsOf) }

// labelsOf returns the labels of a binding's object.
func (s *scheduler) labelsOf(b *v1alpha1.ResourceBinding) map[string]string {
	ref := b.Spec.Resource
	obj, ok := s.Objects.Get(ref.GroupVersionKind().GroupKind(), types.NamespacedName{Namespace: b.Namespace, Name: ref.Name})
	if !ok {
		return nil
	}
	return obj.GetLabels()
}

// prepare reads everything before the first decision of a session: a policy that was not known
// yet would move its objects, and then move them back.
func (s *scheduler) prepare() {
	facts := make([]placement.Cluster, 0, len(s.Clusters.All()))
	for _, c := range s.Clusters.All() {
		facts = append(facts, placement.FromCluster(c, s.Started))
		s.cache.rooms.Report(c.Name, facts[len(facts)-1].Nodes, s.Clock.Now())
		s.cache.rooms.ReportQuotas(c.Name, facts[len(facts)-1].Quotas)
		s.cache.pendingPods.report(c.Name, c.Status.PendingPods)
	}
	s.cache.fleet = placement.NewFleet(facts)
	// The revisions are read before the policies, which may be newer.
	s.known.from = min(knownFrom(s.Policies.Placements), knownFrom(s.Policies.ClusterPlacements))
	s.cache.policies = s.compilePolicies(nil)
	s.volumes.set(s.Policies.Volumes.All())
	for _, b := range s.Bindings.All() {
		s.preemptions.record(boundBy(b), b)
		s.turns.bindingChanged(nil, b)
	}
	s.allocate(s.cache.allocations, s.cache.rooms)
}

// allocate enters the shares of all placed objects.
func (s *scheduler) allocate(allocations *placement.Allocations, rooms *placement.Rooms) {
	for _, k := range s.Kinds.All() {
		if !k.Placed {
			continue
		}
		for obj := range s.Objects.All(k.GroupKind(), "") {
			if b, ok := s.Bindings.Get(refOf(k.GroupKind(), obj).binding()); ok {
				o := objectOf(k, obj)
				allocations.Set(o, previous(b))
				grantRecent(rooms, &o, b, s.Clock.Now())
				if b.Spec.Preemption != nil {
					promise(rooms, &o, b.Spec.Preemption, previous(b))
				}
			}
		}
	}
}

// schedule decides about an object. A contended decision is made while allocationsMu is held, so
// that two decisions do not use the same capacity, and each knows where the other places its object.
func (s *scheduler) schedule(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Result {
	snap := s.snapshot()
	o := refOf(k.GroupKind(), obj)
	choice, grouped := snap.Choose(k, obj), k.Placed && len(s.GroupOf(o).Members) > 0
	if contended := grouped || snap.isContended(k, choice); !contended {
		snap.Allocations, snap.Rooms = nil, nil
		a := s.scheduleInTurn(snap, k, obj, b)
		snap.Allocations, snap.Rooms = s.cache.allocations, s.cache.rooms
		s.cache.allocationsMu.Lock()
		defer s.cache.allocationsMu.Unlock()
		snap.reserve(&a)
		s.trackRoom(o, obj, &a)
		s.assume(&a, k, obj, b)
		return a
	}
	if grouped || hasTerms(choice.Policy) {
		// Before the others are read: a change of theirs during the decision causes another one.
		s.trackPending(o, true, hasWideTerms(choice.Policy))
	}
	s.cache.allocationsMu.Lock()
	defer s.cache.allocationsMu.Unlock()
	a := s.scheduleInTurn(snap, k, obj, b)
	snap.reserve(&a)
	s.trackRoom(o, obj, &a)
	s.preempt(snap, &a, k, obj, b)
	s.assume(&a, k, obj, b)
	return a
}

// forget removes an object that is in no cluster any more from the allocations.
func (s *scheduler) forget(o object) {
	s.cache.allocationsMu.Lock()
	key := KeyOf(o.GroupKind, o.Namespace, o.Name)
	s.cache.allocations.Set(placement.Object{Key: key}, nil)
	s.cache.rooms.Withdraw(key)
	delete(s.cache.waiting, o)
	s.cache.allocationsMu.Unlock()
	s.preemptions.forget(o)
	s.trackPending(o, false, false)
	s.trackOverQuota(o, false)
	s.trackGaps(o, false)
	s.trackMissing(o, false)
	s.volumes.track(o, false)
}

// anyNamespace is the key of the objects that wait for others of any namespace. No namespace has that name.
const anyNamespace = "*"

// trackPending records whether an object waits for others to be placed: those of its namespace, or with wide of any.
func (s *scheduler) trackPending(o object, waits, wide bool) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	s.cache.track(o.Namespace, o, waits && !wide)
	s.cache.track(anyNamespace, o, waits && wide)
}

func (c *cache) track(namespace string, o object, waits bool) {
	if waits {
		if c.pending[namespace] == nil {
			c.pending[namespace] = map[object]bool{}
		}
		c.pending[namespace][o] = true
		return
	}
	delete(c.pending[namespace], o)
	if len(c.pending[namespace]) == 0 {
		delete(c.pending, namespace)
	}
}

// requeueWaiting queues the objects that wait for others of a namespace.
func (s *scheduler) requeueWaiting(namespace string) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	for _, key := range []string{namespace, anyNamespace} {
		for o := range s.cache.pending[key] {
			s.queue.Add(o)
		}
	}
}

// namespaceChanged queues a changed namespace, and its objects if its labels have changed.
func (s *scheduler) namespaceChanged(was, is metav1.Object) {
	if is == nil {
		s.queue.Add(namespaceRef(was.GetName()))
		return
	}
	s.queue.Add(namespaceRef(is.GetName()))
	if was != nil && sameLabels(was.GetLabels(), is.GetLabels()) {
		return
	}
	s.enqueueAll(is.GetName())
}

func (s *scheduler) enqueueAll(namespace string) {
	for _, k := range s.Kinds.All() {
		for obj := range s.Objects.AllMetadata(k.GroupKind(), namespace) {
			if o := refOf(k.GroupKind(), obj); k.Placed || k.Configuration || s.bound(o) {
				s.queue.Add(o)
			}
		}
	}
}

func (s *scheduler) bound(o object) bool {
	_, ok := s.Bindings.Get(o.binding())
	return ok
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			return false
		}
	}
	return true
}
