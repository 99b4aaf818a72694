package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// drainProgress is how far the drain of a cluster is.
type drainProgress struct {
	leaving, waiting int
	// blocked are the objects that cannot leave, with the reasons.
	blocked []string
	// finished and data are the objects that stay in a drained cluster.
	finished, data int
}

// progressOf counts the objects of a cluster that is drained. Followers go with the objects that need them, and count
// only while they are being removed.
func progressOf(cluster string, bindings []*v1alpha1.ResourceBinding) drainProgress {
	var p drainProgress
	for _, b := range bindings {
		share, decided := decidedShare(b, cluster)
		name := b.Spec.Resource.Kind + " " + controllers.CacheKey(b.ObjectName())
		scheduled := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingScheduled)
		switch {
		case !decided && !slices.Contains(undecidedIn(b), cluster):
		case !decided && b.Spec.Suspend:
			p.blocked = append(p.blocked, name+": suspended by its policy")
		case !decided, b.DeletionTimestamp != nil:
			p.leaving++
		case share.Reason == ReasonKeptData:
			p.data++
		case b.Spec.Policy == nil:
		case share.Reason == placement.ReasonKeptFinished:
			p.finished++
		case b.Status.Proposal != nil:
			p.blocked = append(p.blocked, name+": waits for a plan to be applied")
		case scheduled != nil && scheduled.Reason == ReasonPolicyInvalid:
			p.blocked = append(p.blocked, name+": "+scheduled.Message)
		case share.Reason == placement.ReasonKeptNoAlternative:
			why := share.Message
			if _, because, found := strings.Cut(why, "keeps its share because "); found {
				why = because
			}
			p.blocked = append(p.blocked, name+": "+why)
		default:
			p.waiting++
		}
	}
	slices.Sort(p.blocked)
	return p
}

// decidedShare returns a cluster's part of the decision about an object.
func decidedShare(b *v1alpha1.ResourceBinding, cluster string) (v1alpha1.ClusterShare, bool) {
	decided := b.Decided()
	i := slices.IndexFunc(decided, func(c v1alpha1.ClusterShare) bool { return c.Name == cluster })
	if i < 0 {
		return v1alpha1.ClusterShare{}, false
	}
	return decided[i], true
}

// condition returns the condition Draining.
func (p drainProgress) condition(paused bool) *metav1.Condition {
	out := &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDraining}
	left := p.leaving + p.waiting + len(p.blocked)
	switch {
	case left == 0:
		out.Status, out.Reason, out.Message = metav1.ConditionFalse, v1alpha1.ReasonDrained, "no object is left that could leave"
	case paused:
		out.Reason = v1alpha1.ReasonDrainPaused
	case p.leaving+p.waiting == 0:
		out.Reason = v1alpha1.ReasonDrainBlocked
	}
	if left > 0 {
		waits := "wait for their turn"
		if paused {
			waits = "wait until spec.drain is not paused"
		}
		out.Message = fmt.Sprintf("%s left: %d leaving, %d %s, %d cannot leave", count(left, "object is", "objects are"), p.leaving, p.waiting, waits, len(p.blocked))
	}
	if p.finished > 0 {
		out.Message += fmt.Sprintf("; %s where they ran", count(p.finished, "finished object stays", "finished objects stay"))
	}
	if p.data > 0 {
		out.Message += fmt.Sprintf("; %s until they are deleted", count(p.data, "object with data stays", "objects with data stay"))
	}
	const most, longest = 5, 300
	for _, text := range p.blocked[:min(most, len(p.blocked))] {
		if len(text) > longest {
			text = strings.ToValidUTF8(text[:longest], "") + "…"
		}
		out.Message += "; " + text
	}
	if more := len(p.blocked) - most; more > 0 {
		out.Message += fmt.Sprintf("; and %d more", more)
	}
	return out
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// drainChanged signals that the progress of drains may have changed with a binding.
func (s *scheduler) drainChanged(was, is *v1alpha1.ResourceBinding) {
	f := s.fleetSnapshot()
	if !f.Drains() {
		return
	}
	drained := func(name string) bool {
		c, joined := f.Cluster(name)
		return joined && c.Draining
	}
	for _, b := range []*v1alpha1.ResourceBinding{was, is} {
		if b == nil {
			continue
		}
		if slices.ContainsFunc(b.Spec.Clusters, func(c v1alpha1.ClusterShare) bool { return drained(c.Name) }) ||
			slices.ContainsFunc(b.Status.Clusters, func(c v1alpha1.ClusterState) bool { return drained(c.Name) }) {
			s.cache.signalConditions()
			return
		}
	}
}

// drainCondition returns the condition Draining of a Cluster; nil if it is not drained.
func (s *scheduler) drainCondition(c *v1alpha1.Cluster) *metav1.Condition {
	if c.Spec.Drain == nil {
		return nil
	}
	return progressOf(c.Name, s.Bindings.On(c.Name)).condition(c.Spec.Drain.Paused)
}
