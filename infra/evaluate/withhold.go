package evaluate

import (
	"context"
	"errors"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// withheld marks the place of a sensitive value that the reader may not take. Every result that is
// calculated from it has the mark too.
type withheld struct{ refusal string }

// CheckReference returns why an object may not refer to a resource or data source of another namespace, or
// nil. Objects of one namespace may refer to each other.
func (e *Evaluator) CheckReference(ctx context.Context, o *infra.Object, ref expr.Ref) error {
	if ref.Namespace == o.Ref.Namespace {
		return nil
	}
	return e.Values.Reference(ctx, infra.Reader{Object: o}, ref, false)
}

// resource returns the value of a resource or data source, without what the reader may not take.
func (r *resolver) resource(ref expr.Ref) (cty.Value, error) {
	if err := r.evaluator.CheckReference(r.ctx, r.reader.Object, ref); err != nil {
		return cty.NilVal, err
	}
	v, err := r.others.Lookup(ref)
	if err != nil {
		return cty.NilVal, err
	}
	return r.permitted(ref, v)
}

// attribute is resource for one attribute. It returns false if the reader may not refer to the resource:
// the lookup of the whole resource then reports why.
func (r *resolver) attribute(ref expr.Ref, name string) (cty.Value, bool) {
	if r.others.Attribute == nil || r.evaluator.CheckReference(r.ctx, r.reader.Object, ref) != nil {
		return cty.NilVal, false
	}
	v, found := r.others.Attribute(ref, name)
	if !found {
		return cty.NilVal, false
	}
	v, err := r.permitted(ref, v)
	return v, err == nil
}

// permitted replaces the sensitive values of a resource by unknown ones with the mark withheld, if the
// reader may not take them. So they do not get into the evaluation at all.
func (r *resolver) permitted(ref expr.Ref, v cty.Value) (cty.Value, error) {
	if ref.Namespace == r.reader.Ref.Namespace || !v.ContainsMarked() {
		return v, nil
	}
	err := r.evaluator.Values.Reference(r.ctx, r.reader, ref, true)
	if err == nil {
		return v, nil
	}
	return withhold(v, err.Error())
}

// withhold replaces all marked parts of a value.
func withhold(v cty.Value, refusal string) (cty.Value, error) {
	bare, marked := v.UnmarkDeepWithPaths()
	return cty.Transform(bare, func(at cty.Path, part cty.Value) (cty.Value, error) {
		for _, one := range marked {
			if one.Path.Equals(at) {
				return cty.UnknownVal(part.Type()).WithMarks(cty.NewValueMarks(providerapi.Sensitive, withheld{refusal})), nil
			}
		}
		return part, nil
	})
}

// checkWithheld returns an error if a value was calculated from one that the reader may not take.
func checkWithheld(v cty.Value) error {
	_, marks := v.UnmarkDeep()
	for mark := range marks {
		if w, is := mark.(withheld); is {
			return errors.New(w.refusal)
		}
	}
	return nil
}
