package decide

import (
	"context"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// drift returns the change that was made outside of Atoll, or nil. Providers on the oldest SDK store
// null for an argument that is not configured, and read "", [] or {} for it: that is no change.
func (d *decider) drift(ctx context.Context, stored cty.Value, now providerapi.State) (*Drift, error) {
	if now.Value.RawEquals(stored) {
		return nil, nil
	}
	equated := equateEmpty(stored, now.Value)
	if equated.RawEquals(stored) {
		return &Drift{Before: stored, After: now.Value}, nil
	}
	lenient, err := d.isLenient(ctx, now)
	switch {
	case err != nil:
		return nil, err
	case !lenient:
		return &Drift{Before: stored, After: now.Value}, nil
	case equated.RawEquals(now.Value):
		return nil, nil
	}
	return &Drift{Before: equated, After: now.Value}, nil
}

// isLenient reports whether the provider uses the oldest SDK for the type. Answers to Read do not say
// so, but answers to Plan do. The plan of a deletion needs no configuration and reaches no service.
func (d *decider) isLenient(ctx context.Context, state providerapi.State) (bool, error) {
	if state.Value.IsNull() {
		return false, nil
	}
	answer, err := callPlanDestroy(ctx, d.Provider, d.Schema, d.Address, state)
	if err != nil {
		return false, d.wrapError("plan", err)
	}
	return answer.Lenient && !answer.Diagnostics.Failed(), nil
}

// equateEmpty returns was, with each null or empty value replaced by the null or empty value that now
// has in its place. Both values are wholly known.
func equateEmpty(was, now cty.Value) cty.Value {
	switch {
	case isEmptyValue(was) && isEmptyValue(now) && was.Type().Equals(now.Type()):
		return now
	case was.IsNull() || now.IsNull() || !was.Type().Equals(now.Type()) || was.Type().IsPrimitiveType() || was.RawEquals(now):
		return was
	case was.Type().IsSetType():
		return equateSets(was, now)
	case length(was) != length(now) || length(was) == 0:
		return was
	}
	var keys, elements []cty.Value
	for it := was.ElementIterator(); it.Next(); {
		key, one := it.Element()
		if other, ok := element(now, key); ok {
			one = equateEmpty(one, other)
		}
		keys, elements = append(keys, key), append(elements, one)
	}
	return collectionLike(was, keys, elements)
}

// equateSets replaces the elements of was that differ from one of now in null and empty values only.
func equateSets(was, now cty.Value) cty.Value {
	if length(was) == 0 {
		return was
	}
	var elements []cty.Value
	for it := was.ElementIterator(); it.Next(); {
		_, one := it.Element()
		for others := now.ElementIterator(); others.Next(); {
			if _, other := others.Element(); equateEmpty(one, other).RawEquals(other) {
				one = other
				break
			}
		}
		elements = append(elements, one)
	}
	return cty.SetVal(elements)
}

// isEmptyValue reports whether a value is null, "" or an empty collection. The oldest SDK does not
// distinguish them. It does not distinguish null from 0 and false either, but they are common values
// of their own, so that a change to them has to be shown.
func isEmptyValue(v cty.Value) bool {
	ty := v.Type()
	switch {
	case v.IsNull():
		return ty == cty.String || ty.IsCollectionType()
	case ty == cty.String:
		return v.AsString() == ""
	}
	return ty.IsCollectionType() && v.LengthInt() == 0
}

// readBaseline returns the state that later reads of a resource are compared with. Providers on the
// oldest SDK return values of apply that their next read returns differently, although no one has
// changed anything. So the state is read once more, and is stored if the provider plans no change
// from it. Otherwise, and if it cannot be read, the applied state stays.
func (x *execution) readBaseline(ctx context.Context, applied providerapi.State) providerapi.State {
	baseline := newDecider(x.Input)
	now, err := baseline.read(ctx, applied)
	if err != nil || now.Value.IsNull() {
		return applied
	}
	if now.Value.RawEquals(applied.Value) {
		return now
	}
	p, err := baseline.callPlan(ctx, now, &x.Lifecycle)
	if err != nil || len(p.replace) > 0 || !isUnchanged(p.after, now.Value) {
		return applied
	}
	return now
}
