package infra

import (
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// complain notes a problem.
func (r *run) complain(address, field, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, v1alpha1.Problem{Address: address, Field: field, Message: message})
}

// problem notes what is wrong with a slot.
func (r *run) problem(s *slot, field, message string) { r.complain(r.name(s), field, message) }

// name is KIND.GROUP/NAME of a slot.
func (r *run) name(s *slot) string {
	switch {
	case s.object != nil && s.object.Kind != "":
		return s.object.Kind + "." + s.object.Group + "/" + s.ref.Name
	case s.state != nil && s.state.Spec.Object.Kind != "":
		return s.state.Spec.Object.Kind + "." + s.state.Spec.Object.Group + "/" + s.ref.Name
	}
	return r.nameOf(s.ref)
}

// nameOf is KIND.GROUP/NAME of what need not be there; if its type is not served, as expressions name it.
func (r *run) nameOf(ref reference.Ref) string {
	kind, err := r.kind(ref)
	if err != nil {
		return ref.String()
	}
	return kind.Name.Kind + "." + kind.Group + "/" + ref.Name
}

// explain notes why nothing was decided, each thing with its field. What a provider says can quote secrets: the mask takes them
// out.
func (r *run) explain(s *slot, err error, mask schema.Mask) {
	var said *plan.Error
	if !errors.As(err, &said) {
		text := mask.Text(err.Error())
		if errors.Is(err, contract.ErrUnavailable) {
			text += "; plan again, and look at the Provider's status if that does not help"
		}
		r.problem(s, "", text)
		return
	}
	remedy := ""
	if said.Remedy != "" {
		remedy = "; " + said.Remedy
	}
	told := false
	for _, p := range said.Problems {
		r.problem(s, "", fmt.Sprintf("%v: %s%s", said.Kind, mask.Text(p.String()), remedy))
		told = true
	}
	for _, d := range mask.Diagnostics(said.Diagnostics) {
		if d.Warning {
			continue
		}
		text := words(d)
		if remedy != "" {
			text = strings.TrimRight(text, ".")
		}
		r.problem(s, specField(d.Attribute), fmt.Sprintf("%v: %s%s", said.Kind, text, remedy))
		told = true
	}
	if !told {
		r.problem(s, "", fmt.Sprintf("%v%s", said.Kind, remedy))
	}
}

// warn notes what the provider said of a slot beside its answer.
func (d *deciding) warn(in plan.Input, said contract.Diagnostics) {
	if len(said) == 0 {
		return
	}
	mask := d.mask(in)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.warnings.add(d.name(d.slot), said, mask)
}

// specField is a path as kubectl shows it. The elements of a set have no names: it ends before them.
func specField(path cty.Path) string {
	if len(path) == 0 {
		return ""
	}
	at := field.NewPath("spec")
	for _, step := range path {
		switch step := step.(type) {
		case cty.GetAttrStep:
			at = at.Child(step.Name)
		case cty.IndexStep:
			key, _ := step.Key.Unmark()
			switch {
			case !key.IsKnown() || key.IsNull():
				return at.String()
			case key.Type() == cty.String:
				at = at.Key(key.AsString())
			case key.Type() == cty.Number:
				n, _ := key.AsBigFloat().Int64()
				at = at.Index(int(n))
			default:
				return at.String()
			}
		}
	}
	return at.String()
}

// complaints notes what is wrong with fields of a spec. Their values are left out: they can be seen in the object
// by whoever may.
func (r *run) complaints(s *slot, errs field.ErrorList) {
	for _, err := range errs {
		text := err.Detail
		if text == "" {
			text = string(err.Type)
		}
		r.problem(s, err.Field, text)
	}
}
