package infra

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/schema"
)

// priorOf is a stored resource as infra/plan takes it: its value still in the form that it was
// written in. Of nil it is nothing.
func priorOf(v *v1alpha1.ResourceValue) (plan.Prior, error) {
	if v == nil {
		return plan.Prior{}, nil
	}
	prior := plan.Prior{
		State: contract.State{Private: v.Private}, Tainted: v.Tainted,
		Stored: &contract.StoredState{Version: v.SchemaVersion, JSON: v.Value},
	}
	var err error
	if prior.Sensitive, err = parsePaths(v.Sensitive); err != nil {
		return plan.Prior{}, err
	}
	if len(v.Identity) > 0 {
		if prior.State.Identity, err = ctyjson.Unmarshal(v.Identity, cty.DynamicPseudoType); err != nil {
			return plan.Prior{}, fmt.Errorf("the stored identity cannot be read: %w", err)
		}
	}
	return prior, nil
}

// restated is a resource as it is stored, but for what is not the provider's to say: dependencies, and how it is
// replaced. It is nil if there is no resource.
func restated(of *contract.Schema, state contract.State, tainted bool, sensitive []cty.Path) (*v1alpha1.ResourceValue, error) {
	if state.Value == cty.NilVal || state.Value.IsNull() {
		return nil, nil
	}
	text, err := ctyjson.Marshal(state.Value, of.Block.ImpliedType())
	if err != nil {
		return nil, fmt.Errorf("the state cannot be stored: %w", err)
	}
	out := &v1alpha1.ResourceValue{SchemaVersion: of.Version, Value: text, Private: state.Private, Tainted: tainted}
	for _, path := range sensitive {
		out.Sensitive = append(out.Sensitive, plan.PathText(path))
	}
	if state.Identity != cty.NilVal && !state.Identity.IsNull() {
		// With its type: a provider may change what identities are of.
		if out.Identity, err = ctyjson.Marshal(state.Identity, cty.DynamicPseudoType); err != nil {
			return nil, fmt.Errorf("the identity cannot be stored: %w", err)
		}
	}
	return out, nil
}

func parsePaths(texts []string) ([]cty.Path, error) {
	var out []cty.Path
	for _, text := range texts {
		path, err := plan.ParsePath(text)
		if err != nil {
			return nil, fmt.Errorf("the stored state says that %q is secret: %w", text, err)
		}
		out = append(out, path)
	}
	return out, nil
}

// marked marks what is secret in a value: by the schema, and at the paths.
func marked(of *contract.Schema, v cty.Value, sensitive []cty.Path) cty.Value {
	if len(sensitive) > 0 {
		marks := make([]cty.PathValueMarks, 0, len(sensitive))
		for _, path := range sensitive {
			marks = append(marks, cty.PathValueMarks{Path: path, Marks: cty.NewValueMarks(contract.Sensitive)})
		}
		v = v.MarkWithPaths(marks)
	}
	return schema.Mark(&of.Block, v)
}

// valueOf is the value of a stored resource in the form of this version of its schema, marked where it is
// secret. Only what is of another form is shown to the provider.
func (e *Engine) valueOf(ctx context.Context, kind *Served, s *State) (cty.Value, error) {
	stored := s.Spec.Current
	sensitive, err := parsePaths(stored.Sensitive)
	if err != nil {
		return cty.NilVal, err
	}
	if stored.SchemaVersion == kind.Schema.Version {
		if v, err := ctyjson.Unmarshal(stored.Value, kind.Schema.Block.ImpliedType()); err == nil {
			return marked(kind.Schema, v, sensitive), nil
		}
	}
	provider, _, err := e.Providers.Open(ctx, s.Spec.Provider, s.Ref.Namespace, s.Spec.ProviderConfig)
	if err != nil {
		return cty.NilVal, err
	}
	answer, err := provider.Upgrade(ctx, s.Ref.Type, contract.StoredState{Version: stored.SchemaVersion, JSON: stored.Value})
	switch {
	case err != nil:
		return cty.NilVal, err
	case answer.Diagnostics.Failed() || answer.Value == cty.NilVal:
		return cty.NilVal, fmt.Errorf("%s: the provider cannot bring the stored state into its present form: plan it", s.Ref)
	}
	return marked(kind.Schema, answer.Value, sensitive), nil
}

// stateName is what the ResourceState of an object of the kind is called.
func stateName(kind *Served, object string) string {
	return v1alpha1.StateName(kind.Plural, kind.Provider, object)
}
