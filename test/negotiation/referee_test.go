package negotiation

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/atoll-dev/atoll/test/pairs"
)

type props = pairs.Props

// An apiServer creates and updates objects of one schema like a real API server, with upstream's code.
type apiServer struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
	// transitions: a rule reads oldSelf.
	transitions bool
}

// newAPIServer accepts a schema like an API server accepts a CRD.
func newAPIServer(p *props) (*apiServer, error) {
	in, err := pairs.Internal(p)
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
	return &apiServer{s, validator, cel.NewValidator(s, true, celconfig.PerCallLimit), strings.Contains(text(p), "oldSelf")}, nil
}

// admit returns the stored form of an object and the fields that are dropped, or an error if it is
// refused. before is nil for a create. Ratcheting, by which an update may keep an invalid value, is
// left out: all objects stored here are valid.
func (s *apiServer) admit(object, before map[string]any) (stored map[string]any, lost []string, refused error) {
	stored = runtime.DeepCopyJSON(object)
	lost = pruning.PruneWithOptions(stored, s.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	pruned := runtime.DeepCopyJSON(stored)
	defaulting.PruneNonNullableNullsWithoutDefaults(stored, s.structural)
	if !reflect.DeepEqual(pruned, stored) {
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
		ruleErrs, _ := s.rules.Validate(context.Background(), nil, s.structural, stored, old(before), celconfig.RuntimeCELCostBudget)
		errs = append(errs, ruleErrs...)
	}
	if len(errs) > 0 {
		return nil, lost, errs.ToAggregate()
	}
	return stored, lost, nil
}

// old returns oldSelf of a create: no value, instead of an empty object.
func old(before map[string]any) any {
	if before == nil {
		return nil
	}
	return before
}

// checkStored sends an object that the control plane has stored to a member with this schema. It
// returns an error unless the negotiation is sound: the member must not refuse, drop or change
// anything, but may set fields that the control plane does not know.
func (s *apiServer) checkStored(stored, before map[string]any, controlPlane *apiServer) error {
	if before != nil {
		// The member stores its own form of the earlier object.
		var err error
		if before, _, err = s.admit(before, nil); err != nil {
			return fmt.Errorf("is refused on creation: %w", err)
		}
	}
	here, lost, refused := s.admit(stored, before)
	switch {
	case refused != nil:
		return fmt.Errorf("is refused: %w", refused)
	case len(lost) > 0:
		return fmt.Errorf("loses %v", lost)
	}
	pruning.Prune(here, controlPlane.structural, true)
	if !reflect.DeepEqual(here, stored) {
		return fmt.Errorf("is changed to %v", here)
	}
	return nil
}
