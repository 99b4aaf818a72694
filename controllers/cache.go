package controllers

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Cache holds the objects of one resource in memory, as values of type T. They must not be changed.
// Its Informer fills it; until that has synced, objects seem to be missing.
type Cache[T any] struct {
	Informer cache.SharedIndexInformer
}

// CacheOptions say which objects a Cache holds, and how.
type CacheOptions struct {
	// Indexers that By uses. The index by namespace always exists.
	Indexers cache.Indexers
	// Transform makes a *T of each object. It defaults to Decode.
	Transform cache.TransformFunc
	// Namespace of the objects. Empty means all.
	Namespace string
	// Select, if set, restricts the objects.
	Select func(*metav1.ListOptions)
}

// NewCache returns an empty cache of a resource.
func NewCache[T any](client dynamic.Interface, gvr schema.GroupVersionResource, o CacheOptions) Cache[T] {
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	maps.Copy(indexers, o.Indexers)
	transform := o.Transform
	if transform == nil {
		transform = Decode[T]
	}
	i := dynamicinformer.NewFilteredDynamicInformer(client, gvr, o.Namespace, 0, indexers, o.Select).Informer()
	return Cache[T]{Transformed(i, transform)}
}

// Transformed sets the transform of an informer that does not run yet.
func Transformed(i cache.SharedIndexInformer, transform cache.TransformFunc) cache.SharedIndexInformer {
	// SetTransform fails only on a running informer.
	if err := i.SetTransform(transform); err != nil {
		panic(err)
	}
	return i
}

// Decode makes an informer hold values of type T instead of maps. They take less memory and need no
// decoding when read. An object that cannot be decoded is kept as it is and so is never found in a
// Cache: controllers do nothing about it.
func Decode[T any](obj any) (any, error) {
	if _, done := obj.(*T); done {
		return obj, nil
	}
	is, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	// A copy: others may hold the object.
	fields := maps.Clone(is.Object)
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "managedFields")
		fields["metadata"] = metadata
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, out); err != nil {
		return obj, nil
	}
	return out, nil
}

// CacheKey returns the key of an object in a cache: its name, or namespace/name if it is
// namespaced.
func CacheKey(name types.NamespacedName) string {
	if name.Namespace == "" {
		return name.Name
	}
	return name.String()
}

// Get returns one object by its CacheKey.
func (c Cache[T]) Get(key string) (*T, bool) {
	obj, found, err := c.Informer.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil, false
	}
	out, ok := obj.(*T)
	return out, ok
}

// All returns all objects, in no particular order.
func (c Cache[T]) All() []*T { return only[T](c.Informer.GetStore().List()) }

// By returns the objects that an index has under a value.
func (c Cache[T]) By(index, value string) []*T {
	items, err := c.Informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil // there is no such index
	}
	return only[T](items)
}

// In returns the objects of a namespace.
func (c Cache[T]) In(namespace string) []*T { return c.By(cache.NamespaceIndex, namespace) }

// OnChange calls f for each object: when it is added or exists already (was is nil), changed (both
// are set) or deleted (is is nil). Calls are sequential.
func (c Cache[T]) OnChange(f func(was, is *T)) error { return OnChange(c.Informer, f) }

// AddOnChange is OnChange for a handler that is removed while the Informer runs. The registration
// has synced when f was called for the objects that exist already.
func (c Cache[T]) AddOnChange(f func(was, is *T)) (cache.ResourceEventHandlerRegistration, error) {
	return addOnChange(c.Informer, f)
}

// OnChange calls f for each object of type T in an informer: when it is added (was is the zero
// value), changed, or deleted (is is the zero value). Objects of other types are skipped. Calls are
// sequential.
func OnChange[T any](i cache.SharedIndexInformer, f func(was, is T)) error {
	_, err := addOnChange(i, f)
	return err
}

func addOnChange[T any](i cache.SharedIndexInformer, f func(was, is T)) (cache.ResourceEventHandlerRegistration, error) {
	var none T
	return i.AddEventHandler(cache.ResourceEventHandlerFuncs{
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
}

func only[T any](items []any) []*T {
	out := make([]*T, 0, len(items))
	for _, item := range items {
		if t, ok := item.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}
