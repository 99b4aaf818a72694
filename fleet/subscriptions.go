package fleet

import (
	"errors"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// subscriptions notify each cluster of the bindings that concern it.
type subscriptions struct {
	bindings *Bindings

	mu        sync.Mutex
	byCluster map[string]map[*subscription]bool
}

type subscription struct {
	notify func(types.NamespacedName)
}

func (s *subscriptions) add(cluster string, notify func(types.NamespacedName)) (cancel func()) {
	sub := &subscription{notify: notify}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byCluster == nil {
		s.byCluster = map[string]map[*subscription]bool{}
	}
	if s.byCluster[cluster] == nil {
		s.byCluster[cluster] = map[*subscription]bool{}
	}
	s.byCluster[cluster][sub] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.byCluster[cluster], sub)
		if len(s.byCluster[cluster]) == 0 {
			delete(s.byCluster, cluster)
		}
	}
}

func (s *subscriptions) publish(key types.NamespacedName, clusters ...string) {
	s.mu.Lock()
	var notify []func(types.NamespacedName)
	for _, c := range clusters {
		for sub := range s.byCluster[c] {
			notify = append(notify, sub.notify)
		}
	}
	s.mu.Unlock()
	for _, n := range notify {
		n(key)
	}
}

func (s *subscriptions) publishToAll(key types.NamespacedName) {
	s.mu.Lock()
	clusters := slices.Collect(maps.Keys(s.byCluster))
	s.mu.Unlock()
	s.publish(key, clusters...)
}

// listen adds the event handlers that notify the subscribers.
func (s *subscriptions) listen(session *Session) error {
	s.bindings = session.Bindings
	session.Kinds.OnChange(s.kind)
	session.OnAnswer(s.answer)
	return errors.Join(session.Bindings.OnChange(s.binding), session.Objects.OnAnyChange(s.object), session.Namespaces.OnChange(s.namespace))
}

func (s *subscriptions) binding(was, is *v1alpha1.ResourceBinding) {
	var clusters []string
	var key types.NamespacedName
	for _, b := range []*v1alpha1.ResourceBinding{was, is} {
		if b != nil {
			names, _ := clustersOf(b)
			clusters = append(clusters, names...)
			key = b.Key()
		}
	}
	slices.Sort(clusters)
	s.publish(key, slices.Compact(clusters)...)
	s.namespaceBinding(was, is)
}

// namespaceBinding notifies the clusters that a Namespace's binding begins or ceases to concern: the others have the
// labels and annotations of the control plane's namespace unchanged.
func (s *subscriptions) namespaceBinding(was, is *v1alpha1.ResourceBinding) {
	names := map[string]int{}
	of := ""
	for _, b := range []*v1alpha1.ResourceBinding{was, is} {
		if b == nil || !interpret.IsNamespace(b.Spec.Resource.GroupVersionKind().GroupKind()) {
			continue
		}
		of = b.Spec.Resource.Name
		clusters, _ := clustersOf(b)
		for _, name := range clusters {
			names[name]++
		}
	}
	for name, n := range names {
		if n == 1 { // before or after, not both
			s.publish(types.NamespacedName{Namespace: of}, name)
		}
	}
}

// kind notifies the clusters of all objects of a kind when its interpretation changes: the
// content to apply and the health may differ.
func (s *subscriptions) kind(k interpret.KindInfo) {
	for _, b := range s.bindings.Of(k.GroupKind()) {
		names, _ := clustersOf(b)
		s.publish(b.Key(), names...)
	}
}

// answer notifies the clusters of an object when a webhook has answered a question about it: what to
// apply and what to report depends on it.
func (s *subscriptions) answer(q interpret.Question) {
	if q.Operation == v1alpha1.AggregateStatus || q.Operation == v1alpha1.InterpretDependency {
		return // that concerns no cluster
	}
	if b, ok := s.bindings.Get(bindingAbout(q)); ok {
		names := []string{q.Cluster}
		if q.Cluster == "" {
			names, _ = clustersOf(b)
		}
		s.publish(b.Key(), names...)
	}
}

// object notifies an object's clusters when something changed that they should apply. A
// change of only the status is skipped: they reported it themselves.
func (s *subscriptions) object(k interpret.KindInfo, was, is metav1.Object) {
	obj := is
	if is == nil {
		obj = was
	} else if was != nil && was.GetUID() == is.GetUID() && sameForClusters(k, was, is) {
		return
	}
	key := types.NamespacedName{Namespace: obj.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), obj.GetName())}
	if b, ok := s.bindings.Get(key); ok {
		names, _ := clustersOf(b)
		s.publish(key, names...)
	}
}

// namespace notifies the clusters that have a namespace, or objects of it, when its labels or
// annotations change. It notifies all clusters when the namespace is deleted: one without objects
// of it may still have it.
func (s *subscriptions) namespace(was, is metav1.Object) {
	ns := is
	if is == nil {
		ns = was
	} else if was != nil && sameMetadata(was, is) {
		return
	}
	key := types.NamespacedName{Name: v1alpha1.BindingName(interpret.NamespaceKind().GroupKind(), ns.GetName())}
	var clusters []string
	if b, bound := s.bindings.Get(key); bound {
		names, _ := clustersOf(b)
		s.publish(key, names...)
		clusters = append(clusters, names...)
	}
	if is == nil || is.GetDeletionTimestamp() != nil && (was == nil || was.GetDeletionTimestamp() == nil) {
		s.publishToAll(types.NamespacedName{Namespace: ns.GetName()})
		return
	}
	for _, b := range s.bindings.In(ns.GetName()) {
		names, _ := clustersOf(b)
		clusters = append(clusters, names...)
	}
	slices.Sort(clusters)
	s.publish(types.NamespacedName{Namespace: ns.GetName()}, slices.Compact(clusters)...)
}

// sameForClusters reports whether two states of an object are equal for the clusters that have it.
// The cache does not hold the content of an opaque kind, so any new version of it may differ.
func sameForClusters(k interpret.KindInfo, was, is metav1.Object) bool {
	if k.Opaque {
		version := is.GetResourceVersion()
		return version != "" && version == was.GetResourceVersion()
	}
	return OnlyStatusDiffers(was, is) && (!definesType(k) || was.GetGeneration() == is.GetGeneration())
}
