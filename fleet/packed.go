package fleet

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/tools/cache"
)

// packed is an object in a cache: its metadata, and all else as JSON, which takes a
// fraction of what maps do. Of a hundred thousand objects few are looked at in any
// second; most events need no more than the metadata.
type packed struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	status, others []byte // maps write their keys in order: what is equal reads the same
}

// Pack gives what makes an informer hold objects small. trim takes off first what nobody
// asks for; of what it gets, the object itself and its metadata are its own. What cannot
// be written as JSON is left as it is.
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

// shallow gives an object whose fields, and those of its metadata, can be taken off
// without anybody else seeing it who has the object, too.
func shallow(u *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: maps.Clone(u.Object)}
	if metadata, ok := out.Object["metadata"].(map[string]any); ok {
		out.Object["metadata"] = maps.Clone(metadata)
	}
	return out
}

// Unpack gives what an informer holds as the object, which belongs to the caller. What
// cannot be read is never found.
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

// describe says in an object what it is.
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
