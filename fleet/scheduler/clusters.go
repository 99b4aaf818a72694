package scheduler

import (
	"context"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// clusterChange is one change of a Cluster; before or after is nil if the Cluster was added or
// removed.
type clusterChange struct {
	cluster       string
	before, after *placement.Cluster
}

// clusterChanged applies a new state of a Cluster at once, and queues the affected objects.
func (s *scheduler) clusterChanged(was, is *v1alpha1.Cluster) {
	defer s.cache.signalConditions()
	defer s.turns.signal() // other limits may apply
	var before, after *placement.Cluster
	name := ""
	if is != nil {
		name = is.Name
		f := placement.FromCluster(is, s.Started)
		after = &f
		s.nodesReported(name, f.Nodes, f.Quotas)
		s.pendingReported(name, is.Status.PendingPods)
	} else {
		name = was.Name
		s.nodesReported(name, nil, nil)
		s.pendingReported(name, nil)
	}
	s.cache.mu.Lock()
	// The cached fleet is the previous state, not the event's old object: on startup the
	// informers replay objects that have been read already.
	if f, ok := s.cache.fleet.Cluster(name); ok {
		before = &f
	}
	if before != nil && after != nil && before.EqualForPolicies(after) && (!s.cache.policies.ReadClusterObjects() || onlyOwnConditionsDiffer(before.Object, after.Object)) {
		s.cache.mu.Unlock()
		return
	}
	earlier := s.cache.fleet
	if after == nil {
		s.cache.fleet = s.cache.fleet.Without(name)
	} else {
		s.cache.fleet = s.cache.fleet.With(*after)
	}
	changes := []clusterChange{{name, before, after}}
	for _, held := range earlier.HoldChanges(s.cache.fleet) {
		if held[0].Name != name {
			changes = append(changes, clusterChange{held[0].Name, held[0], held[1]})
		}
	}
	s.cache.mu.Unlock()
	if (before == nil) != (after == nil) {
		s.cache.signalNames()
	}
	s.cache.changesMu.Lock()
	s.cache.clusterChanges = append(s.cache.clusterChanges, changes...)
	s.cache.changesMu.Unlock()
	select {
	case s.cache.clustersChanged <- struct{}{}:
	default:
	}
	if is == nil {
		for _, b := range s.Bindings.On(name) {
			s.queue.Add(boundBy(b))
		}
	}
}

// followClusters queues the objects that changes of Clusters affect, until ctx ends.
func (s *scheduler) followClusters(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cache.clustersChanged:
		}
		s.cache.changesMu.Lock()
		changes := s.cache.clusterChanges
		s.cache.clusterChanges = nil
		s.cache.changesMu.Unlock()
		s.cache.mu.RLock()
		policies := s.cache.policies
		s.cache.mu.RUnlock()
		s.enqueueConcerned(policies, changes)
	}
}

// concern is the scope of a cluster change among the objects of a policy.
type concern struct {
	cluster string
	placement.Impact
}

// enqueueConcerned checks each object's policy: few changes of a cluster affect all objects.
func (s *scheduler) enqueueConcerned(policies *placement.Policies, changes []clusterChange) {
	concerns := map[*placement.Policy][]concern{}
	of := func(p *placement.Policy) []concern {
		known, ok := concerns[p]
		if !ok {
			for _, t := range changes {
				if c := p.ChangeImpact(t.before, t.after); c != placement.ImpactNone {
					known = append(known, concern{t.cluster, c})
				}
			}
			concerns[p] = known
		}
		return known
	}
	snap := &Snapshot{Policies: policies, Namespace: s.namespaceLabels, Follows: s.following}
	fits := s.changedFits(changes)
	for o, choice := range s.decided(snap, "") {
		if choice.Policy == nil {
			continue // nothing moves until the policy is valid
		}
		if fits(o) {
			s.queue.Add(o)
			continue
		}
		for _, c := range of(choice.Policy) {
			if c.Impact == placement.ImpactAll || s.concerned(o, c.cluster, c.Impact) {
				s.queue.Add(o)
				break
			}
		}
	}
}

// concerned reports whether an object is placed in a cluster, or waits for one.
func (s *scheduler) concerned(o object, cluster string, c placement.Impact) bool {
	b, ok := s.Bindings.Get(o.binding())
	if !ok {
		return c == placement.ImpactWaiting
	}
	_, runs := b.Share(cluster)
	if _, has := b.DecidedShare(cluster); has || runs || isHomeOf(b, cluster) {
		return true
	}
	return c == placement.ImpactWaiting && isWaiting(b)
}

// isWaiting reports whether an object would be placed elsewhere if there were a suitable
// cluster.
func isWaiting(b *v1alpha1.ResourceBinding) bool {
	for _, c := range b.Status.Conditions {
		if c.Type == v1alpha1.BindingScheduled && c.Status != metav1.ConditionTrue {
			return true
		}
	}
	for _, c := range b.Decided() {
		if c.Reason == placement.ReasonKeptNoAlternative {
			return true
		}
	}
	return len(b.Decided()) == 0
}

// decided iterates over the objects of a namespace, or of all with "", for which a policy
// decides: placed objects, and followers that a policy or a label names explicitly, or that have overrides. With "",
// it includes the Namespaces that a policy names.
func (s *scheduler) decided(snap *Snapshot, namespace string) iter.Seq2[object, placement.PolicyChoice] {
	return func(yield func(object, placement.PolicyChoice) bool) {
		for _, k := range s.Kinds.All() {
			for obj := range s.Objects.AllMetadata(k.GroupKind(), namespace) {
				choice := snap.Choose(k, obj)
				if (k.Placed || choice.Explicit || choice.Overrides != nil) && !yield(refOf(k.GroupKind(), obj), choice) {
					return
				}
			}
		}
		for _, ns := range s.Namespaces.All() {
			choice := snap.Choose(interpret.NamespaceKind(), ns)
			named := choice.Reference.Kind == "ClusterPlacement" || choice.Overrides != nil
			if namespace == "" && named && !yield(namespaceRef(ns.GetName()), choice) {
				return
			}
		}
	}
}
