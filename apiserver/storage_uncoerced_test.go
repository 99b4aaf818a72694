package apiserver

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errUpstream = errors.New("upstream's codec was called")

// upstreams replaces the codec that coerces and converts.
type fakeUpstreamCodec struct{ runtime.Codec }

func (fakeUpstreamCodec) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errUpstream
}

// TestUncoercedCodec: an object of the requested version and kind is decoded without
// coercion; all others go to upstream's codec.
func TestUncoercedCodec(t *testing.T) {
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(schema.GroupVersionKind{Group: "fleet.atoll.dev", Version: "v1alpha1", Kind: "ResourceBinding"})
	codec := newUncoercedCodec(fakeUpstreamCodec{}, example)
	const stored = `{"apiVersion":"fleet.atoll.dev/v1alpha1","kind":"ResourceBinding","metadata":{"name":"a","generation":3,"managedFields":[{"manager":"m"}]},"spec":{"n":1}}`
	for _, into := range []runtime.Object{nil, &unstructured.Unstructured{Object: map[string]any{"kind": "before"}}} {
		obj, gvk, err := codec.Decode([]byte(stored), nil, into)
		if err != nil {
			t.Fatal(err)
		}
		u, ok := obj.(*unstructured.Unstructured)
		if !ok || into != nil && obj != into {
			t.Fatalf("decoded into %T: %v", obj, obj)
		}
		if n, _, err := unstructured.NestedInt64(u.Object, "spec", "n"); n != 1 || err != nil || u.GetGeneration() != 3 || len(u.GetManagedFields()) != 1 || *gvk != example.GroupVersionKind() {
			t.Errorf("decoded %v (%v, %v)", u, gvk, err)
		}
	}
	for _, other := range []string{
		`{"apiVersion":"fleet.atoll.dev/v1beta1","kind":"ResourceBinding","metadata":{"name":"a"}}`,
		`{"apiVersion":"fleet.atoll.dev/v1alpha1","kind":"Cluster","metadata":{"name":"a"}}`,
		`{"metadata":{"name":"a"}}`, `not JSON`,
	} {
		if _, _, err := codec.Decode([]byte(other), nil, nil); !errors.Is(err, errUpstream) {
			t.Errorf("%s did not go to upstream's codec: %v", other, err)
		}
	}
}
