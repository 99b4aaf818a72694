package infra

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

const (
	// keptValues of resources are kept, because many often refer to one.
	keptValues = 512
	// deepest is how many data sources may be read for each other.
	deepest = 32
)

// value is that of a state.
type value struct {
	version string // of the state
	cty.Value
}

// others gives the values of what the object of a step refers to, as they are by now. Of what
// this Apply is still to make they are not known, which is so for steps that take away alone.
func (a *attempt) others(ctx context.Context) reference.Values {
	return reference.Values{Lookup: func(ref reference.Ref) (cty.Value, error) {
		if state := a.stateOf(ref); state != nil { // or a newer one, and then this one is no longer the World's
			if a.took == nil {
				a.took = map[reference.Ref]string{}
			}
			a.took[ref] = state.ResourceVersion
		}
		return a.valueNow(ctx, ref, 0)
	}}
}

func (r *carrier) valueNow(ctx context.Context, ref reference.Ref, depth int) (cty.Value, error) {
	if p := r.steps.of[ref]; p != nil && p.make != noStep && !r.isEnded(p.make) {
		return cty.DynamicVal, nil
	}
	if ref.Kind == reference.Data {
		return r.dataNow(ctx, ref, depth)
	}
	state := r.stateOf(ref)
	if state == nil || state.Spec.Current == nil {
		return cty.NilVal, fmt.Errorf("%s is not there: write and apply it first", ref)
	}
	r.mu.Lock()
	known, there := r.values[ref]
	r.mu.Unlock()
	if there && known.version == state.ResourceVersion {
		return known.Value, nil
	}
	kind, err := r.e.Providers.Kind(ref)
	if err != nil {
		return cty.NilVal, err
	}
	v, err := r.e.valueOf(ctx, kind, state)
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

// dataNow is the value of a data source: as this Apply read it, as it was when it was planned, or read now.
func (r *carrier) dataNow(ctx context.Context, ref reference.Ref, depth int) (cty.Value, error) {
	r.mu.Lock()
	v, there := r.read[ref]
	r.mu.Unlock()
	if there {
		return v, nil
	}
	kind, err := r.e.Providers.Kind(ref)
	if err != nil {
		return cty.NilVal, err
	}
	if c := r.steps.looked[ref]; c != nil && c.sealed != nil {
		d, err := plan.Open(c.sealed, kind.Schema)
		if err != nil {
			return cty.NilVal, err
		}
		if !d.After.IsNull() {
			v = marked(&kind.Schema.Block, d.After, d.Sensitive)
		}
	}
	if v == cty.NilVal {
		if v, err = r.readNow(ctx, ref, kind, depth); err != nil {
			return cty.NilVal, err
		}
	}
	r.knowData(ref, v)
	return v, nil
}

func (r *carrier) knowData(ref reference.Ref, v cty.Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read[ref] = v
}

func (r *carrier) readNow(ctx context.Context, ref reference.Ref, kind *Served, depth int) (cty.Value, error) {
	object := r.e.World.Object(ref)
	switch {
	case object == nil:
		return cty.NilVal, fmt.Errorf("%s is not written: apply it first", ref)
	case depth >= deepest:
		return cty.NilVal, fmt.Errorf("%s is read for itself, or too many for each other: refer to fewer", ref)
	}
	said, errs := r.e.evaluate(ctx, object, &kind.Kind, reference.Values{
		Lookup: func(ref reference.Ref) (cty.Value, error) { return r.valueNow(ctx, ref, depth+1) },
	})
	if len(errs) > 0 {
		return cty.NilVal, fmt.Errorf("%s: %w", ref, errs[0])
	}
	provider, _, err := r.e.Providers.Open(ctx, kind.Provider, ref.Namespace, said.own.Provider)
	if err != nil {
		return cty.NilVal, err
	}
	d, err := plan.Decide(ctx, plan.Input{Address: addressOf(ref), Schema: kind.Schema, Provider: provider, Config: said.config})
	if err != nil {
		return cty.NilVal, errors.New("it refers to " + ref.String() + ", which cannot be read: see the Problem about that, or plan again")
	}
	return marked(&kind.Schema.Block, d.After, d.Sensitive), nil
}
