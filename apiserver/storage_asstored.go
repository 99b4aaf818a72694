package apiserver

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// readAsStored tells which custom resources are read as they are stored. Upstream coerces
// what it reads of one to its schema, the metadata twice, with all managed fields as
// maps: for a binding that takes three times as long as reading it. A server that starts
// reads all bindings, and there may be a hundred thousand, each with the managed fields
// of four controllers.
//
// What it is for is what older schemas have let through, and defaults. Only the fleet
// writes bindings, their schema has no defaults, and what is written is still coerced.
func readAsStored(resource schema.GroupResource) bool {
	return resource == v1alpha1.ResourceBindingResource.GroupResource() || resource == v1alpha1.ClusterResourceBindingResource.GroupResource()
}

// asStored is a codec that reads objects of one version and kind as they are stored, and
// leaves all others to upstream's, which converts.
type asStored struct {
	runtime.Codec
	apiVersion, kind string
}

func newAsStored(codec runtime.Codec, example runtime.Object) asStored {
	apiVersion, kind := example.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return asStored{codec, apiVersion, kind}
}

// Decode implements runtime.Decoder.
func (c asStored) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	u, plain := into.(*unstructured.Unstructured)
	if into == nil {
		u, plain = &unstructured.Unstructured{}, true
	}
	if plain {
		read := unstructured.Unstructured{}
		if err := json.Unmarshal(data, &read.Object); err == nil && read.GetKind() == c.kind && read.GetAPIVersion() == c.apiVersion && c.kind != "" {
			u.Object = read.Object
			is := u.GroupVersionKind()
			return u, &is, nil
		}
	}
	return c.Codec.Decode(data, defaults, into)
}
