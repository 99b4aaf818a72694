package pairs

import (
	"context"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Internal converts a schema to the API server's internal type.
func Internal(p *Props) (*apiextensions.JSONSchemaProps, error) {
	in := &apiextensions.JSONSchemaProps{}
	return in, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(p.DeepCopy(), in, nil)
}

// Validate returns the error with which a real API server rejects a CRD with this schema,
// or nil.
func Validate(p *Props) error {
	in, err := Internal(p)
	if err != nil {
		return err
	}
	return validCRD(in)
}

func validCRD(in *apiextensions.JSONSchemaProps) error {
	pruneAll := false
	crd := &apiextensions.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.com"},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensions.NamespaceScoped, PreserveUnknownFields: &pruneAll,
			Names:      apiextensions.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList"},
			Versions:   []apiextensions.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
			Validation: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: in},
			Conversion: &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter},
		},
		Status: apiextensions.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}},
	}
	if errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), crd); len(errs) > 0 {
		return fmt.Errorf("the API server rejects the CRD: %w", errs.ToAggregate())
	}
	return nil
}
