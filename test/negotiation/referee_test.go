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

// An apiServer does with objects of one schema what a real one does when they
// are created, with upstream's own code.
type apiServer struct {
	structural *structural.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
	// transitions: a rule looks at what an object was before.
	transitions bool
}

// newAPIServer takes a schema as a real one takes a CRD.
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

// admit gives what is stored of an object, and which of its fields are not;
// or why it is refused. What was stored before is nil where it is created. The
// leniency of updates towards what was invalid before is left out: what is
// stored here is valid.
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

// old is what rules see of an object that was not there: no value, rather than
// an empty one.
func old(before map[string]any) any {
	if before == nil {
		return nil
	}
	return before
}

// takes tells what goes wrong when a member with this schema is sent what the
// control plane has stored: nothing, if the negotiation is sound. The member
// may fill in fields that the control plane does not know, and nothing else.
func (s *apiServer) takes(stored, before map[string]any, controlPlane *apiServer) error {
	if before != nil {
		// What it has is what it made of that.
		var err error
		if before, _, err = s.admit(before, nil); err != nil {
			return fmt.Errorf("is refused at first: %w", err)
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
		return fmt.Errorf("is changed into %v", here)
	}
	return nil
}
