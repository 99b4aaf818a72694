package scheduler

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// cache holds the input of decisions. It is prepared once, and again when a Cluster or a policy
// changes, so that a decision takes microseconds.
type cache struct {
	mu       sync.RWMutex
	fleet    *placement.Fleet
	policies *placement.Policies

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
	return &cache{allocations: placement.NewAllocations(), rooms: placement.NewRooms(), reported: map[string]bool{}, roomChanged: make(chan struct{}, 1), pendingPods: newPending(), waiting: map[object]waitingObject{}, policiesChanged: make(chan struct{}, 1), namesChanged: make(chan struct{}, 1), clustersChanged: make(chan struct{}, 1), pending: map[string]map[object]bool{},
		overQuota: map[string]map[object]bool{}, missing: map[string]map[object]bool{}, withGaps: map[object]bool{}, read: map[string]bool{}, fieldsRead: make(chan struct{}, 1)}
}

// snapshot returns the current input of decisions.
func (s *scheduler) snapshot() *Snapshot {
	s.cache.mu.RLock()
	defer s.cache.mu.RUnlock()
	return &Snapshot{Fleet: s.cache.fleet, Policies: s.cache.policies, Allocations: s.cache.allocations, Rooms: s.cache.rooms, Pending: s.pendingOf, Now: s.Clock.Now(),
		Namespace: s.namespaceLabels, Obstacles: s.obstacles, Missing: s.missingOf, Quotas: s.Quotas.In, Gapped: s.gapped, Groups: s, Peers: s.peers, AllPeers: s.allPeers, Rights: s.rightsOf, Types: s.typesOf,
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
	return peersOf(s.Bindings.In(namespace), s.labelsOf)
}

func (s *scheduler) allPeers() iter.Seq[Peer] { return peersOf(s.Bindings.All(), s.labelsOf) }

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
		s.cache.pendingPods.report(c.Name, c.Status.PendingPods)
	}
	s.cache.fleet = placement.NewFleet(facts)
	s.cache.policies = placement.NewPolicies(s.Policies.Placements.All(), s.Policies.ClusterPlacements.All(), nil)
	for _, k := range s.Kinds.All() {
		if !k.Placed {
			continue
		}
		for obj := range s.Objects.All(k.GroupKind(), "") {
			if b, ok := s.Bindings.Get(refOf(k.GroupKind(), obj).binding()); ok {
				o := objectOf(k, obj)
				s.cache.allocations.Set(o, previous(b))
				grantRecent(s.cache.rooms, &o, b, s.Clock.Now())
			}
		}
	}
}

// schedule decides about an object. A contended decision is made while allocationsMu is held, so
// that two decisions do not use the same capacity.
func (s *scheduler) schedule(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Result {
	snap := s.snapshot()
	o := refOf(k.GroupKind(), obj)
	grouped := k.Placed && len(s.GroupOf(o).Members) > 0
	if contended := grouped || snap.isContended(k, snap.Choose(k, obj)); !contended {
		snap.Allocations, snap.Rooms = nil, nil
		a := snap.Schedule(k, obj, b)
		snap.Allocations, snap.Rooms = s.cache.allocations, s.cache.rooms
		s.cache.allocationsMu.Lock()
		defer s.cache.allocationsMu.Unlock()
		snap.reserve(&a)
		s.trackRoom(o, &a)
		return a
	}
	s.cache.allocationsMu.Lock()
	defer s.cache.allocationsMu.Unlock()
	a := snap.Schedule(k, obj, b)
	snap.reserve(&a)
	s.trackRoom(o, &a)
	if grouped && a.Choice.Err == nil {
		s.related.decided(o, b, a.Shares)
	}
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
	s.trackPending(o, false, false)
	s.trackOverQuota(o, false)
	s.trackGaps(o, false)
	s.trackMissing(o, false)
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

// namespaceChanged queues the objects of a namespace whose labels have changed.
func (s *scheduler) namespaceChanged(was, is metav1.Object) {
	if is == nil || was != nil && sameLabels(was.GetLabels(), is.GetLabels()) {
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

// signalPolicies signals that policies may have changed. It never blocks; concurrent changes are
// processed together.
func (s *scheduler) signalPolicies() {
	select {
	case s.cache.policiesChanged <- struct{}{}:
	default:
	}
}

// followPolicies processes changes of policies, until ctx ends.
func (s *scheduler) followPolicies(ctx context.Context) {
	s.updatePolicyConditions(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cache.policiesChanged:
			s.readPolicies(ctx)
		case <-s.cache.namesChanged:
			s.updatePolicyConditions(ctx) // they name the Clusters and kinds that do not exist
		}
	}
}

// readPolicies reads the policies and queues the objects whose policy was replaced or changed.
func (s *scheduler) readPolicies(ctx context.Context) {
	s.cache.mu.Lock()
	before := s.cache.policies
	s.cache.policies = placement.NewPolicies(s.Policies.Placements.All(), s.Policies.ClusterPlacements.All(), before)
	after := s.cache.policies
	s.cache.mu.Unlock()
	now := &Snapshot{Policies: after, Namespace: s.namespaceLabels}
	earlier := &Snapshot{Policies: before, Namespace: s.namespaceLabels}
	for _, k := range s.Kinds.All() {
		for obj := range s.Objects.AllMetadata(k.GroupKind(), "") {
			a, b := earlier.Choose(k, obj), now.Choose(k, obj)
			if o := refOf(k.GroupKind(), obj); !a.Equal(&b) && (k.Placed || k.Configuration || a.Explicit || b.Explicit || s.bound(o)) {
				s.queue.Add(o)
			}
		}
	}
	s.requeueSuspended()
	s.updatePolicyConditions(ctx)
}

func (c *cache) signalNames() {
	select {
	case c.namesChanged <- struct{}{}:
	default:
	}
}

// updatePolicyConditions sets the condition Accepted of all policies.
func (s *scheduler) updatePolicyConditions(ctx context.Context) {
	s.cache.mu.RLock()
	invalid := s.cache.policies.Invalid
	s.cache.mu.RUnlock()
	problem := func(kind, namespace, name string) error {
		for _, i := range invalid {
			if i.Reference.Kind == kind && i.Namespace == namespace && i.Reference.Name == name {
				return i.Err
			}
		}
		return nil
	}
	joined := []string{}
	for _, c := range s.Clusters.All() {
		joined = append(joined, c.Name)
	}
	known := s.Kinds.All()
	write := func(kind string, p metav1.Object, spec *v1alpha1.PlacementSpec, was []metav1.Condition) {
		c := metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPolicyAccepted, Message: "the policy is in effect"}
		ineffective, all := ineffectiveKinds(spec.Selector.Kinds, known, p.GetNamespace() != "")
		missing := missingClusters(spec, joined)
		if err := problem(kind, p.GetNamespace(), p.GetName()); err != nil {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyInvalid,
				fmt.Sprintf("the policy is invalid, and the objects that it selects stay where they are: %v", err)
		} else if all {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonPolicyIneffective, "the policy has no effect: "+ineffective
		} else if but := strings.Trim(missing+"; "+ineffective, "; "); but != "" {
			c.Message += ", but " + but
		}
		s.writeAccepted(ctx, kind, p, was, c)
	}
	for _, p := range s.Policies.Placements.All() {
		write("Placement", p, &p.Spec, p.Status.Conditions)
	}
	for _, p := range s.Policies.ClusterPlacements.All() {
		write("ClusterPlacement", p, &p.Spec.PlacementSpec, p.Status.Conditions)
	}
}

// missingClusters says which of the clusters that a policy names do not exist, or "". They may join
// later, so the policy is accepted all the same.
func missingClusters(spec *v1alpha1.PlacementSpec, joined []string) string {
	var named, missing []string
	if spec.Clusters != nil {
		named = spec.Clusters.Names
	}
	for i := range spec.ClusterGroups {
		named = slices.Concat(named, spec.ClusterGroups[i].Clusters.Names)
	}
	for _, name := range named {
		if !slices.Contains(joined, name) {
			missing = append(missing, fmt.Sprintf("no Cluster %s exists%s", name, names.DidYouMean(name, joined)))
		}
	}
	const most = 5
	if len(missing) > most {
		missing = append(missing[:most], fmt.Sprintf("and %d more", len(missing)-most))
	}
	return strings.Join(missing, "; ")
}

// writeAccepted sets the condition Accepted of one policy.
func (s *scheduler) writeAccepted(ctx context.Context, kind string, p metav1.Object, conditions []metav1.Condition, c metav1.Condition) {
	c.Type, c.ObservedGeneration, c.LastTransitionTime = v1alpha1.PlacementAccepted, p.GetGeneration(), metav1.NewTime(s.Clock.Now())
	for _, was := range conditions {
		if was.Type != c.Type {
			continue
		}
		if was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message && was.ObservedGeneration == c.ObservedGeneration {
			return
		}
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	resource := v1alpha1.PlacementResource
	if kind == "ClusterPlacement" {
		resource = v1alpha1.ClusterPlacementResource
	}
	u, err := toUnstructured(&c)
	if err == nil {
		apply := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind,
			"metadata": map[string]any{"name": p.GetName(), "uid": string(p.GetUID())},
			"status":   map[string]any{"conditions": []any{u.Object}},
		}}
		apply.SetNamespace(p.GetNamespace())
		_, err = s.Dynamic.Resource(resource).Namespace(p.GetNamespace()).ApplyStatus(ctx, p.GetName(), apply, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	}
	if err != nil && ctx.Err() == nil {
		// Nothing depends on it; the next change of a policy retries.
		s.Log.Warn("update of a policy's condition Accepted failed", "kind", kind, "namespace", p.GetNamespace(), "name", p.GetName(), "error", err)
	}
}
