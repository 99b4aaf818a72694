package planner

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/problems"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// addProblem records a problem.
func (r *run) addProblem(address, field, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, v1alpha1.Problem{Address: address, Field: field, Message: message})
}

// problem records a problem of a slot.
func (r *run) problem(s *slot, field, message string) { r.addProblem(r.name(s), field, message) }

// name returns KIND.GROUP/NAME of a slot.
func (r *run) name(s *slot) string {
	switch {
	case s.Object != nil && s.Object.Kind != "":
		return s.Object.Kind + "." + s.Object.Group + "/" + s.Ref.Name
	case s.State != nil && s.State.Spec.Object.Kind != "":
		return s.State.Spec.Object.Kind + "." + s.State.Spec.Object.Group + "/" + s.Ref.Name
	}
	return r.nameOf(s.Ref)
}

// nameOf returns KIND.GROUP/NAME of a resource that may not exist. If its type is not served, it
// returns the reference as in expressions.
func (r *run) nameOf(ref expr.Ref) string {
	kind, err := r.kind(ref)
	if err != nil {
		return ref.String()
	}
	return kind.Name.Kind + "." + kind.Group + "/" + ref.Name
}

// explain records why a decision failed, one problem per field. Providers can quote secrets in
// their messages; the mask removes them.
func (r *run) explain(s *slot, err error, mask schema.Mask) {
	var planError *decide.Error
	if !errors.As(err, &planError) {
		text := mask.Text(err.Error())
		if errors.Is(err, providerapi.ErrUnavailable) {
			text += "; plan again, and check the Provider's status if it fails again"
		}
		r.problem(s, "", text)
		return
	}
	remedy := ""
	if planError.Remedy != "" {
		remedy = "; " + planError.Remedy
	}
	reported := false
	for _, p := range planError.Problems {
		r.problem(s, "", fmt.Sprintf("%v: %s%s", planError.Kind, mask.Text(p.String()), remedy))
		reported = true
	}
	for _, d := range mask.Diagnostics(planError.Diagnostics) {
		if d.Warning {
			continue
		}
		text := problems.Text(d)
		if remedy != "" {
			text = strings.TrimRight(text, ".")
		}
		r.problem(s, problems.Field(d.Attribute), fmt.Sprintf("%v: %s%s", planError.Kind, text, remedy))
		reported = true
	}
	if !reported {
		r.problem(s, "", fmt.Sprintf("%v%s", planError.Kind, remedy))
	}
}

// warn records the provider's warnings about a slot.
func (d *decider) warn(in decide.Input, diagnostics providerapi.Diagnostics) {
	if len(diagnostics) == 0 {
		return
	}
	mask := d.mask(in)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.warnings.Add(d.name(d.slot), diagnostics, mask)
}

// fieldErrors records the errors of a spec. It omits the values: users with access can see them in
// the object.
func (r *run) fieldErrors(s *slot, errs field.ErrorList) {
	for _, err := range errs {
		text := err.Detail
		if text == "" {
			text = string(err.Type)
		}
		r.problem(s, err.Field, text)
	}
}
