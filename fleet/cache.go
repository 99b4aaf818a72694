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

// Indices of the caches.
const (
	byCluster = "cluster"
	byKind    = "kind"
)

// CacheKey gives the key of an object in a cache: its name, after its namespace if
// it has one.
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
	// It fails only on a running informer, which this one is not.
	if err := i.SetTransform(transform); err != nil {
		panic(err)
	}
	return i
}

// objectInformer watches a known kind: of an opaque one only the metadata, since
// a control plane may hold many such objects that no cluster ever gets.
func objectInformer(dyn dynamic.Interface, meta metadata.Interface, k interpret.Kind) cache.SharedIndexInformer {
	if definesType(k) {
		return informer(dyn, k.GVR(), nil, Pack(trimSchemas))
	}
	if !k.Opaque || meta == nil {
		return informer(dyn, k.GVR(), nil, Pack(trimManagedFields))
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return transformed(metadatainformer.NewFilteredMetadataInformer(meta, k.GVR(), metav1.NamespaceAll, 0, indexers, nil).Informer(), slimMetadata(k))
}

// slimMetadata makes an informer hold of metadata what is needed, under the name
// of the kind that it belongs to: the API server calls all of it
// PartialObjectMetadata.
func slimMetadata(k interpret.Kind) cache.TransformFunc {
	var is metav1.TypeMeta
	is.APIVersion, is.Kind = k.ToAPIVersionAndKind()
	return func(obj any) (any, error) {
		if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
			m.TypeMeta, m.ManagedFields = is, nil
		}
		return obj, nil
	}
}

// Into makes an informer hold T instead of maps: smaller, and read without
// decoding. What cannot be read is left as it is and so never found by Get, which
// the controllers take for "do nothing".
func Into[T any](obj any) (any, error) {
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

// definesType tells whether objects of a kind are types. Their schemas are most of
// them, and nobody asks for one here: the cache leaves them out.
func definesType(k interpret.Kind) bool {
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

// partial tells whether the cache holds objects of a kind in part only.
func partial(k interpret.Kind) bool { return k.Opaque || definesType(k) }

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

// kindOf gives the kind that a binding is about.
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
