package infra

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
)

// restated is a resource as it is stored, the other way round than restored: but for what is not the provider's
// to say, its dependencies and how it is to be replaced. It is nil if there is no resource.
func restated(of *contract.Schema, state contract.State, tainted bool, sensitive []cty.Path) (*v1alpha1.ResourceValue, error) {
	if state.Value == cty.NilVal || state.Value.IsNull() {
		return nil, nil
	}
	text, err := ctyjson.Marshal(state.Value, of.Block.ImpliedType())
	if err != nil {
		return nil, fmt.Errorf("the state cannot be stored: %w", err)
	}
	identity, err := writeIdentity(state.Identity)
	if err != nil {
		return nil, fmt.Errorf("the identity cannot be stored: %w", err)
	}
	return &v1alpha1.ResourceValue{
		SchemaVersion: of.Version, Value: text, Private: state.Private, Identity: identity,
		Tainted: tainted, Sensitive: writePaths(sensitive),
	}, nil
}

// valueOf is the value of a stored resource in the form of this version of its schema, marked where it is
// secret. The provider is only asked for what is of another form.
func (e *Engine) valueOf(ctx context.Context, kind *Served, s *State) (cty.Value, error) {
	stored := s.Spec.Current
	sensitive, err := readPaths(stored.Sensitive)
	if err != nil {
		return cty.NilVal, err
	}
	if stored.SchemaVersion == kind.Schema.Version {
		if v, err := ctyjson.Unmarshal(stored.Value, kind.Schema.Block.ImpliedType()); err == nil {
			return marked(&kind.Schema.Block, v, sensitive), nil
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
		return cty.NilVal, fmt.Errorf("the provider cannot bring the stored state of %s into its present form: plan it", s.Ref)
	}
	return marked(&kind.Schema.Block, answer.Value, sensitive), nil
}

// stateNameOf is what the ResourceState of an object of the kind is called.
func stateNameOf(kind *Served, object string) string {
	return v1alpha1.StateName(kind.Plural, kind.Provider, object)
}
