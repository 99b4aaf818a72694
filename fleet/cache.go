package fleet

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// objectInformer watches a kind. It watches only the metadata of an opaque kind, because a control
// plane may hold many such objects that no cluster ever gets.
func objectInformer(dyn dynamic.Interface, meta metadata.Interface, k interpret.KindInfo) cache.SharedIndexInformer {
	if definesType(k) {
		return packedInformer(dyn, k, trimSchemas)
	}
	if !Native(k.GroupKind()) {
		return packedInformer(dyn, k, TrimToStatusManagers)
	}
	if !k.Opaque || meta == nil {
		return packedInformer(dyn, k, trimManagedFields)
	}
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	return controllers.Transformed(metadatainformer.NewFilteredMetadataInformer(meta, k.GVR(), metav1.NamespaceAll, 0, indexers, nil).Informer(), slimMetadata(k))
}

func packedInformer(dyn dynamic.Interface, k interpret.KindInfo, trim func(*unstructured.Unstructured)) cache.SharedIndexInformer {
	return controllers.NewCache[packed](dyn, k.GVR(), controllers.CacheOptions{Transform: Pack(trim)}).Informer
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

func trimManagedFields(u *unstructured.Unstructured) { u.SetManagedFields(nil) }

// StatusManager is the field manager that writes the status of placed objects.
const StatusManager = "atoll-status"

// TrimToStatusManagers removes the managed fields of a custom resource, except who else writes its status:
// see interpret.StatusKeeper.
func TrimToStatusManagers(u *unstructured.Unstructured) {
	interpret.TrimToStatusManagers(u, StatusManager)
}

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
