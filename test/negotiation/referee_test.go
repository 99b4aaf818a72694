package negotiation

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

type props = apiextensionsv1.JSONSchemaProps

// An apiServer does with objects of one schema what a real one does when they
// are created, with upstream's own code.
type apiServer struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
}

// newAPIServer takes a schema as a real one takes a CRD.
func newAPIServer(p *props) (*apiServer, error) {
	in, err := internal(p)
	if err != nil {
		return nil, err
	}
	s, err := structural.NewStructural(in)
	if err != nil {
		return nil, err
	}
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(in)
	if err != nil {
		return nil, err
	}
	return &apiServer{s, validator, cel.NewValidator(s, true, celconfig.PerCallLimit)}, nil
}

func internal(p *props) (*apiextensions.JSONSchemaProps, error) {
	in := &apiextensions.JSONSchemaProps{}
	return in, apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(p.DeepCopy(), in, nil)
}

// refuses tells why a real API server refuses a CRD with this schema.
func refuses(p *props) error {
	in, err := internal(p)
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
		return fmt.Errorf("the API server refuses the CRD: %w", errs.ToAggregate())
	}
	return nil
}

// admit gives what is stored of an object, and which of its fields are not;
// or why it is refused.
func (s *apiServer) admit(object map[string]any) (stored map[string]any, lost []string, refused error) {
	stored = runtime.DeepCopyJSON(object)
	lost = pruning.PruneWithOptions(stored, s.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	before := runtime.DeepCopyJSON(stored)
	defaulting.PruneNonNullableNullsWithoutDefaults(stored, s.structural)
	if !reflect.DeepEqual(before, stored) {
		lost = append(lost, "a null")
	}
	if err := objectmeta.Coerce(nil, stored, s.structural, false, false); err != nil {
		return nil, lost, err
	}
	defaulting.Default(stored, s.structural)

	errs := validation.ValidateCustomResource(nil, stored, s.validator)
	errs = append(errs, objectmeta.Validate(nil, stored, s.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, stored)...)
	if len(errs) == 0 && s.rules != nil {
		ruleErrs, _ := s.rules.Validate(context.Background(), nil, s.structural, stored, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, ruleErrs...)
	}
	if len(errs) > 0 {
		return nil, lost, errs.ToAggregate()
	}
	return stored, lost, nil
}

// takes tells what goes wrong when a member with this schema is sent what the
// control plane has stored: nothing, if the negotiation is sound. The member
// may fill in fields that the control plane does not know, and nothing else.
func (s *apiServer) takes(stored map[string]any, controlPlane *apiServer) error {
	here, lost, refused := s.admit(stored)
	switch {
	case refused != nil:
		return fmt.Errorf("is refused: %w", refused)
	case len(lost) > 0:
		return fmt.Errorf("loses %v", lost)
	}
	pruning.Prune(here, controlPlane.structural, true)
	if !reflect.DeepEqual(here, stored) {
		return fmt.Errorf("is changed into %v", here)
	}
	return nil
}
