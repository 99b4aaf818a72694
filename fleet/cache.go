package fleet

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// Names of the caches' indexes.
const (
	byCluster = "cluster"
	byKind    = "kind"
)

// CacheKey returns the key of an object in a cache: its name, or namespace/name if it is
// namespaced.
func CacheKey(name types.NamespacedName) string {
	if name.Namespace == "" {
		return name.Name
	}
	return name.String()
}

func informer(dyn dynamic.Interface, gvr schema.GroupVersionResource, indexers cache.Indexers, transform cache.TransformFunc) cache.SharedIndexInformer {
	if indexers == nil {
		indexers = cache.Indexers{}
	}
	indexers[cache.NamespaceIndex] = cache.MetaNamespaceIndexFunc
	return transformed(dynamicinformer.NewFilteredDynamicInformer(dyn, gvr, metav1.NamespaceAll, 0, indexers, nil).Informer(), transform)
}

func transformed(i cache.SharedIndexInformer, transform cache.TransformFunc) cache.SharedIndexInformer {
	// SetTransform fails only on a running informer, and this one is not running.
	if err := i.SetTransform(transform); err != nil {
		panic(err)
	}
	return i
}

// objectInformer watches a kind. It watches only the metadata of an opaque kind, because a control
// plane may hold many such objects that no cluster ever gets.
func objectInformer(dyn dynamic.Interface, meta metadata.Interface, k interpret.KindInfo) cache.SharedIndexInformer {
	if definesType(k) {
		return informer(dyn, k.GVR(), nil, Pack(trimSchemas))
	}
	if !k.Opaque || meta == nil {
		return informer(dyn, k.GVR(), nil, Pack(trimManagedFields))
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return transformed(metadatainformer.NewFilteredMetadataInformer(meta, k.GVR(), metav1.NamespaceAll, 0, indexers, nil).Informer(), slimMetadata(k))
}

// slimMetadata returns a transform that drops managed fields and sets the object's own kind. The
// API server calls every kind PartialObjectMetadata here.
func slimMetadata(k interpret.KindInfo) cache.TransformFunc {
	var is metav1.TypeMeta
	is.APIVersion, is.Kind = k.ToAPIVersionAndKind()
	return func(obj any) (any, error) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.TypeMeta, m.ManagedFields = is, nil
		}
		return obj, nil
	}
}

// DecodeAs makes an informer hold values of type T instead of maps. They take less memory and need
// no decoding when read. An object that cannot be decoded is kept as it is and so is never found by
// get. The controllers then do nothing about it.
func DecodeAs[T any](obj any) (any, error) {
	is, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	u := shallow(is)
	u.SetManagedFields(nil)
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return obj, nil
	}
	return out, nil
}

func trimManagedFields(u *unstructured.Unstructured) { u.SetManagedFields(nil) }

// definesType reports whether the objects of a kind are types (CRDs). Most of a CRD is its schema,
// which no controller reads here, so the cache drops it.
func definesType(k interpret.KindInfo) bool {
	return k.GVR().GroupResource() == crdResource().GroupResource()
}

func trimSchemas(u *unstructured.Unstructured) {
	u.SetManagedFields(nil)
	spec, ok := u.Object["spec"].(map[string]any)
	if !ok {
		return
	}
	versions, _ := spec["versions"].([]any)
	trimmed := make([]any, 0, len(versions))
	for _, v := range versions {
		version, _ := v.(map[string]any)
		version = maps.Clone(version)
		delete(version, "schema")
		trimmed = append(trimmed, version)
	}
	spec = maps.Clone(spec)
	spec["versions"] = trimmed
	u.Object["spec"] = spec
}

// partial reports whether the cache holds only a part of each object of a kind.
func partial(k interpret.KindInfo) bool { return k.Opaque || definesType(k) }

func clustersOf(obj any) ([]string, error) {
	b, ok := obj.(*v1alpha1.ResourceBinding)
	if !ok {
		return nil, nil
	}
	names := make([]string, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		names = append(names, c.Name)
	}
	for _, c := range b.Status.Clusters {
		if _, chosen := b.Share(c.Name); !chosen {
			names = append(names, c.Name)
		}
	}
	return names, nil
}

// kindOf returns the kind of a binding's object.
func kindOf(obj any) ([]string, error) {
	if b, ok := obj.(*v1alpha1.ResourceBinding); ok {
		return []string{b.Spec.Resource.GroupVersionKind().GroupKind().String()}, nil
	}
	return nil, nil
}

func get[T any](i cache.SharedIndexInformer, key string) (*T, bool) {
	obj, found, err := i.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil, false
	}
	out, ok := obj.(*T)
	return out, ok
}

func list[T any](items []any) []*T {
	out := make([]*T, 0, len(items))
	for _, item := range items {
		if t, ok := item.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}
