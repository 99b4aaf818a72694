package scheduler

import (
	"context"
	"iter"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// turn is one change of a Cluster; before and after are nil where it comes or goes.
type turn struct {
	cluster       string
	before, after *placement.Cluster
}

// clusterChanged takes a new state of a Cluster into account at once, and has the
// objects that it concerns looked at again.
func (s *scheduler) clusterChanged(was, is *v1alpha1.Cluster) {
	s.by.mu.Lock()
	var before, after *placement.Cluster
	name := ""
	if is != nil {
		name = is.Name
		f := placement.FactsOf(is, s.Started)
		after = &f
	} else {
		name = was.Name
	}
	// What the fleet knows of it counts, not what the event says was: the caches
	// tell on starting what has been read already.
	if f, ok := s.by.fleet.Cluster(name); ok {
		before = &f
	}
	if before != nil && after != nil && before.Same(after) && !s.by.policies.LookInside() {
		s.by.mu.Unlock()
		return
	}
	if after == nil {
		s.by.fleet = s.by.fleet.Without(name)
	} else {
		s.by.fleet = s.by.fleet.With(*after)
	}
	s.by.mu.Unlock()
	s.by.turning.Lock()
	s.by.turns = append(s.by.turns, turn{name, before, after})
	s.by.turning.Unlock()
	select {
	case s.by.turned <- struct{}{}:
	default:
	}
	if is == nil {
		for _, b := range s.BindingsOn(name) {
			s.queue.Add(boundBy(b))
		}
	}
}

// followClusters looks again at the objects that changes of Clusters concern, until ctx
// ends.
func (s *scheduler) followClusters(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.by.turned:
		}
		s.by.turning.Lock()
		turns := s.by.turns
		s.by.turns = nil
		s.by.turning.Unlock()
		s.by.mu.RLock()
		policies := s.by.policies
		s.by.mu.RUnlock()
		s.enqueueConcerned(policies, turns)
	}
}

// concern is whom, of those that a policy decides about, a change of a cluster concerns.
type concern struct {
	cluster string
	placement.Concern
}

// enqueueConcerned looks at each object's policy: only few changes of a cluster
// matter to all.
func (s *scheduler) enqueueConcerned(policies *placement.Policies, turns []turn) {
	concerns := map[*placement.Policy][]concern{}
	of := func(p *placement.Policy) []concern {
		known, ok := concerns[p]
		if !ok {
			for _, t := range turns {
				if c := p.Concerns(t.before, t.after); c != placement.ConcernsNone {
					known = append(known, concern{t.cluster, c})
				}
			}
			concerns[p] = known
		}
		return known
	}
	w := &World{Policies: policies, Namespace: s.namespaceLabels}
	for o, choice := range s.decided(w, "") {
		if choice.Policy == nil {
			continue // nothing moves until it can be followed
		}
		for _, c := range of(choice.Policy) {
			if c.Concern == placement.ConcernsAll || s.concerned(o, c.cluster, c.Concern) {
				s.queue.Add(o)
				break
			}
		}
	}
}

// concerned tells whether an object has something in a cluster, or waits for one.
func (s *scheduler) concerned(o object, cluster string, c placement.Concern) bool {
	b, ok := s.Binding(o.binding())
	if !ok {
		return c == placement.ConcernsWaiting
	}
	if _, has := b.Share(cluster); has {
		return true
	}
	return c == placement.ConcernsWaiting && waits(b)
}

// waits tells whether an object would be elsewhere if there were a cluster for it.
func waits(b *v1alpha1.ResourceBinding) bool {
	for _, c := range b.Status.Conditions {
		if c.Type == v1alpha1.BindingScheduled && c.Status != metav1.ConditionTrue {
			return true
		}
	}
	for _, c := range b.Spec.Clusters {
		if c.Reason == placement.ReasonKeptNoAlternative {
			return true
		}
	}
	return len(b.Spec.Clusters) == 0
}

// decided goes through the objects of a namespace, or with "" of all, about which a
// policy decides: those that are placed, and those that follow others and that a
// policy or a label asks for all the same.
func (s *scheduler) decided(w *World, namespace string) iter.Seq2[object, placement.Choice] {
	return func(yield func(object, placement.Choice) bool) {
		for _, k := range s.Kinds() {
			for obj := range s.Metadata(k.GroupKind(), namespace) {
				choice := w.Choose(k, obj)
				if (k.Placed || choice.Explicit) && !yield(refOf(k.GroupKind(), obj), choice) {
					return
				}
			}
		}
	}
}
