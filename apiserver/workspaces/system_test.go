package workspaces

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// TestDecodeDefinition: a definition that upstream has stored in its own encoding, such as after a change of its status, is the same one, so that
// the next server does not write it again.
func TestDecodeDefinition(t *testing.T) {
	manifests, err := tenancyv1alpha1.WorkspaceCRDs()
	if err != nil {
		t.Fatal(err)
	}
	codec := apiextensionsapiserver.Codecs.LegacyCodec(apiextensionsv1beta1.SchemeGroupVersion, apiextensionsv1.SchemeGroupVersion)
	for _, manifest := range manifests {
		crd, err := parseDefinition(manifest, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		stored, err := runtime.Encode(codec, crd)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := decodeDefinition(stored)
		if err != nil {
			t.Fatalf("%s: %v", crd.Name, err)
		}
		if !equality.Semantic.DeepEqual(decoded.Spec, crd.Spec) {
			t.Errorf("%s is another one after it was stored", crd.Name)
		}
	}
}
