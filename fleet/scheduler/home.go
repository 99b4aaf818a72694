package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// Where a custom resource is at home: with the controller that keeps its status. If one does here, the
// object goes to no member, where another would work on it a second time.

// ReasonTypeLeaves means that no program in the cluster needs the object's type any more, so it is removed.
const ReasonTypeLeaves = "TypeLeaves"

// keepers has, by kind, the objects whose status someone keeps in the control plane.
type keepers struct {
	mu sync.Mutex
	of map[schema.GroupKind]map[object]string
	// put are the types that were seen in a cluster because Atoll put them there.
	put map[object]map[string]bool
}

func newKeepers() *keepers {
	return &keepers{of: map[schema.GroupKind]map[object]string{}, put: map[object]map[string]bool{}}
}

// recordType records where Atoll has put a type.
func (h *keepers) recordType(definition object, b *v1alpha1.ResourceBinding) {
	if definition.GroupKind != crdKind() || b == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range b.Status.Clusters {
		if c.UID == "" {
			continue
		}
		if h.put[definition] == nil {
			h.put[definition] = map[string]bool{}
		}
		h.put[definition][c.Name] = true
	}
}

func (h *keepers) hasPut(definition object, cluster string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.put[definition][cluster]
}

// set records who keeps the status of an object, "" if no one does.
func (h *keepers) set(o object, keeper string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of := h.of[o.GroupKind]
	switch {
	case keeper != "" && of == nil:
		h.of[o.GroupKind] = map[object]string{o: keeper}
	case keeper != "":
		of[o] = keeper
	default:
		if delete(of, o); len(of) == 0 {
			delete(h.of, o.GroupKind)
		}
	}
}

// all returns the objects of a kind whose status is kept here, with the keepers.
func (h *keepers) all(gk schema.GroupKind) map[object]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.of[gk])
}

func (h *keepers) keeper(o object) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[o.GroupKind][o]
}

// homeOf returns the home that a user has chosen for an object or its type.
func (s *scheduler) homeOf(k interpret.KindInfo, obj *unstructured.Unstructured) v1alpha1.Home {
	def := definitionOf(k)
	if definition, exists := s.Objects.Get(def.GroupKind, def.NamespacedName); exists {
		return interpret.HomeOf(obj, definition)
	}
	return interpret.HomeOf(obj, nil)
}

// isHomeless reports whether an object without a binding has no business in members: its status, or that of
// its siblings, is kept here, or no cluster serves its type. It gets no binding and no warning. A
// label or policy for it, or for its kind, says otherwise.
func (s *scheduler) isHomeless(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) bool {
	if b != nil || fleet.Native(k.GroupKind()) {
		return false
	}
	switch s.homeOf(k, obj) {
	case v1alpha1.HomeAbove:
		return true
	case v1alpha1.HomeMembers:
		return false
	}
	if s.snapshot().Choose(k, obj).Explicit {
		return false
	}
	return interpret.StatusKeeper(obj) != "" || s.siblingsAreHome(k) || !s.isServed(k, false)
}

// siblingsAreHome reports whether the status of another object of the kind is kept here, and that one is in
// no cluster.
func (s *scheduler) siblingsAreHome(k interpret.KindInfo) bool {
	for o := range s.home.all(k.GroupKind()) {
		if _, bound := s.Bindings.Get(o.binding()); !bound {
			return true
		}
	}
	return false
}

// isServed reports whether a cluster serves a kind and something works on its objects there. With lasting, clusters
// that the type leaves do not count.
func (s *scheduler) isServed(k interpret.KindInfo, lasting bool) bool {
	return slices.ContainsFunc(s.fleetSnapshot().Names(), func(name string) bool {
		serves, _ := s.Types.ServedBy(name, k.GroupVersionKind)
		return serves && !s.isIdleType(k, name) && !(lasting && s.typeLeaves(k, name))
	})
}

// leavesForHome returns why an object with a binding leaves all clusters: a user wants it here, or its
// status is kept here and no cluster has reported one, or its type leaves them. It returns "" otherwise.
func (s *scheduler) leavesForHome(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) string {
	if b == nil || fleet.Native(k.GroupKind()) {
		return ""
	}
	home := s.homeOf(k, obj)
	if home == v1alpha1.HomeAbove {
		return fmt.Sprintf("its label %s or that of its type keeps it in the control plane", v1alpha1.HomeLabel)
	}
	if home == v1alpha1.HomeMembers || s.snapshot().Choose(k, obj).Explicit {
		return ""
	}
	if keeper := interpret.StatusKeeper(obj); keeper != "" && !hasReports(b) {
		return fmt.Sprintf("%s keeps its status in the control plane", keeper)
	}
	for _, c := range b.Spec.Clusters {
		if !s.typeLeaves(k, c.Name) && !s.typeHasLeft(k, c.Name) {
			return ""
		}
	}
	if hasReports(b) || s.isServed(k, true) || len(b.Spec.Clusters) == 0 && !s.typeHadLeft(k, b) {
		return ""
	}
	return "no cluster has its type any more"
}

// hasReports reports whether something in a cluster works on an object.
func hasReports(b *v1alpha1.ResourceBinding) bool {
	for _, c := range b.Status.Clusters {
		if c.Status != nil && len(c.Status.Raw) > len("{}") && string(c.Status.Raw) != "null" {
			return true
		}
	}
	return false
}

// isForgottenType reports whether an object is a type whose users were deleted in all its clusters. Then it
// goes, with those of its objects on which nothing has worked. A type whose users only moved, or may no
// longer write it, stays.
func (s *scheduler) isForgottenType(o object, b *v1alpha1.ResourceBinding) bool {
	return o.GroupKind == crdKind() && len(s.requestedRemovals(b, nil)) >= len(b.Spec.Clusters)
}

// isIdleType reports whether a cluster keeps a type only because of its objects: no program there is known
// to work on new ones.
func (s *scheduler) isIdleType(k interpret.KindInfo, cluster string) bool {
	b, bound := s.Bindings.Get(definitionOf(k).binding())
	if !bound {
		return false
	}
	share, chosen := b.Share(cluster)
	return chosen && share.Reason == ReasonKeptData
}

// typeLeaves reports whether a type that Atoll put into a cluster is to leave it. Its objects have to go
// first: the syncer removes no type that has objects.
func (s *scheduler) typeLeaves(k interpret.KindInfo, cluster string) bool {
	b, bound := s.Bindings.Get(definitionOf(k).binding())
	if !bound {
		return false
	}
	state, reported := b.State(cluster)
	_, chosen := b.Share(cluster)
	return reported && state.UID != "" && (!chosen || b.DeletionTimestamp != nil)
}

// typeHasLeft reports whether Atoll has removed a type from a cluster, as far as this session saw that. A
// type that is missing for another reason may come back.
func (s *scheduler) typeHasLeft(k interpret.KindInfo, cluster string) bool {
	if _, bound := s.Bindings.Get(definitionOf(k).binding()); bound || !s.home.hasPut(definitionOf(k), cluster) {
		return false
	}
	serves, _ := s.Types.ServedBy(cluster, k.GroupVersionKind)
	return !serves
}

// typeHadLeft reports whether all clusters that report an object are ones that its type has left or leaves.
func (s *scheduler) typeHadLeft(k interpret.KindInfo, b *v1alpha1.ResourceBinding) bool {
	return !slices.ContainsFunc(b.Status.Clusters, func(c v1alpha1.ClusterState) bool {
		return !s.typeLeaves(k, c.Name) && !s.typeHasLeft(k, c.Name)
	})
}

// typeRemovals returns the clusters where the removal of a type was requested, as requests for its object.
func (s *scheduler) typeRemovals(k interpret.KindInfo, b *v1alpha1.ResourceBinding) []v1alpha1.RequestedRemoval {
	out := b.Spec.RequestedRemovals
	def, bound := s.Bindings.Get(definitionOf(k).binding())
	for _, c := range b.Spec.Clusters {
		if _, asked := b.RequestedRemoval(c.Name); asked || !bound {
			continue
		}
		if _, asked := def.RequestedRemoval(c.Name); asked || def.DeletionTimestamp != nil {
			out = append(out, v1alpha1.RequestedRemoval{Name: c.Name, Reason: v1alpha1.RemovalUsersDeleted})
		}
	}
	return out
}

// requeueObjectsOf queues the objects of a type whose decision changed: they may have to leave with it.
func (s *scheduler) requeueObjectsOf(definition object) {
	if definition.GroupKind != crdKind() {
		return
	}
	for _, k := range s.Kinds.All() {
		if fleet.Native(k.GroupKind()) || definitionOf(k) != definition {
			continue
		}
		for _, b := range s.Bindings.Of(k.GroupKind()) {
			s.queue.Add(boundBy(b))
		}
	}
}

// typeObstacle returns why a cluster cannot accept a custom resource: it does not serve its type, the type
// leaves it, or no program there works on new objects. It returns nil if it can.
func (s *scheduler) typeObstacle(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, cluster string) *placement.Obstacle {
	if s.typeLeaves(k, cluster) && (b == nil || !hasReports(b)) {
		obstacle := idleType(false)
		return &obstacle
	}
	serves, why := s.Types.ServedBy(cluster, k.GroupVersionKind)
	switch {
	case !serves:
		obstacle := notServed(why)
		return &obstacle
	case s.isIdleType(k, cluster) && !s.snapshot().Choose(k, obj).Explicit:
		obstacle := idleType(isRunning(b, cluster))
		return &obstacle
	}
	return nil
}

// idleType is the obstacle in a cluster where no program works on the object's type any more.
func idleType(keeps bool) placement.Obstacle {
	return placement.Obstacle{Reason: ReasonTypeLeaves, Message: "no longer has a program that works on its type", Keeps: keeps}
}

// contenderMessage says in the binding that two controllers write the status of one object.
func (s *scheduler) contenderMessage(k interpret.KindInfo, obj *unstructured.Unstructured) string {
	if fleet.Native(k.GroupKind()) {
		return ""
	}
	keeper := interpret.StatusContender(obj)
	if keeper == "" {
		return ""
	}
	return fmt.Sprintf("; %s writes its status in the control plane, so the reports of clusters are not written there. To end that, set the label %s to %s or %s",
		keeper, v1alpha1.HomeLabel, v1alpha1.HomeAbove, v1alpha1.HomeMembers)
}
