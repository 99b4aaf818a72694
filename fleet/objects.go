package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Objects are the objects of all kinds that are served, from the caches of Kinds, and from the API
// what those do not hold.
type Objects struct {
	kinds   *Kinds
	types   *Types
	dynamic dynamic.Interface
}

// OnChange calls f for each object of a kind: when it is added (was is nil), changed (both are set)
// or deleted (is is nil), even if the kind itself is added later. Calls are sequential. f gets only
// the metadata, which is enough for most events. Get returns the rest.
func (o *Objects) OnChange(gk schema.GroupKind, f func(was, is metav1.Object)) error {
	return o.kinds.addHandler(objectHandler{only: &gk, handle: func(_ interpret.KindInfo, was, is metav1.Object) { f(was, is) }})
}

// OnAnyChange does the same for all kinds, present and future. Calls for one kind are sequential.
func (o *Objects) OnAnyChange(f func(k interpret.KindInfo, was, is metav1.Object)) error {
	return o.kinds.addHandler(objectHandler{handle: f})
}

// Get returns an object of a served kind from the cache. The caller owns it. For an opaque kind
// it has only the metadata, and for a CRD no schema; Complete returns the rest.
func (o *Objects) Get(gk schema.GroupKind, key types.NamespacedName) (*unstructured.Unstructured, bool) {
	e, served := o.kinds.entry(gk)
	if !served {
		return nil, false
	}
	item, found, err := e.informer.GetStore().GetByKey(controllers.CacheKey(key))
	if err != nil || !found {
		return nil, false
	}
	return Unpack(item)
}

// Metadata returns only the metadata of an object, without decoding the rest. It must not be
// changed.
func (o *Objects) Metadata(gk schema.GroupKind, key types.NamespacedName) (metav1.Object, bool) {
	e, served := o.kinds.entry(gk)
	if !served {
		return nil, false
	}
	item, found, err := e.informer.GetStore().GetByKey(controllers.CacheKey(key))
	if err != nil || !found {
		return nil, false
	}
	head, ok := item.(metav1.Object)
	return head, ok
}

// Complete returns the complete object for one that Get returned, in the same or a newer
// version. It returns false if the object is gone or was replaced; an event will follow.
func (o *Objects) Complete(ctx context.Context, k interpret.KindInfo, obj *unstructured.Unstructured) (*unstructured.Unstructured, bool, error) {
	if !partial(k) {
		return obj, true, nil
	}
	whole, err := o.dynamic.Resource(k.GVR()).Namespace(obj.GetNamespace()).Get(ctx, obj.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	case whole.GetUID() != obj.GetUID():
		return nil, false, nil
	}
	whole.SetManagedFields(nil)
	return whole, true, nil
}

// All iterates over the objects of a served kind in a namespace, or in all namespaces with "".
// It decodes one at a time, so that memory never holds all of them.
func (o *Objects) All(gk schema.GroupKind, namespace string) iter.Seq[*unstructured.Unstructured] {
	return func(yield func(*unstructured.Unstructured) bool) {
		for _, item := range o.items(gk, namespace) {
			if obj, ok := Unpack(item); ok && !yield(obj) {
				return
			}
		}
	}
}

// AllMetadata iterates over only the metadata of the same objects. It must not be changed.
func (o *Objects) AllMetadata(gk schema.GroupKind, namespace string) iter.Seq[metav1.Object] {
	return func(yield func(metav1.Object) bool) {
		for _, item := range o.items(gk, namespace) {
			if obj, ok := item.(metav1.Object); ok && !yield(obj) {
				return
			}
		}
	}
}

func (o *Objects) items(gk schema.GroupKind, namespace string) []any {
	e, served := o.kinds.entry(gk)
	if !served {
		return nil
	}
	if namespace == "" {
		return e.informer.GetStore().List()
	}
	items, err := e.informer.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil // the index exists: objectInformer made it
	}
	return items
}

// errNotServed is returned when it cannot be determined now whether an object exists.
var errNotServed = errors.New("the control plane does not serve its type at the moment")

// Live reads an object from the control plane, not from the cache. It returns nil if the object is
// gone: it does not exist, or its type is gone, with which the API server deletes all its objects.
// If the type exists and is merely not served, as happens while a server starts, Live returns an
// error.
func (o *Objects) Live(ctx context.Context, k interpret.KindInfo, key types.NamespacedName) (*unstructured.Unstructured, error) {
	obj, err := o.dynamic.Resource(k.GVR()).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return obj, nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, controllers.CacheKey(key), err)
	case !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	}
	gone, err := o.types.Gone(ctx, k)
	if err != nil {
		return nil, err
	}
	if !gone {
		return nil, fmt.Errorf("read %s %s: %w", k.Kind, controllers.CacheKey(key), errNotServed)
	}
	return nil, nil
}

// OnlyStatusDiffers reports whether two states of an object, as OnChange passes them, differ at
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
		a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp()) && equality.Semantic.DeepEqual(a.GetManagedFields(), b.GetManagedFields()) &&
		equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences())
}
