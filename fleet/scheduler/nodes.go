package scheduler

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/fleet/capacity"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// ReasonNoNodeFits means that no node of the cluster could run the object's pods, even if it were empty.
const ReasonNoNodeFits = "NoNodeFits"

// noNodeFits adds obstacles in the clusters that have no node for the pods of an object. What runs there stays:
// nodes come and go.
func (snap *Snapshot) noNodeFits(out map[string]placement.Obstacle, k interpret.KindInfo, obj *unstructured.Unstructured) map[string]placement.Obstacle {
	pod := interpret.PodSpec(obj.Object)
	// A DaemonSet runs on the nodes that there are for it, and these may be none.
	if pod == nil || !snap.Fleet.KnowsNodes() || k.GroupKind() == (schema.GroupKind{Group: "apps", Kind: "DaemonSet"}) {
		return out
	}
	for name, why := range snap.Fleet.TooSmall(pod) {
		if _, obstructed := out[name]; obstructed {
			continue
		}
		if out == nil {
			out = map[string]placement.Obstacle{}
		}
		out[name] = placement.Obstacle{Reason: ReasonNoNodeFits, Message: "cannot run it: " + why, Keeps: true}
	}
	return out
}

// podsOf returns the pods of one replica of an object, or of the whole, and how many replicas run at the same time
// (0: all).
func podsOf(k interpret.KindInfo, obj *unstructured.Unstructured) (pods []placement.Pods, atOnce int32) {
	parts, atOnce := k.Pods(obj)
	for _, part := range parts {
		if part.Pod != nil {
			pods = append(pods, placement.Pods{Spec: part.Pod, Count: part.Replicas})
		}
	}
	return pods, atOnce
}

// findRoom completes a request by the room that nodes have for the object, and for the members of its group that
// have no cluster yet.
func (snap *Snapshot) findRoom(r *placement.Request, together *Together) {
	if snap.Rooms == nil || r.Object.Finished {
		return
	}
	var others []placement.Pods
	if together != nil {
		for _, c := range together.Members {
			if len(c.Clusters) == 0 && !c.finished {
				o := objectOf(c.placed.Kind, c.placed.Object)
				others = append(others, o.WholePods()...)
			}
		}
	}
	r.Room = snap.Rooms.For(snap.Fleet, &r.Object, others, r.Previous)
}

// changedFits returns a function that reports whether an object's pods now fit into a cluster's nodes and did not
// before, or the other way round.
func (s *scheduler) changedFits(changes []clusterChange) func(object) bool {
	changes = slices.DeleteFunc(slices.Clone(changes), func(c clusterChange) bool {
		return c.before == nil || c.after == nil || c.before.Nodes.SameKinds(c.after.Nodes)
	})
	known := map[string]bool{} // by what pods ask for
	return func(o object) bool {
		if len(changes) == 0 {
			return false
		}
		obj, exists := s.Objects.Get(o.GroupKind, o.NamespacedName)
		if !exists {
			return false
		}
		pod := interpret.PodSpec(obj.Object)
		if pod == nil {
			return false
		}
		key := capacity.KeyOf(pod)
		changed, done := known[key]
		if !done {
			if demand, err := capacity.DemandOf(pod); err == nil {
				changed = slices.ContainsFunc(changes, func(c clusterChange) bool { return c.before.Nodes.Fits(demand) != c.after.Nodes.Fits(demand) })
			}
			known[key] = changed
		}
		return changed
	}
}
