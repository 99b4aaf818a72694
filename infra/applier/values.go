package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
)

const (
	// keptValues is how many values of resources are cached: many resources often refer to one.
	keptValues = 512
	// maxDataDepth limits how many data sources may be read for one another.
	maxDataDepth = 32
)

// value is the value of one version of a state.
type value struct {
	version string // of the state
	cty.Value
}

// inputs returns the current values that the object of a step refers to. The value of a resource
// that this Apply has yet to create is unknown; this only happens in destroy steps.
func (a *stepRun) inputs(ctx context.Context) expr.Scope {
	return expr.Scope{Lookup: func(ref expr.Ref) (cty.Value, error) {
		if state := a.stateOf(ref); state != nil { // if it is not the latest, the Inventory has another version, and RecordApply ignores it
			if a.inputVersions == nil {
				a.inputVersions = map[expr.Ref]string{}
			}
			a.inputVersions[ref] = state.ResourceVersion
		}
		return a.currentValue(ctx, ref, 0)
	}}
}

func (r *run) currentValue(ctx context.Context, ref expr.Ref, depth int) (cty.Value, error) {
	if p := r.steps.byRef[ref]; p != nil && p.upsert != noStep && !r.hasEnded(p.upsert) {
		return cty.DynamicVal, nil
	}
	if ref.Kind == expr.Data {
		return r.dataValue(ctx, ref, depth)
	}
	state := r.stateOf(ref)
	if state == nil || state.Spec.Current == nil {
		return cty.NilVal, fmt.Errorf("%s does not exist: create and apply it first", ref)
	}
	r.mu.Lock()
	cached, ok := r.values[ref]
	r.mu.Unlock()
	if ok && cached.version == state.ResourceVersion {
		return cached.Value, nil
	}
	kind, err := r.e.Providers.Kind(ref)
	if err != nil {
		return cty.NilVal, err
	}
	v, err := evaluate.StoredValue(ctx, r.e.Providers, kind, state)
	if err != nil {
		return cty.NilVal, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.values) >= keptValues {
		clear(r.values)
	}
	r.values[ref] = value{state.ResourceVersion, v}
	return v, nil
}

// dataValue returns the value of a data source: as read by this Apply, as read by the plan, or read
// now.
func (r *run) dataValue(ctx context.Context, ref expr.Ref, depth int) (cty.Value, error) {
	r.mu.Lock()
	v, ok := r.dataValues[ref]
	r.mu.Unlock()
	if ok {
		return v, nil
	}
	kind, err := r.e.Providers.Kind(ref)
	if err != nil {
		return cty.NilVal, err
	}
	if c := r.steps.dataReads[ref]; c != nil && c.sealed != nil {
		d, err := decide.Open(c.sealed, kind.Schema)
		if err != nil {
			return cty.NilVal, err
		}
		if !d.After.IsNull() {
			v = evaluate.Mark(&kind.Schema.Block, d.After, d.Sensitive)
		}
	}
	if v == cty.NilVal {
		if v, err = r.readData(ctx, ref, kind, depth); err != nil {
			return cty.NilVal, err
		}
	}
	r.setDataValue(ref, v)
	return v, nil
}

func (r *run) setDataValue(ref expr.Ref, v cty.Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dataValues[ref] = v
}

func (r *run) readData(ctx context.Context, ref expr.Ref, kind *infra.ServedKind, depth int) (cty.Value, error) {
	object := r.e.Inventory.Object(ref)
	switch {
	case object == nil:
		return cty.NilVal, fmt.Errorf("%s does not exist: create it first", ref)
	case depth >= maxDataDepth:
		return cty.NilVal, fmt.Errorf("%s is in a cycle or a long chain of data sources: remove some of the references", ref)
	}
	evaluated, errs := r.e.Evaluator.Evaluate(ctx, object, &kind.Kind, expr.Scope{
		Lookup: func(ref expr.Ref) (cty.Value, error) { return r.currentValue(ctx, ref, depth+1) },
	})
	if len(errs) > 0 {
		return cty.NilVal, fmt.Errorf("%s: %w", ref, errs[0])
	}
	provider, _, err := r.e.Providers.Open(ctx, kind.Provider, ref.Namespace, evaluated.Meta.Provider)
	if err != nil {
		return cty.NilVal, err
	}
	d, err := decide.Decide(ctx, decide.Input{Address: infra.AddressOf(ref), Schema: kind.Schema, Provider: provider, Config: evaluated.Config})
	if err != nil {
		return cty.NilVal, errors.New("it refers to " + ref.String() + ", which cannot be read: see the Problem of that data source, or plan again")
	}
	return evaluate.Mark(&kind.Schema.Block, d.After, d.Sensitive), nil
}
