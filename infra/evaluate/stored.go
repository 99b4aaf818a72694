package evaluate

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// ResourceValue converts a provider's state to the stored form; Prior is its inverse. It leaves
// dependencies and create_before_destroy to the caller. It returns nil if there is no resource.
func ResourceValue(of *providerapi.Schema, state providerapi.State, tainted bool, sensitive []cty.Path) (*v1alpha1.ResourceValue, error) {
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

// StoredValue returns the value of a stored resource in the current version of its schema, with
// secrets marked. It asks the provider only to upgrade a value of another version.
func StoredValue(ctx context.Context, providers infra.Providers, kind *infra.ServedKind, s *infra.State) (cty.Value, error) {
	stored := s.Spec.Current
	sensitive, err := readPaths(stored.Sensitive)
	if err != nil {
		return cty.NilVal, err
	}
	if stored.SchemaVersion == kind.Schema.Version {
		if v, err := ctyjson.Unmarshal(stored.Value, kind.Schema.Block.ImpliedType()); err == nil {
			return Mark(&kind.Schema.Block, v, sensitive), nil
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
	return Mark(&kind.Schema.Block, answer.Value, sensitive), nil
}

// Prior converts a stored resource to the input of a decision. Nil means no resource.
func Prior(v *v1alpha1.ResourceValue) (decide.Prior, error) {
	if v == nil {
		return decide.Prior{}, nil
	}
	prior := decide.Prior{
		Stored:  &providerapi.StoredState{Version: v.SchemaVersion, JSON: v.Value},
		State:   providerapi.State{Private: v.Private},
		Tainted: v.Tainted,
	}
	if len(v.Identity) > 0 {
		identity, err := readIdentity(v.Identity)
		if err != nil {
			return prior, err
		}
		prior.State.Identity = identity
	}
	var err error
	prior.Sensitive, err = readPaths(v.Sensitive)
	return prior, err
}

// writeIdentity encodes a provider's resource identity with its type. It returns nil for a null identity.
func writeIdentity(identity cty.Value) ([]byte, error) {
	if identity == cty.NilVal || identity.IsNull() {
		return nil, nil
	}
	return ctyjson.Marshal(identity, cty.DynamicPseudoType)
}

func readIdentity(text []byte) (cty.Value, error) {
	v, err := ctyjson.Unmarshal(text, cty.DynamicPseudoType)
	if err != nil {
		return cty.NilVal, errors.New("cannot decode the identity in its state: restore the state from a backup, or import the resource again")
	}
	return v, nil
}

// writePaths encodes the paths of secrets for the state. Elements of a set have no names, so that
// the whole set is marked secret.
func writePaths(paths []cty.Path) []string {
	var out []string
	for _, path := range paths {
		for i, step := range path {
			if key, ok := step.(cty.IndexStep); ok && key.Key.Type() != cty.String && key.Key.Type() != cty.Number {
				path = path[:i]
				break
			}
		}
		out = append(out, providerapi.PathText(path))
	}
	return out
}

func readPaths(texts []string) ([]cty.Path, error) {
	var out []cty.Path
	for _, text := range texts {
		path, err := providerapi.ParsePath(text)
		if err != nil {
			return nil, fmt.Errorf("invalid path of a secret in its state: %w", err)
		}
		out = append(out, path)
	}
	return out, nil
}

// Mark returns a value with its secrets marked: those of the schema, and those at the given
// paths.
func Mark(block *providerapi.Block, v cty.Value, secret []cty.Path) cty.Value {
	if len(secret) > 0 {
		marks := make([]cty.PathValueMarks, len(secret))
		for i, path := range secret {
			marks[i] = cty.PathValueMarks{Path: path, Marks: cty.NewValueMarks(providerapi.Sensitive)}
		}
		v = v.MarkWithPaths(marks)
	}
	return schema.Mark(block, v)
}

// DecodeStored decodes a stored state of the current schema version. It fails for other versions,
// which only the provider can upgrade.
func DecodeStored(kind *infra.ServedKind, stored *providerapi.StoredState) (cty.Value, error) {
	if stored.Version != kind.Schema.Version {
		return cty.NilVal, fmt.Errorf("the state has schema version %d, not %d", stored.Version, kind.Schema.Version)
	}
	return ctyjson.Unmarshal(stored.JSON, kind.Schema.Block.ImpliedType())
}
