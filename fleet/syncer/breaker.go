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
	// removalBatchWindow is how long a removal waits for others with the same cause.
	wave = time.Second
	// recheckInterval is how often a halted syncer checks whether it may continue.
	glance = 5 * time.Second
	// countMaxAge is how old the count of pending removals may be: counting iterates over all
	// bindings of the cluster.
	recount = 500 * time.Millisecond
)

// breaker stops a syncer from removing many objects at once that no one asked to remove:
// because decisions changed, or because a type vanished with its objects. A mistake in a
// policy, or in this program, then costs a condition and not the workloads.
//
// Three kinds of removal are not counted. A user deleted the object, its namespace or its type,
// or the object was in the cluster only for such an object (RequestedRemovals): that was
// requested through the API, under its authorization. The Cluster leaves. The Cluster has a
// NoExecute taint, which is a drain. The last two name this very cluster.
type breaker struct {
	wave, glance time.Duration // see the constants of similar names

	mu      sync.Mutex
	removed map[types.NamespacedName]time.Time // counted removals within the deletion window
	counted time.Time
	waiting map[types.NamespacedName]string // further pending removals and the names of their objects
	kept    int                             // objects that the fleet has, or had within the window, in the cluster
	halted  bool
	said    metav1.Condition
}

// allow reports whether a counted removal may happen now, and counts it.
func (b *breaker) passes(s *Syncer, key types.NamespacedName, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	cluster, ok := s.Cluster()
	if !ok {
		return false // without a Cluster there is no permission to delete
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
	b.waiting[key] = "" // the next count fills in the name
	b.halted = !within(len(b.removed)+len(b.waiting), b.kept, cluster.MaxDeletePercent())
	if b.halted {
		return false
	}
	delete(b.waiting, key)
	b.removed[key] = now
	return true
}

// isDeliberate reports whether a user has declared that objects are to leave this very cluster.
func deliberate(c *v1alpha1.Cluster, now time.Time) bool {
	drained := slices.ContainsFunc(c.Spec.Taints, func(t v1alpha1.Taint) bool { return t.Effect == v1alpha1.TaintNoExecute })
	return c.DeletionTimestamp != nil || drained || c.DeletionsAllowed(now)
}

// withinLimit reports whether the recent and pending removals together may happen at once.
// Pending removals count from the start: otherwise the first fifth of a catastrophe would
// always happen.
func within(leaving, kept int, percent int32) bool {
	return percent >= 100 || leaving <= max(v1alpha1.MinDeletions, kept*int(percent)/100)
}

// count counts the objects in the cluster and those of them that are to be removed without a
// request. The caller holds mu.
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

// run checks periodically whether a halted syncer may continue, and keeps the Cluster's
// condition current.
func (b *breaker) mind(ctx context.Context, s *Syncer) {
	b.mu.Lock()
	if c, ok := s.Cluster(); ok {
		// A previous syncer may have been halted.
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
			s.log.Warn("update of condition DeletionsHalted failed; retrying", "error", err)
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

// condition returns the DeletionsHalted condition. The caller holds mu.
func (b *breaker) condition(cluster string) metav1.Condition {
	if !b.halted {
		return metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonWithinBounds, Message: "the number of removals is within the limit"}
	}
	const most = 5
	names := slices.Sorted(maps.Values(b.waiting))
	shown := strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		shown += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTooManyDeletions,
		Message: fmt.Sprintf("%d of the %d objects in the cluster would be removed because decisions changed (%s); removals are halted, everything else continues. "+
			"If this is intended, run `atoll clusters allow-deletions %s`. Otherwise correct the policy: objects that it places again stay", len(names), b.kept, shown, cluster)}
}

// writeCondition writes the condition to the Cluster. The syncer owns no other field of it.
func (s *Syncer) sayHalted(ctx context.Context, cluster *v1alpha1.Cluster, c *metav1.Condition) error {
	c.LastTransitionTime = metav1.NewTime(s.clock.Now())
	if was := meta.FindStatusCondition(cluster.Status.Conditions, c.Type); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	c.ObservedGeneration = cluster.Generation
	return s.Halt(ctx, *c)
}
