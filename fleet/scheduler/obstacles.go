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

// Fields knows which fields of the kinds that Kubernetes itself defines clusters have.
type Fields interface {
	// Gaps gives, by cluster, what is missing there for an object. Clusters that were
	// not read yet are not in it. It is asked for every decision.
	Gaps(obj *unstructured.Unstructured) map[string]*schema.Gap
	// Known tells whether a cluster has been read.
	Known(cluster string) bool
	// OnChange calls notify, which does not block, whenever something else is known of
	// a cluster, until it is cancelled.
	OnChange(notify func(cluster string)) (cancel func())
}

const (
	// patience is how long the first decisions of a term wait for clusters to be read.
	patience = 5 * time.Second
	// collect is how long a cluster that was read waits for others: an upgrade changes
	// many, and each time all objects are looked at.
	collect = time.Second
)

// ReasonTypeNotServed: the cluster does not serve the object's type, or another
// version or form of it. Of custom types that may be because it has not been asked
// yet, so nothing is taken away for it.
const ReasonTypeNotServed = schema.TypeNotServed

func notServed(why string) placement.Obstacle {
	return placement.Obstacle{Reason: ReasonTypeNotServed, Message: "cannot take it: " + why, Keeps: true}
}

// gaps gives the obstacles that are in an object itself. A cluster that runs the object
// in a version from before keeps that, for as long as nobody takes it away: it works,
// and whoever wrote the field may not have had moving it in mind. A cluster in which it
// never came to run, because it was not known yet what that cluster lacks, has nothing
// to keep.
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
		out[name] = placement.Obstacle{Reason: gap.Reason, Message: version(c.Object) + gap.Message, Keeps: runs(b, name)}
	}
	return out
}

// version begins what is said of a cluster with what it runs, where that is known.
func version(c *v1alpha1.Cluster) string {
	if c == nil || c.Status.Version == "" {
		return ""
	}
	return "(" + c.Status.Version + ") "
}

// runs tells whether a cluster has an object, and not only should.
func runs(b *v1alpha1.ResourceBinding, cluster string) bool {
	if b == nil {
		return false
	}
	state, reported := b.State(cluster)
	return reported && state.UID != ""
}

// obstacles are the clusters that do not take an object, whatever the policy.
func (s *scheduler) obstacles(k interpret.Kind, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle {
	if fleet.Native(k.GroupKind()) {
		out := gaps(s.fields, s.world0(), obj, b)
		s.lack(refOf(k.GroupKind(), obj), len(out) > 0)
		return out
	}
	var out map[string]placement.Obstacle
	for _, name := range s.world0().Names() {
		if serves, why := s.Serves(name, k.GroupVersionKind); !serves {
			if out == nil {
				out = map[string]placement.Obstacle{}
			}
			out[name] = notServed(why)
		}
	}
	return out
}

// lack remembers which objects some clusters lack something for: these may go
// elsewhere when a cluster is upgraded.
func (s *scheduler) lack(o object, something bool) {
	s.by.waiting.Lock()
	defer s.by.waiting.Unlock()
	if something {
		s.by.lacking[o] = true
	} else {
		delete(s.by.lacking, o)
	}
}

// heedFields remembers which clusters are read from now on, until it is cancelled.
func (s *scheduler) heedFields() (cancel func()) {
	if s.fields == nil {
		return func() {}
	}
	return s.fields.OnChange(func(cluster string) {
		s.by.waiting.Lock()
		s.by.read[cluster] = true
		s.by.waiting.Unlock()
		select {
		case s.by.learnt <- struct{}{}:
		default:
		}
	})
}

// readSince gives the clusters that were read since it was last asked.
func (s *scheduler) readSince() map[string]bool {
	s.by.waiting.Lock()
	defer s.by.waiting.Unlock()
	out := s.by.read
	s.by.read = map[string]bool{}
	return out
}

// awaitFields waits until the clusters have been read that can be. Without that a new
// leader would give objects to clusters that lack something for them, only to take
// them back. It does not wait for long: what cannot be read is no obstacle.
func (s *scheduler) awaitFields(ctx context.Context) {
	if s.fields == nil {
		return
	}
	timer := s.Clock.NewTimer(patience)
	defer timer.Stop()
	for s.unread() {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			return
		case <-s.by.learnt:
		}
	}
	s.readSince()
}

// unread tells whether a cluster that can be read has not been.
func (s *scheduler) unread() bool {
	for _, c := range s.Clusters() {
		if meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady) && !c.Pulls() && !s.fields.Known(c.Name) {
			return true
		}
	}
	return false
}

// followFields looks again, until ctx ends, at the objects that a change of what
// clusters know concerns.
func (s *scheduler) followFields(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.by.learnt:
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Clock.After(collect):
		}
		s.fieldsChanged(s.readSince())
	}
}

// fieldsChanged looks again at the objects that are in a cluster which by now is known
// to lack something for them, and at those that some cluster lacked something for.
func (s *scheduler) fieldsChanged(read map[string]bool) {
	s.by.waiting.Lock()
	for o := range s.by.lacking {
		s.queue.Add(o)
	}
	s.by.waiting.Unlock()
	seen := map[object]bool{}
	for cluster := range read {
		for _, b := range s.BindingsOn(cluster) {
			o := boundBy(b)
			if seen[o] || !fleet.Native(o.GroupKind) || !slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return c.Name == cluster }) {
				continue
			}
			seen[o] = true
			if obj, exists := s.Object(o.GroupKind, o.NamespacedName); exists && s.lackedIn(read, obj, b) {
				s.queue.Add(o)
			}
		}
	}
}

// lackedIn tells whether one of some clusters is to have an object and lacks something
// for it.
func (s *scheduler) lackedIn(clusters map[string]bool, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	found := s.fields.Gaps(obj)
	return slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return clusters[c.Name] && found[c.Name] != nil })
}

// kept says where an object stays although the cluster cannot take it as it is now.
func (a *Answer) kept() string {
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
