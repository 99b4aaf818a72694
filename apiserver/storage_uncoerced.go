package apiserver

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// skipsCoercion reports whether a custom resource is read without coercing it to its
// schema. Upstream coerces each object on read, its metadata twice, with all managed
// fields as maps. For a binding that takes three times as long as reading it. A
// starting server reads all bindings: there may be a hundred thousand, each with the
// managed fields of four controllers.
//
// Coercion on read handles defaults and fields that older schemas have let through.
// Only the fleet writes bindings, their schema has no defaults, and writes are still
// coerced.
func skipsCoercion(resource schema.GroupResource) bool {
	return resource == v1alpha1.ResourceBindingResource.GroupResource() || resource == v1alpha1.ClusterResourceBindingResource.GroupResource()
}

// uncoercedCodec decodes objects of one version and kind without coercing them, and
// passes all others to upstream's codec, which converts.
type uncoercedCodec struct {
	runtime.Codec
	apiVersion, kind string
}

func newUncoercedCodec(codec runtime.Codec, example runtime.Object) uncoercedCodec {
	apiVersion, kind := example.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return uncoercedCodec{codec, apiVersion, kind}
}

// Decode implements runtime.Decoder.
func (c uncoercedCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
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
