package fleet

import (
	"bytes"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

func isNotServed(err error) bool { return apierrors.IsNotFound(err) }

// OnCluster calls f for each Cluster: when it is added or exists already (was is nil), changed
// (both are set) or deleted (is is nil). Calls are sequential.
func (s *Session) OnCluster(f func(was, is *v1alpha1.Cluster)) error {
	return AddHandler(s.clusters, f)
}

// OnBinding does the same for bindings. Calls are sequential for the bindings of namespaced
// objects, and for those of cluster-scoped objects.
func (s *Session) OnBinding(f func(was, is *v1alpha1.ResourceBinding)) error {
	for _, i := range s.bindings.all() {
		if err := AddHandler(i, f); err != nil {
			return err
		}
	}
	return nil
}

// AddHandler calls f for each object of type T in an informer: when it is added (was is the zero
// value), changed, or deleted (is is the zero value). Objects of other types are skipped. Calls are
// sequential.
func AddHandler[T any](i cache.SharedIndexInformer, f func(was, is T)) error {
	var none T
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if is, ok := obj.(T); ok {
				f(none, is)
			}
		},
		UpdateFunc: func(before, after any) {
			is, ok := after.(T)
			if !ok {
				return
			}
			was, _ := before.(T)
			f(was, is)
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if was, ok := obj.(T); ok {
				f(was, none)
			}
		},
	})
	return err
}

type subscription struct {
	notify func(types.NamespacedName)
}

// Subscribe calls notify with the key of each binding that concerns a cluster: now, and whenever
// the binding or its object changes. When a namespace of such a binding changes, or any namespace
// is deleted, it calls notify with the namespace and no name. notify must not block. One cache
// serves all clusters, and each is notified only of its own bindings.
func (s *Session) Subscribe(cluster string, notify func(types.NamespacedName)) (cancel func()) {
	sub := &subscription{notify: notify}
	s.mu.Lock()
	if s.subscribers[cluster] == nil {
		s.subscribers[cluster] = map[*subscription]bool{}
	}
	s.subscribers[cluster][sub] = true
	s.mu.Unlock()
	for _, b := range s.BindingsOn(cluster) {
		notify(b.Key())
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers[cluster], sub)
		if len(s.subscribers[cluster]) == 0 {
			delete(s.subscribers, cluster)
		}
	}
}

func (s *Session) publish(key types.NamespacedName, clusters ...string) {
	s.mu.Lock()
	var notify []func(types.NamespacedName)
	for _, c := range clusters {
		for sub := range s.subscribers[c] {
			notify = append(notify, sub.notify)
		}
	}
	s.mu.Unlock()
	for _, n := range notify {
		n(key)
	}
}

func (s *Session) publishToAll(key types.NamespacedName) {
	s.mu.Lock()
	clusters := slices.Collect(maps.Keys(s.subscribers))
	s.mu.Unlock()
	s.publish(key, clusters...)
}

// fanOut adds the event handlers that notify the subscribers.
func (s *Session) fanOut() error {
	if err := s.OnBinding(s.fanOutBinding); err != nil {
		return err
	}
	if err := s.OnObjects(s.fanOutObject); err != nil {
		return err
	}
	if err := AddHandler(s.namespaces, s.fanOutNamespace); err != nil {
		return err
	}
	s.OnKind(s.fanOutKind)
	if err := s.OnCluster(func(was, is *v1alpha1.Cluster) {
		if is == nil {
			s.accesses.delete(was.Name)
		}
	}); err != nil {
		return err
	}
	// The set of kinds and their interpretation depend on these.
	if err := AddHandler(s.types.crds, s.types.recordDeletion); err != nil {
		return err
	}
	for _, i := range []cache.SharedIndexInformer{s.types.negotiated, s.types.interpretations} {
		if err := AddHandler(i, func(_, _ metav1.Object) { s.types.wake() }); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) fanOutBinding(was, is *v1alpha1.ResourceBinding) {
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
	if is == nil {
		// Clusters may no longer accept the kind; without a last binding it is no longer served.
		if e, ok := s.kinds.get(was.Spec.Resource.GroupVersionKind().GroupKind()); ok && e.custom {
			s.types.wake()
		}
	}
}

// fanOutKind notifies the clusters of all objects of a kind when its interpretation changes: the
// content to apply and the health may differ.
func (s *Session) fanOutKind(k interpret.KindInfo) {
	for _, b := range s.BindingsOf(k.GroupKind()) {
		names, _ := clustersOf(b)
		s.publish(b.Key(), names...)
	}
}

// fanOutObject notifies an object's clusters when something changed that they should apply. A
// change of only the status is skipped: they reported it themselves.
func (s *Session) fanOutObject(k interpret.KindInfo, was, is metav1.Object) {
	obj := is
	if is == nil {
		obj = was
	} else if was != nil && was.GetUID() == is.GetUID() && sameForClusters(k, was, is) {
		return
	}
	key := types.NamespacedName{Namespace: obj.GetNamespace(), Name: v1alpha1.BindingName(k.GroupKind(), obj.GetName())}
	if b, ok := s.Binding(key); ok {
		names, _ := clustersOf(b)
		s.publish(key, names...)
	}
}

// fanOutNamespace notifies the clusters that have objects of a namespace when its labels or
// annotations change. It notifies all clusters when the namespace is deleted: one without objects
// of it may still have it.
func (s *Session) fanOutNamespace(was, is metav1.Object) {
	if is == nil {
		s.publishToAll(types.NamespacedName{Namespace: was.GetName()})
		return
	}
	if is.GetDeletionTimestamp() != nil && (was == nil || was.GetDeletionTimestamp() == nil) {
		s.publishToAll(types.NamespacedName{Namespace: is.GetName()})
		return
	}
	if was != nil && sameMetadata(was, is) {
		return
	}
	var clusters []string
	for _, b := range s.BindingsIn(is.GetName()) {
		names, _ := clustersOf(b)
		clusters = append(clusters, names...)
	}
	slices.Sort(clusters)
	s.publish(types.NamespacedName{Namespace: is.GetName()}, slices.Compact(clusters)...)
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

// OnlyStatusDiffers reports whether two states of an object, as OnObject passes them, differ at
// most in their status. It compares only what the cache holds.
func OnlyStatusDiffers(was, is metav1.Object) bool {
	if !sameMetadata(was, is) {
		return false
	}
	switch before := was.(type) {
	case *packed:
		after, ok := is.(*packed)
		return ok && bytes.Equal(before.others, after.others)
	case *metav1.PartialObjectMetadata:
		return true
	}
	return false // unknown types: assume a difference
}

func sameMetadata(a, b metav1.Object) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) &&
		equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}
