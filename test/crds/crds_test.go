// Package crds validates the CustomResourceDefinitions of api/ as an API server does,
// without starting one.
package crds

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"

	fleet "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	infra "github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// An API server accepts all types: their schemas are structural, and their CEL rules
// compile and stay within the cost limit.
func TestTypesAreValid(t *testing.T) {
	for group, read := range map[string]func() ([][]byte, error){fleet.Group: fleet.CRDs, infra.Group: infra.CRDs} {
		all, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 0 {
			t.Errorf("%s has no types", group)
		}
		for _, raw := range all {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := yaml.UnmarshalStrict(raw, crd); err != nil {
				t.Fatal(err)
			}
			apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
			apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
			crd.Status.StoredVersions = []string{crd.Spec.Versions[0].Name}
			internal := &apiextensions.CustomResourceDefinition{}
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
				t.Fatal(err)
			}
			if errs := validation.ValidateCustomResourceDefinition(t.Context(), internal); len(errs) > 0 {
				t.Errorf("%s: %v", crd.Name, errs.ToAggregate())
			}
		}
	}
}
