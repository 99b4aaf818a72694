package statefile

import (
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// ResourceTypes provides the resource types that installed Providers serve.
type ResourceTypes interface {
	// ResourceType returns a type of a Provider, named as in the API. The error says why the type
	// is not served.
	ResourceType(provider, typeName string, data bool) (*ResourceType, error)
}

// ResourceType is a resource type or data source as the API serves it. Package infra/schema
// implements its functions.
type ResourceType struct {
	Kind, Plural string
	Schema       *providerapi.Schema
	// Spec returns arguments that would produce a value, with placeholders for sensitive ones, which
	// refer to keys of the named Secret.
	Spec func(v cty.Value, secret string, which Arguments) (map[string]any, []Placeholder)
	// Upgrade converts state with an older schema version to Schema. It is only called where
	// necessary. If nil, such state is an error.
	Upgrade func(stored providerapi.StoredState) (cty.Value, error)
}

// Arguments tell which arguments a spec has, as the options of the same names in infra/schema do.
type Arguments struct {
	Computed, Written bool
	Omit              map[string]bool
}

// Placeholder is a sensitive argument and its key in the Secret.
type Placeholder struct {
	Path cty.Path
	Key  string
}

// Target is the Atoll counterpart of a provider configuration: the Provider, and the ProviderConfig
// in the objects' namespace. Config defaults to the Provider's name.
type Target struct{ Provider, Config string }

// configName returns the name of the ProviderConfig.
func (t Target) configName() string {
	if t.Config == "" {
		return t.Provider
	}
	return t.Config
}

// typeInfo is a ResourceType with values derived from it.
type typeInfo struct {
	*ResourceType
	target   Target
	typeName string
	data     bool
	implied  cty.Type
}

// value decodes the state file's value of a resource according to the type's schema. Errors quote
// no value.
func (k *typeInfo) value(i *Instance) (cty.Value, error) {
	if i.Flat == nil && i.SchemaVersion == k.Schema.Version {
		if v, err := ctyjson.Unmarshal(i.Attributes, k.implied); err == nil && !v.IsNull() {
			return v, nil
		}
	}
	if k.Upgrade == nil {
		return cty.NilVal, fmt.Errorf("its state has schema version %d, or does not conform to it, and the provider's schema version is %d; only the provider can upgrade it: import the file where the provider can run, or first run tofu apply -refresh-only with the current provider version",
			i.SchemaVersion, k.Schema.Version)
	}
	v, err := k.Upgrade(providerapi.StoredState{Version: i.SchemaVersion, JSON: i.Attributes, Flat: i.Flat})
	if err != nil {
		return cty.NilVal, fmt.Errorf("the provider cannot upgrade its state from schema version %d: %w", i.SchemaVersion, err)
	}
	if v, _ = v.UnmarkDeep(); v.IsNull() || !v.IsWhollyKnown() || !v.Type().Equals(k.implied) {
		return cty.NilVal, errors.New("the provider upgraded its state to a value that does not conform to its schema")
	}
	return v, nil
}
