package infra

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// resourceValue converts a provider's state to the stored form; priorOf is its inverse. It leaves
// dependencies and create_before_destroy to the caller. It returns nil if there is no resource.
func resourceValue(of *providerapi.Schema, state providerapi.State, tainted bool, sensitive []cty.Path) (*v1alpha1.ResourceValue, error) {
	if state.Value == cty.NilVal || state.Value.IsNull() {
		return nil, nil
	}
	text, err := ctyjson.Marshal(state.Value, of.Block.ImpliedType())
	if err != nil {
		return nil, fmt.Errorf("cannot encode the state: %w", err)
	}
	identity, err := writeIdentity(state.Identity)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the identity: %w", err)
	}
	return &v1alpha1.ResourceValue{
		SchemaVersion: of.Version, Value: text, Private: state.Private, Identity: identity,
		Tainted: tainted, Sensitive: writePaths(sensitive),
	}, nil
}

// storedValue returns the value of a stored resource in the current version of its schema, with
// secrets marked. It asks the provider only to upgrade a value of another version.
func storedValue(ctx context.Context, providers Providers, kind *ServedKind, s *State) (cty.Value, error) {
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
	provider, _, err := providers.Open(ctx, s.Spec.Provider, s.Ref.Namespace, s.Spec.ProviderConfig)
	if err != nil {
		return cty.NilVal, err
	}
	answer, err := provider.Upgrade(ctx, s.Ref.Type, providerapi.StoredState{Version: stored.SchemaVersion, JSON: stored.Value})
	switch {
	case err != nil:
		return cty.NilVal, err
	case answer.Diagnostics.Failed() || answer.Value == cty.NilVal:
		return cty.NilVal, fmt.Errorf("the provider cannot upgrade the stored state of %s: plan it", s.Ref)
	}
	return marked(&kind.Schema.Block, answer.Value, sensitive), nil
}
