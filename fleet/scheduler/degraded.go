package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/transition"
)

// EventApplicationFailoverHeld is the reason of an object's event when it stays where it is not Healthy for too long: the
// fault is probably its own, or something keeps it there.
const EventApplicationFailoverHeld = "ApplicationFailoverHeld"

// findDegraded completes a request by the clusters that the object is to leave because it is not Healthy there, if its
// policy has spec.applicationFailover. During a transition its deadline decides instead.
func (snap *Snapshot) findDegraded(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	after, leaves := a.Choice.Policy.ApplicationFailover()
	if !leaves || b == nil || b.Spec.Transition != nil || a.Request.Object.Finished {
		return
	}
	reports := healthReports(obj, b, a.Request.Pending)
	if !slices.ContainsFunc(reports, func(r placement.HealthReport) bool { return r.Health != v1alpha1.Healthy }) {
		return
	}
	settings, err := transition.ObjectSettings(obj.GetAnnotations()[v1alpha1.TransitionAnnotation])
	if err != nil {
		settings = v1alpha1.ObjectTransition{} // an event of the object reports it
	}
	limits := transition.LimitsFor(0, &settings.TransitionPolicy, a.Choice.Policy.Transition(), snap.Policies.DefaultTransition())
	rule := placement.DegradedRule{After: after, FirstHealth: limits.Deadline}
	if rule.FirstHealth == 0 {
		rule.FirstHealth = transition.DefaultDeadline
	}
	a.Degraded = placement.FindDegraded(snap.Fleet, reports, failedClusters(a.Avoided), rule, snap.Now)
	if len(a.Degraded.Leaves) == 0 && a.Degraded.Held == "" {
		return
	}
	if why := snap.staysDegraded(a, k, obj, limits.Paused); why != "" {
		var in []string
		for _, r := range reports {
			if r.Health != v1alpha1.Healthy {
				in = append(in, r.Cluster)
			}
		}
		a.Degraded = placement.Degraded{Held: fmt.Sprintf("it is not Healthy in %s, and stays there: %s", names.List(in), why)}
		return
	}
	a.Request.Degraded = a.Degraded.Leaves
}

// staysDegraded returns why an object stays in the clusters where it is not Healthy, whatever its policy says; "" if it
// does not.
func (snap *Snapshot) staysDegraded(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, paused bool) string {
	kind := k.GroupVersionKind.Kind
	switch {
	case a.Choice.Policy.Suspended():
		return "the policy suspends it"
	case paused:
		return "its transitions are paused"
	case kind == "Pod" || kind == "Job":
		return fmt.Sprintf("a %s would begin its work again", kind)
	case a.Together != nil && len(a.Together.Members) > 0:
		m := a.Together.Members[0]
		return fmt.Sprintf("it belongs together with %s %s, and does not leave alone", m.Kind, m.Name)
	}
	if v := snap.volumesOf(k, obj); v.Stays {
		return fmt.Sprintf("its volumes are there (%s). %s", v.Text(), v.Remedy())
	}
	return ""
}

// healthReports returns what the clusters that have replicas of an object report about its health. pending is how many of
// its pods have had no node for too long, by cluster.
func healthReports(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, pending map[string]int32) (out []placement.HealthReport) {
	for _, share := range b.Spec.Clusters {
		if share.Replicas != nil && *share.Replicas == 0 {
			continue
		}
		state, _ := b.State(share.Name)
		r := placement.HealthReport{Cluster: share.Name, Health: state.Health, WasHealthy: state.WasHealthy}
		r.Current = state.UID != "" && state.Stale == nil && isInSync(state.Reason) && state.Generation >= obj.GetGeneration() &&
			state.ObservedGeneration >= state.MemberGeneration && equalInt(state.Replicas, share.Replicas) && state.ShareRevision == share.Revision
		if state.UnhealthySince != nil {
			r.Since = state.UnhealthySince.Time
		}
		if share.Replicas != nil {
			r.Pending = pending[share.Name]
		}
		out = append(out, r)
	}
	return out
}

// failedClusters returns the clusters that failed to run the object as it is.
func failedClusters(avoided []v1alpha1.AvoidedCluster) (out []placement.FailedCluster) {
	for _, c := range avoided {
		failed := placement.FailedCluster{Cluster: c.Name}
		if c.Until != nil {
			failed.Until = c.Until.Time
		}
		out = append(out, failed)
	}
	return out
}

// avoidDegraded returns the clusters that an object avoids after a decision by which it leaves some, because it is not
// Healthy there. An object that is not Healthy in one cluster after the other stays longer each time.
func (a *Result) avoidDegraded(obj metav1.Object, snap *Snapshot, b *v1alpha1.ResourceBinding) []v1alpha1.AvoidedCluster {
	attempts := int32(1)
	for _, c := range a.Avoided {
		if c.Reason == v1alpha1.AvoidedDegraded && !isForgotten(&c, snap.Now) {
			attempts = max(attempts, c.Attempts+1)
		}
	}
	out := a.Avoided
	for _, name := range a.Decision.Degraded {
		state, _ := b.State(name)
		entry := v1alpha1.AvoidedCluster{Reason: v1alpha1.AvoidedDegraded, Time: metav1.NewTime(snap.Now).Rfc3339Copy(), ObjectGeneration: obj.GetGeneration(), Selection: selectionOf(&a.Choice, obj, snap)}
		entry.Message = fmt.Sprintf("did not keep it Healthy: it was %s since %s", state.Health, a.Request.Degraded[name].UTC().Format(time.RFC3339))
		if state.Message != "" {
			entry.Message += " (" + state.Message + ")"
		}
		out = avoidAfter(out, name, entry, attempts)
	}
	return out
}

// withoutReached returns the clusters that an object avoids when a transition has reached its goal. In clusters of the
// goal it runs now. If it was not Healthy there before, that is remembered for further attempts: it may become so again.
// If it returned, clusters of the goal may have failed to run a larger share.
func withoutReached(avoided []v1alpha1.AvoidedCluster, goal []v1alpha1.ClusterShare, returned bool, now metav1.Time) (out []v1alpha1.AvoidedCluster) {
	in := clustersIn(goal)
	for _, c := range avoided {
		switch {
		case !in[c.Name]:
		case c.Reason != v1alpha1.AvoidedDegraded && !returned:
			continue
		case c.Reason == v1alpha1.AvoidedDegraded && (c.Until == nil || now.Before(c.Until)):
			c.Until = &now
		}
		out = append(out, c)
	}
	return out
}

// isForgotten reports whether an object was not Healthy in a cluster so long ago that it is no attempt any more.
func isForgotten(c *v1alpha1.AvoidedCluster, now time.Time) bool {
	return c.Reason == v1alpha1.AvoidedDegraded && c.Until != nil && !now.Before(c.Until.Add(lastRetry))
}

// decidedDegraded reports whether a cluster is avoided because the object was not Healthy there, and the object returns to
// it, because another one did not run it either.
func decidedDegraded(b *v1alpha1.ResourceBinding, entry *v1alpha1.AvoidedCluster) bool {
	if entry.Reason != v1alpha1.AvoidedDegraded || b.Spec.Transition == nil || b.Spec.Transition.Cause != v1alpha1.CauseRolledBack {
		return false
	}
	_, decided := b.DecidedShare(entry.Name)
	return decided
}

// degradedMessage says about the clusters in which the object is not Healthy when it leaves them, or why it does not.
func (a *Result) degradedMessage() string {
	out := ""
	if a.Degraded.Held != "" {
		out = "; " + a.Degraded.Held
	}
	if len(a.Degraded.Notes) > 0 {
		out += "; not Healthy " + strings.Join(a.Degraded.Notes, ", and ")
	}
	return out
}

// degradedText says that the object left clusters because it was not Healthy there, or "".
func (a *Result) degradedText() string {
	if len(a.Decision.Degraded) == 0 {
		return ""
	}
	return ": it was not Healthy in " + names.List(a.Decision.Degraded)
}

// setDegraded sets what a decision says about clusters in which the object is not Healthy.
func (p *bindingUpdate) setDegraded(a *Result) {
	p.degraded = a.Decision.Degraded
	p.why += a.degradedText()
}

// recordHeld emits an event when an object begins to stay where it is not Healthy. The recorded condition says whether
// it stayed before.
func (s *scheduler) recordHeld(obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, a *Result) {
	if a.Degraded.Held == "" || b == nil || slices.ContainsFunc(b.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == v1alpha1.BindingScheduled && strings.Contains(c.Message, a.Degraded.Held)
	}) {
		return
	}
	s.Events.Event(obj, corev1.EventTypeWarning, EventApplicationFailoverHeld, a.Degraded.Held)
}

// failingOver are the objects whose policies have spec.applicationFailover: their health is an input of their decisions.
type failingOver struct {
	mu sync.Mutex
	of map[object]bool
}

func (f *failingOver) track(o object, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !is:
		delete(f.of, o)
	case f.of == nil:
		f.of = map[object]bool{o: true}
	default:
		f.of[o] = true
	}
}

func (f *failingOver) has(o object) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[o]
}

// healthDiffers reports whether clusters report another health of an object.
func healthDiffers(was, is *v1alpha1.ResourceBinding) bool {
	return !slices.EqualFunc(was.Status.Clusters, is.Status.Clusters, func(a, b v1alpha1.ClusterState) bool {
		return a.Name == b.Name && a.Health == b.Health && a.Generation == b.Generation && a.ObservedGeneration == b.ObservedGeneration && a.Reason == b.Reason &&
			a.ShareRevision == b.ShareRevision && a.UnhealthySince.Equal(b.UnhealthySince) && (a.Stale == nil) == (b.Stale == nil)
	})
}
