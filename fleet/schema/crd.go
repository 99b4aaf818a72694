package schema

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FromCRD returns one Type for each served version of a CRD, in the CRD's order.
func FromCRD(crd *apiextensionsv1.CustomResourceDefinition) []Type {
	names := crd.Status.AcceptedNames
	if names.Plural == "" {
		names = crd.Spec.Names // not accepted yet
	}
	var types []Type
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		t := Type{
			Group: crd.Spec.Group, Version: v.Name, Kind: names.Kind, Plural: names.Plural, Singular: names.Singular,
			ListKind: names.ListKind, ShortNames: names.ShortNames, Categories: names.Categories, Scope: crd.Spec.Scope,
			Columns: v.AdditionalPrinterColumns,
		}
		// Without pruning, the schema's statements about unknown fields do not apply.
		if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil && !crd.Spec.PreserveUnknownFields {
			t.Schema = v.Schema.OpenAPIV3Schema.DeepCopy()
		}
		if v.Subresources != nil {
			t.Status = v.Subresources.Status != nil
			t.Scale = v.Subresources.Scale.DeepCopy()
		}
		types = append(types, t)
	}
	return types
}

// CRD returns the definition that serves the given versions of one type. The first is the storage
// version. Nothing converts between the versions, so they must have the same schema: otherwise
// reading an object in another version would lose fields.
func CRD(types []Type) (*apiextensionsv1.CustomResourceDefinition, error) {
	if len(types) == 0 {
		return nil, fmt.Errorf("build a CRD: no version to serve")
	}
	first := types[0]
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: first.Plural + "." + first.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: first.Group,
			Scope: first.Scope,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: first.Plural, Singular: first.Singular, Kind: first.Kind, ListKind: first.ListKind,
				ShortNames: first.ShortNames, Categories: first.Categories,
			},
		},
	}
	for i, t := range types {
		if t.Group != first.Group || t.Plural != first.Plural || t.Kind != first.Kind || t.Scope != first.Scope {
			return nil, fmt.Errorf("build a CRD: %s and %s are not versions of one type", first, t)
		}
		if t.Schema == nil {
			return nil, fmt.Errorf("build a CRD: %s has no schema", t)
		}
		if !sameConstraints(first.Schema, t.Schema) {
			return nil, fmt.Errorf("build a CRD: %s and %s have different schemas and no conversion; publish only one of them", first, t)
		}
		crd.Spec.Versions = append(crd.Spec.Versions, t.version(i == 0))
	}
	return crd, nil
}

func (t Type) version(storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
	v := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: t.Version, Served: true, Storage: storage,
		Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: t.Schema.DeepCopy()},
		AdditionalPrinterColumns: t.Columns,
	}
	if t.Status || t.Scale != nil {
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{Scale: t.Scale.DeepCopy()}
		if t.Status {
			v.Subresources.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
		}
	}
	return v
}

// sameConstraints reports whether two schemas accept the same values.
func sameConstraints(a, b *Props) bool {
	if equal(a, b) {
		return true
	}
	_, there := Compare(a, b, false)
	_, back := Compare(b, a, false)
	return len(there) == 0 && len(back) == 0
}
