package fleet

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"
)

// packed is a cached object: its metadata, and the rest as JSON, which takes a fraction of the
// memory of maps. Of a hundred thousand objects, few are read in any second. Most events need only
// the metadata.
type packed struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	status, others []byte // maps are encoded with sorted keys: equal content has equal bytes
}

// Pack returns a transform that makes an informer hold objects in packed form. trim first removes
// the fields that no controller reads. It may change the object and its metadata, but no nested
// values. An object that cannot be encoded as JSON is kept as it is.
func Pack(trim func(*unstructured.Unstructured)) cache.TransformFunc {
	return func(obj any) (any, error) {
		is, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return obj, nil
		}
		u := shallow(is)
		trim(u)
		p := &packed{TypeMeta: metav1.TypeMeta{APIVersion: u.GetAPIVersion(), Kind: u.GetKind()}}
		metadata, _ := u.Object["metadata"].(map[string]any)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(metadata, &p.ObjectMeta); err != nil {
			return obj, nil
		}
		var err error
		if status, has := u.Object["status"]; has {
			if p.status, err = json.Marshal(status); err != nil {
				return obj, nil
			}
		}
		for _, field := range []string{"apiVersion", "kind", "metadata", "status"} {
			delete(u.Object, field)
		}
		if p.others, err = json.Marshal(u.Object); err != nil {
			return obj, nil
		}
		return p, nil
	}
}

// shallow returns a copy whose top-level and metadata fields can be removed without affecting other
// holders of the object.
func shallow(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	if metadata, ok := out.Object["metadata"].(map[string]any); ok {
		out.Object["metadata"] = maps.Clone(metadata)
	}
	return out
}

// Unpack decodes what an informer holds. The caller owns the result. An object that cannot be
// decoded counts as not found.
func Unpack(item any) (*unstructured.Unstructured, bool) {
	switch held := item.(type) {
	case *unstructured.Unstructured:
		return held, true
	case *packed:
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(held.others, &u.Object); err != nil {
			return nil, false
		}
		if held.status != nil {
			var status any
			if err := json.Unmarshal(held.status, &status); err != nil {
				return nil, false
			}
			u.Object["status"] = status
		}
		return u, describe(u, held.TypeMeta, &held.ObjectMeta)
	case *metav1.PartialObjectMetadata:
		u := &unstructured.Unstructured{Object: map[string]any{}}
		return u, describe(u, held.TypeMeta, &held.ObjectMeta)
	}
	return nil, false
}

// describe sets the object's type and metadata.
func describe(u *unstructured.Unstructured, is metav1.TypeMeta, meta *metav1.ObjectMeta) bool {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(meta)
	if err != nil {
		return false
	}
	if meta.CreationTimestamp.IsZero() {
		delete(content, "creationTimestamp")
	}
	u.Object["metadata"] = content
	u.SetAPIVersion(is.APIVersion)
	u.SetKind(is.Kind)
	return true
}
