package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// preemptionTime is how long a preemption lasts at most: until then, its victims do not return, and the object for
// which they left makes no others leave.
const preemptionTime = 5 * time.Minute

// Tenants is what decisions read about objects that make room for others.
type Tenants interface {
	// boundTo returns the bindings of the objects that a cluster has.
	boundTo(cluster string) []*v1alpha1.ResourceBinding
	// bindingOf returns the binding of an object, nil if it has none.
	bindingOf(o object) *v1alpha1.ResourceBinding
	// placed returns an object that exists.
	placed(o object) (Placed, bool)
	// preemptorsOf returns the bindings of the objects for which another one makes room.
	preemptorsOf(o object) []*v1alpha1.ResourceBinding
	priorityOf(obj *unstructured.Unstructured) priority
	// lastPriorityOf returns the priority of an object by its PriorityClass when it was last decided, which takes less
	// time.
	lastPriorityOf(o object) int32
	// budgets returns the PodDisruptionBudgets of a namespace.
	budgets(namespace string) []*unstructured.Unstructured
}

func victimOf(v *v1alpha1.PreemptionVictim) object {
	return object{schema.ParseGroupKind(v.Kind), types.NamespacedName{Namespace: v.Namespace, Name: v.Name}}
}

// isVictim reports whether an object makes room by a preemption.
func isVictim(o object, p *v1alpha1.Preemption) bool {
	return p != nil && slices.ContainsFunc(p.Victims, func(v v1alpha1.PreemptionVictim) bool { return victimOf(&v) == o })
}

// preemptionEnds returns when a preemption ends at the latest.
func preemptionEnds(p *v1alpha1.Preemption) time.Time { return p.Time.Add(preemptionTime) }

// makeRoom completes the request of an object that makes room for others of a higher priority.
func (snap *Snapshot) makeRoom(r *placement.Request, o object, obj *unstructured.Unstructured) {
	if snap.Tenants == nil || r.Object.Finished {
		return
	}
	by := snap.Tenants.preemptorsOf(o)
	if p := snap.proposed; p != nil {
		by = append(slices.Clone(by), p)
	}
	for _, b := range by {
		p := b.Spec.Preemption
		if p == nil || !snap.Now.Before(preemptionEnds(p)) || snap.Tenants.priorityOf(obj).value >= p.Priority {
			continue
		}
		for i := range p.Victims {
			v := &p.Victims[i]
			if victimOf(v) != o {
				continue
			}
			if other, is := r.Preempted[v.Cluster]; is && other.Left <= v.Left {
				continue
			}
			if r.Preempted == nil {
				r.Preempted = map[string]placement.Preempted{}
			}
			r.Preempted[v.Cluster] = placement.Preempted{Left: v.Left, By: fmt.Sprintf("%s (priority %d)", nameOf(b), p.Priority)}
		}
	}
}

// nameOf describes the object of a binding: Deployment shop/web.
func nameOf(b *v1alpha1.ResourceBinding) string {
	if b.Namespace == "" {
		return b.Spec.Resource.Kind + " " + b.Spec.Resource.Name
	}
	return b.Spec.Resource.Kind + " " + b.Namespace + "/" + b.Spec.Resource.Name
}

// takeRoom gives an object the room that others have made for it, and returns its preemption, or nil if
// that has ended. The object comes to a cluster only when its syncer has written the victims' shares there: the cluster's
// own scheduler would choose others.
func (snap *Snapshot) takeRoom(r *placement.Request, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) *v1alpha1.Preemption {
	if b == nil || b.Spec.Preemption == nil || snap.Tenants == nil {
		return nil
	}
	p := b.Spec.Preemption
	if own := snap.Tenants.priorityOf(obj); own.value < p.Priority || !own.preempts || !snap.Now.Before(preemptionEnds(p)) {
		return nil
	}
	if slices.ContainsFunc(p.Victims, func(v v1alpha1.PreemptionVictim) bool { _, is := r.Preempted[v.Cluster]; return is }) {
		return nil // by now it makes room there for others
	}
	for _, more := range moreIn(p, &r.Object, r.Previous) {
		if snap.isMade(p, more.Cluster) {
			r.Room = r.Room.Admit(r.Fleet, more.Cluster, times(&r.Object, more))
		}
	}
	return p
}

// times returns how many replicas a share has.
func times(o *placement.Object, s placement.Share) int32 {
	switch {
	case !s.Whole:
		return s.Replicas
	case o.Divisible:
		return o.Replicas
	}
	return 1
}

// moreIn returns what a preemption makes room for beyond an object's shares.
func moreIn(p *v1alpha1.Preemption, o *placement.Object, shares []placement.Share) (out []placement.Share) {
	for _, c := range p.Clusters {
		more := placement.Share{Cluster: c.Name, Whole: c.Replicas == nil}
		i := slices.IndexFunc(shares, func(s placement.Share) bool { return s.Cluster == c.Name })
		if c.Replicas != nil {
			more.Replicas = *c.Replicas
			if i >= 0 {
				more.Replicas -= times(o, shares[i])
			}
		} else if i >= 0 {
			continue
		}
		if more.Whole || more.Replicas > 0 {
			out = append(out, more)
		}
	}
	return out
}

// isMade reports whether all victims of a preemption have left a cluster, as its syncer reports.
func (snap *Snapshot) isMade(p *v1alpha1.Preemption, cluster string) bool {
	for i := range p.Victims {
		if v := &p.Victims[i]; v.Cluster == cluster && !hasLeft(v, snap.Tenants.bindingOf(victimOf(v))) {
			return false
		}
	}
	return true
}

func hasLeft(v *v1alpha1.PreemptionVictim, b *v1alpha1.ResourceBinding) bool {
	if b == nil {
		return true
	}
	if share, has := b.DecidedShare(v.Cluster); has && (share.Replicas == nil || *share.Replicas > v.Left) {
		return false
	}
	state, reported := b.State(v.Cluster)
	return !reported || v.Replicas != nil && state.Replicas != nil && *state.Replicas <= v.Left
}

// awaited returns a preemption without the clusters whose room a decision has used, which is not given twice, and
// without all of them if the object no longer waits.
func awaited(p *v1alpha1.Preemption, a *Result) *v1alpha1.Preemption {
	more := moreIn(p, &a.Request.Object, a.Decision.Shares())
	out := p.DeepCopy()
	out.Clusters = slices.DeleteFunc(out.Clusters, func(c v1alpha1.PreemptedCluster) bool {
		return !a.Decision.Waits || !slices.ContainsFunc(more, func(s placement.Share) bool { return s.Cluster == c.Name })
	})
	return out
}

// isSettled reports whether an object needs no more of the room that others made for it, and is healthy there.
func isSettled(p *v1alpha1.Preemption, a *Result, b *v1alpha1.ResourceBinding) bool {
	return len(p.Clusters) == 0 && !slices.ContainsFunc(p.Victims, func(v v1alpha1.PreemptionVictim) bool {
		i := slices.IndexFunc(a.Shares, func(s v1alpha1.ClusterShare) bool { return s.Name == v.Cluster })
		state, reported := b.State(v.Cluster)
		return i >= 0 && (!reported || state.Health != v1alpha1.Healthy || a.Shares[i].Replicas != nil && (state.Replicas == nil || *state.Replicas != *a.Shares[i].Replicas))
	})
}

// promise has the room that others make for an object count as taken for all other objects.
func promise(rooms *placement.Rooms, o *placement.Object, p *v1alpha1.Preemption, shares []placement.Share) {
	if p == nil {
		rooms.Promise(o, nil, time.Time{})
		return
	}
	rooms.Promise(o, moreIn(p, o, shares), preemptionEnds(p))
}

// preemptionMessage names the objects that make room.
func preemptionMessage(p *v1alpha1.Preemption) string {
	if p == nil {
		return ""
	}
	victims := make([]string, len(p.Victims))
	for i := range p.Victims {
		victims[i] = p.Victims[i].String()
	}
	return "; room is made by " + names.List(victims)
}

// preemptedText says what an object loses by a decision because it makes room, or "".
func (a *Result) preemptedText() string {
	var out []string
	for _, was := range a.Request.Previous {
		p, is := a.Request.Preempted[was.Cluster]
		if !is {
			continue
		}
		i := slices.IndexFunc(a.Shares, func(s v1alpha1.ClusterShare) bool { return s.Name == was.Cluster })
		switch {
		case was.Whole && i < 0:
			out = append(out, fmt.Sprintf("it leaves %s and makes room for %s", was.Cluster, p.By))
		case was.Whole:
		case i < 0:
			out = append(out, fmt.Sprintf("%d of its replicas leave %s and make room for %s", was.Replicas, was.Cluster, p.By))
		case a.Shares[i].Replicas != nil && *a.Shares[i].Replicas < was.Replicas:
			out = append(out, fmt.Sprintf("%d of its replicas leave %s and make room for %s", was.Replicas-*a.Shares[i].Replicas, was.Cluster, p.By))
		}
	}
	return strings.Join(out, "; ")
}
