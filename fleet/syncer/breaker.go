package syncer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

const (
	// wave is how long a removal waits for others that the same cause brings.
	wave = time.Second
	// glance is how often a halted syncer looks whether it may go on.
	glance = 5 * time.Second
	// recount is how old a count of what waits may be: counting goes through all that
	// is bound to the cluster.
	recount = 500 * time.Millisecond
)

// breaker stops a syncer from removing much at once that nobody asked to remove:
// because decisions changed, or a type vanished with its objects. A mistake in a
// policy, or in this program, then costs a condition and not the workloads.
//
// It does not count what somebody deleted, object by object or by its namespace or type,
// nor what was in the cluster only for that, as the binding says (RequestedRemovals):
// that was asked for in the API, under its authorization. It does not count a Cluster that
// leaves, or one with a taint NoExecute, which is a drain: both name this cluster.
type breaker struct {
	wave, glance time.Duration // see the constants

	mu      sync.Mutex
	removed map[types.NamespacedName]time.Time // counted removals within the window
	counted time.Time
	waiting map[types.NamespacedName]string // what else is to be removed, by name
	kept    int                             // what the fleet has or had within the window in the cluster
	halted  bool
	said    metav1.Condition
}

// passes tells whether a counted removal may happen now, and counts it.
func (b *breaker) passes(s *Syncer, key types.NamespacedName, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	cluster, ok := s.Cluster()
	if !ok {
		return false // without a Cluster nobody said that anything may be deleted
	}
	if deliberate(cluster, now) {
		return true
	}
	if _, already := b.removed[key]; already {
		return true
	}
	if now.Sub(b.counted) > recount {
		b.count(s, now)
	}
	b.waiting[key] = "" // a later count gives it its name
	b.halted = !within(len(b.removed)+len(b.waiting), b.kept, cluster.MaxDeletePercent())
	if b.halted {
		return false
	}
	delete(b.waiting, key)
	b.removed[key] = now
	return true
}

// deliberate tells whether a person has said of this very cluster that things leave
// it.
func deliberate(c *v1alpha1.Cluster, now time.Time) bool {
	drained := slices.ContainsFunc(c.Spec.Taints, func(t v1alpha1.Taint) bool { return t.Effect == v1alpha1.TaintNoExecute })
	return c.DeletionTimestamp != nil || drained || c.DeletionsAllowed(now)
}

// within tells whether what was removed of late and what waits to be is a part of
// all that may go at once. What waits counts from the start: otherwise the first
// fifth of a catastrophe would always happen.
func within(leaving, kept int, percent int32) bool {
	return percent >= 100 || leaving <= max(v1alpha1.MinDeletions, kept*int(percent)/100)
}

// count looks what there is in the cluster, and what of it is to be removed without
// anybody having asked for it. The caller holds mu.
func (b *breaker) count(s *Syncer, now time.Time) {
	maps.DeleteFunc(b.removed, func(_ types.NamespacedName, at time.Time) bool { return now.Sub(at) > v1alpha1.DeletionWindow })
	if b.removed == nil {
		b.removed = map[types.NamespacedName]time.Time{}
	}
	b.counted, b.kept, b.waiting = now, len(b.removed), map[types.NamespacedName]string{}
	for _, binding := range s.Bindings() {
		state, reported := binding.State(s.cluster)
		if _, counted := b.removed[binding.Key()]; counted || !reported || state.UID == "" {
			continue
		}
		b.kept++
		_, chosen := binding.Share(s.cluster)
		_, requested := binding.RequestedRemoval(s.cluster)
		gone := binding.DeletionTimestamp != nil && s.TypeVanished(binding)
		if (!chosen || gone) && !requested && !binding.Spec.Suspend {
			b.waiting[binding.Key()] = binding.Spec.Resource.Kind + " " + fleet.CacheKey(binding.ObjectName())
		}
	}
}

// mind looks again and again whether a halted syncer may go on, and says which it is
// in the Cluster.
func (b *breaker) mind(ctx context.Context, s *Syncer) {
	b.mu.Lock()
	if c, ok := s.Cluster(); ok {
		// A syncer before this one may have been halted.
		b.halted = meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted)
		if was := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted); was != nil {
			b.said = *was
		}
	}
	b.mu.Unlock()
	ticker := s.clock.NewTicker(b.glance)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := b.look(ctx, s); err != nil && ctx.Err() == nil {
			s.log.Warn("cannot say whether deletions are halted; will try again", "error", err)
		}
	}
}

func (b *breaker) look(ctx context.Context, s *Syncer) error {
	cluster, ok := s.Cluster()
	if !ok {
		return nil
	}
	b.mu.Lock()
	now := s.clock.Now()
	if b.halted {
		b.count(s, now)
		b.halted = !deliberate(cluster, now) && !within(len(b.removed)+len(b.waiting), b.kept, cluster.MaxDeletePercent())
	}
	condition := b.condition(s.cluster)
	resumed := b.said.Status == metav1.ConditionTrue && !b.halted
	same := b.said.Status == condition.Status && b.said.Message == condition.Message || b.said.Type == "" && !b.halted
	b.mu.Unlock()
	if resumed {
		for _, binding := range s.Bindings() {
			if state, ok := binding.State(s.cluster); ok && state.Reason == v1alpha1.StateHeld {
				s.queue.Add(binding.Key())
			}
		}
	}
	if same {
		return nil
	}
	if err := s.sayHalted(ctx, cluster, &condition); err != nil {
		return err
	}
	b.mu.Lock()
	b.said = condition
	b.mu.Unlock()
	return nil
}

// condition says whether deletions are halted. The caller holds mu.
func (b *breaker) condition(cluster string) metav1.Condition {
	if !b.halted {
		return metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonWithinBounds, Message: "no more is to be removed than may be at once"}
	}
	const most = 5
	names := slices.Sorted(maps.Values(b.waiting))
	shown := strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		shown += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTooManyDeletions,
		Message: fmt.Sprintf("decisions changed so that %d of the %d objects in the cluster are to be removed (%s); none is, and all else goes on. "+
			"If it is meant so: `atoll clusters allow-deletions %s`. Else put the policy right: what is wanted again stays", len(names), b.kept, shown, cluster)}
}

// sayHalted writes the condition into the Cluster, of which the syncer owns no more
// than that.
func (s *Syncer) sayHalted(ctx context.Context, cluster *v1alpha1.Cluster, c *metav1.Condition) error {
	c.LastTransitionTime = metav1.NewTime(s.clock.Now())
	if was := meta.FindStatusCondition(cluster.Status.Conditions, c.Type); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	c.ObservedGeneration = cluster.Generation
	return s.Halt(ctx, *c)
}
