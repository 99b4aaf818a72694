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
	"github.com/atoll-dev/atoll/controllers"
)

const (
	// removalBatchWindow is how long a removal waits for others with the same cause.
	removalBatchWindow = time.Second
	// recheckInterval is how often a halted syncer checks whether it may continue.
	recheckInterval = 5 * time.Second
	// countMaxAge is how old the count of pending removals may be: counting iterates over all
	// bindings of the cluster.
	countMaxAge = 500 * time.Millisecond
)

// breaker stops a syncer from removing many objects at once that no one asked to remove:
// because decisions changed, or because a type vanished with its objects. A mistake in a
// policy, or in this program, then costs a condition and not the workloads.
//
// Four kinds of removal are not counted. A user deleted the object, its namespace or its type,
// or the object was in the cluster only for such an object (RequestedRemovals): that was
// requested through the API, under its authorization. Other clusters have taken the object over
// since this one was unreachable, and run it (RequestedRemovals, too). The Cluster leaves. The
// Cluster is drained, or has a NoExecute taint. The last two name this very cluster.
type breaker struct {
	batchWindow, recheckInterval time.Duration // see the constants of similar names

	mu        sync.Mutex
	removed   map[types.NamespacedName]time.Time // counted removals within the deletion window
	countedAt time.Time
	pending   map[types.NamespacedName]string // further pending removals and the names of their objects
	total     int                             // objects that the fleet has, or had within the window, in the cluster
	halted    bool
	// holding: a removal was refused, and has to be tried again when removals are no longer halted.
	holding bool
	written metav1.Condition
}

// allow reports whether a counted removal may happen now, and counts it.
func (b *breaker) allow(s *Syncer, key types.NamespacedName, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	cluster, ok := s.Cluster()
	if !ok {
		return false // without a Cluster there is no permission to delete
	}
	if isDeliberate(cluster, now) {
		return true
	}
	if _, already := b.removed[key]; already {
		return true
	}
	if now.Sub(b.countedAt) > countMaxAge {
		b.count(s, now)
	}
	b.pending[key] = "" // the next count fills in the name
	b.halted = !withinLimit(len(b.removed)+len(b.pending), b.total, cluster.MaxDeletePercent())
	if b.halted {
		b.holding = true
		return false
	}
	delete(b.pending, key)
	b.removed[key] = now
	return true
}

// held returns the number of removals that wait for a permission.
func (b *breaker) held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.halted {
		return 0
	}
	return len(b.pending)
}

// isDeliberate reports whether a user has declared that objects are to leave this very cluster.
func isDeliberate(c *v1alpha1.Cluster, now time.Time) bool {
	drained := c.Spec.Drain != nil || slices.ContainsFunc(c.TaintsWithTime(), func(t v1alpha1.Taint) bool { return t.Effect == v1alpha1.TaintNoExecute })
	return c.DeletionTimestamp != nil || drained || c.DeletionsAllowed(now)
}

// withinLimit reports whether the recent and pending removals together may happen at once.
// Pending removals count from the start: otherwise the first fifth of a catastrophe would
// always happen.
func withinLimit(leaving, total int, percent int32) bool {
	return percent >= 100 || leaving <= max(v1alpha1.MinDeletions, total*int(percent)/100)
}

// count counts the objects in the cluster and those of them that are to be removed without a
// request. The caller holds mu.
func (b *breaker) count(s *Syncer, now time.Time) {
	maps.DeleteFunc(b.removed, func(_ types.NamespacedName, at time.Time) bool { return now.Sub(at) > v1alpha1.DeletionWindow })
	if b.removed == nil {
		b.removed = map[types.NamespacedName]time.Time{}
	}
	b.countedAt, b.total, b.pending = now, len(b.removed), map[types.NamespacedName]string{}
	for _, binding := range s.Bindings() {
		state, reported := binding.State(s.cluster)
		if _, counted := b.removed[binding.Key()]; counted || !reported || state.UID == "" {
			continue
		}
		b.total++
		_, chosen := binding.Share(s.cluster)
		_, requested := binding.RequestedRemoval(s.cluster)
		gone := binding.DeletionTimestamp != nil && s.TypeVanished(binding)
		if (!chosen || gone) && !requested && !binding.Spec.Suspend {
			b.pending[binding.Key()] = binding.Spec.Resource.Kind + " " + controllers.CacheKey(binding.ObjectName())
		}
	}
}

// run checks periodically whether a halted syncer may continue, and keeps the Cluster's
// condition current.
func (b *breaker) run(ctx context.Context, s *Syncer) {
	b.mu.Lock()
	if c, ok := s.Cluster(); ok {
		// A previous syncer may have been halted.
		b.halted = meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted)
		b.holding = b.holding || b.halted
		if was := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted); was != nil {
			b.written = *was
		}
	}
	b.mu.Unlock()
	ticker := s.clock.NewTicker(b.recheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := b.check(ctx, s); err != nil && ctx.Err() == nil {
			s.log.Warn("update of condition DeletionsHalted failed; retrying", "error", err)
		}
	}
}

func (b *breaker) check(ctx context.Context, s *Syncer) error {
	cluster, ok := s.Cluster()
	if !ok {
		return nil
	}
	b.mu.Lock()
	now := s.clock.Now()
	if b.halted {
		b.count(s, now)
		b.halted = !isDeliberate(cluster, now) && !withinLimit(len(b.removed)+len(b.pending), b.total, cluster.MaxDeletePercent())
	}
	condition := b.condition(s.cluster)
	// Not by the condition: the halt may have ended before that was written.
	resumed := b.holding && !b.halted
	var waiting []types.NamespacedName // their entries may not be reported yet
	if resumed {
		b.holding = false
		waiting = slices.Collect(maps.Keys(b.pending))
	}
	same := b.written.Status == condition.Status && b.written.Message == condition.Message || b.written.Type == "" && !b.halted
	b.mu.Unlock()
	for _, key := range waiting {
		s.queue.Add(key)
	}
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
	if err := s.writeCondition(ctx, cluster, &condition); err != nil {
		return err
	}
	b.mu.Lock()
	b.written = condition
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
	names := slices.Sorted(maps.Values(b.pending))
	shown := strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		shown += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return metav1.Condition{Type: v1alpha1.ClusterDeletionsHalted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTooManyDeletions,
		Message: fmt.Sprintf("%d of the %d objects in the cluster would be removed because decisions changed (%s); removals are halted, everything else continues. "+
			"If this is intended, run `atoll clusters allow-deletions %s`. Otherwise correct the policy: objects that it places again stay", len(names), b.total, shown, cluster)}
}

// writeCondition writes the condition to the Cluster. The syncer owns no other field of it.
func (s *Syncer) writeCondition(ctx context.Context, cluster *v1alpha1.Cluster, c *metav1.Condition) error {
	c.LastTransitionTime = metav1.NewTime(s.clock.Now())
	if was := meta.FindStatusCondition(cluster.Status.Conditions, c.Type); was != nil && was.Status == c.Status {
		c.LastTransitionTime = was.LastTransitionTime
	}
	c.ObservedGeneration = cluster.Generation
	return s.SetDeletionsHalted(ctx, *c)
}
