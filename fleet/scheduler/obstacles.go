package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/schema"
)

// Fields knows which fields of Kubernetes' built-in kinds clusters have.
type Fields interface {
	// Gaps returns, by cluster, what is missing there for an object. It omits clusters that
	// were not read yet. It is called for every decision.
	Gaps(obj *unstructured.Unstructured) map[string]*schema.Gap
	// Known reports whether a cluster has been read.
	Known(cluster string) bool
	// OnChange calls notify, which must not block, whenever the known fields of a cluster
	// change, until cancelled.
	OnChange(notify func(cluster string)) (cancel func())
}

const (
	// fieldsTimeout is how long the first decisions of a session wait for clusters to be read.
	fieldsTimeout = 5 * time.Second
	// fieldsBatchWindow is how long the change of a cluster is delayed so that others are
	// batched: an upgrade changes many clusters, and each batch checks all objects.
	fieldsBatchWindow = time.Second
)

// ReasonTypeNotServed means that the cluster does not serve the object's type, or serves
// another version or form of it. For custom types the reason may be that it was not read yet,
// so existing copies are not removed.
const ReasonTypeNotServed = schema.TypeNotServed

func notServed(why string) placement.Obstacle {
	return placement.Obstacle{Reason: ReasonTypeNotServed, Message: "cannot accept it: " + why, Keeps: true}
}

// gaps returns the obstacles in an object's own fields. A cluster that runs an earlier version
// of the object keeps it: it works there, and the author of the new field may not have intended
// a move. A cluster that was chosen before its gaps were known, and never ran the object, has
// nothing to keep.
func gaps(fields Fields, clusters *placement.Fleet, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
	if fields == nil {
		return nil
	}
	found := fields.Gaps(obj)
	if len(found) == 0 {
		return nil
	}
	out := make(map[string]placement.Obstacle, len(found))
	for name, gap := range found {
		c, joined := clusters.Cluster(name)
		if !joined {
			continue
		}
		out[name] = placement.Obstacle{Reason: gap.Reason, Message: version(c.Object) + gap.Message, Keeps: isRunning(b, name)}
	}
	return out
}

// version returns a prefix with a cluster's version, if known.
func version(c *v1alpha1.Cluster) string {
	if c == nil || c.Status.Version == "" {
		return ""
	}
	return "(" + c.Status.Version + ") "
}

// isRunning reports whether a cluster actually has an object.
func isRunning(b *v1alpha1.ResourceBinding, cluster string) bool {
	if b == nil {
		return false
	}
	state, reported := b.State(cluster)
	return reported && state.UID != ""
}

// obstacles returns the clusters that cannot accept an object, whatever the policy.
func (s *scheduler) obstacles(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
	if fleet.Native(k.GroupKind()) {
		out := gaps(s.Fields, s.fleetSnapshot(), obj, b)
		s.trackGaps(refOf(k.GroupKind(), obj), len(out) > 0)
		return out
	}
	var out map[string]placement.Obstacle
	for _, name := range s.fleetSnapshot().Names() {
		if obstacle := s.typeObstacle(k, obj, b, name); obstacle != nil {
			if out == nil {
				out = map[string]placement.Obstacle{}
			}
			out[name] = *obstacle
		}
	}
	return out
}

// trackGaps records whether some clusters lack something for an object: it may be placed
// differently after an upgrade.
func (s *scheduler) trackGaps(o object, something bool) {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	if something {
		s.cache.withGaps[o] = true
	} else {
		delete(s.cache.withGaps, o)
	}
}

// gapped reports whether some cluster may lack something for an object.
func (s *scheduler) gapped(o object) bool {
	if !fleet.Native(o.GroupKind) {
		return true
	}
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	return s.cache.withGaps[o] || s.cache.missing[o.Namespace][o]
}

// watchFields records which clusters are read from now on, until cancelled.
func (s *scheduler) watchFields() (cancel func()) {
	if s.Fields == nil {
		return func() {}
	}
	return s.Fields.OnChange(func(cluster string) {
		s.cache.pendingMu.Lock()
		s.cache.read[cluster] = true
		s.cache.pendingMu.Unlock()
		select {
		case s.cache.fieldsRead <- struct{}{}:
		default:
		}
	})
}

// drainRead returns the clusters that were read since the last call.
func (s *scheduler) drainRead() map[string]bool {
	s.cache.pendingMu.Lock()
	defer s.cache.pendingMu.Unlock()
	out := s.cache.read
	s.cache.read = map[string]bool{}
	return out
}

// waitForFields waits until all readable clusters have been read. Otherwise a new leader would
// place objects in clusters that lack something for them, and then move them. The wait is
// short: an unread cluster is no obstacle.
func (s *scheduler) waitForFields(ctx context.Context) {
	if s.Fields == nil {
		return
	}
	timer := s.Clock.NewTimer(fieldsTimeout)
	defer timer.Stop()
	for s.hasUnread() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			return
		case <-s.cache.fieldsRead:
		}
	}
	s.drainRead()
}

// hasUnread reports whether a readable cluster has not been read.
func (s *scheduler) hasUnread() bool {
	for _, c := range s.Clusters.All() {
		if meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady) && !c.InPullMode() && !s.Fields.Known(c.Name) {
			return true
		}
	}
	return false
}

// followFields queues the objects that changes of clusters' fields affect, until ctx ends.
func (s *scheduler) followFields(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cache.fieldsRead:
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Clock.After(fieldsBatchWindow):
		}
		s.fieldsChanged(s.drainRead())
	}
}

// fieldsChanged queues the objects in a cluster that, as is known now, lacks something for
// them. It also queues those for which some cluster lacked something.
func (s *scheduler) fieldsChanged(read map[string]bool) {
	s.cache.pendingMu.Lock()
	for o := range s.cache.withGaps {
		s.queue.Add(o)
	}
	s.cache.pendingMu.Unlock()
	seen := map[object]bool{}
	for cluster := range read {
		for _, b := range s.Bindings.On(cluster) {
			o := boundBy(b)
			if seen[o] || !fleet.Native(o.GroupKind) || !slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return c.Name == cluster }) {
				continue
			}
			seen[o] = true
			if obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName); exists && s.hasGapIn(read, obj, b) {
				s.queue.Add(o)
			}
		}
	}
}

// hasGapIn reports whether an object is placed in any of some clusters that lacks something for
// it.
func (s *scheduler) hasGapIn(clusters map[string]bool, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	found := s.Fields.Gaps(obj)
	return slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return clusters[c.Name] && found[c.Name] != nil })
}

// keptMessage names the clusters where an object stays although they cannot accept its current
// version.
func (a *Result) keptMessage() string {
	first, more := "", 0
	for _, v := range a.Decision.Chosen {
		switch {
		case v.Reason != placement.ReasonKeptObstacle:
		case first == "":
			first = fmt.Sprintf("; %s %s", v.Cluster, v.Message)
		default:
			more++
		}
	}
	if more > 0 {
		first += fmt.Sprintf("; and so do %d more clusters", more)
	}
	return first
}
