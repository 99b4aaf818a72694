package adopt

import (
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Kinds are the types that installed Providers serve.
type Kinds interface {
	// Kind of a type of a Provider, named as in the API. An error says why there is none.
	Kind(provider, typeName string, data bool) (*Kind, error)
}

// Kind is one type as the API serves it. infra/schema has all of it.
type Kind struct {
	Kind, Plural string
	Schema       *contract.Schema
	// Spec makes arguments that would bring about a value, with placeholders for what is sensitive, under keys of the Secret
	// of that name. Computed adds arguments that the provider fills in where nobody sets them.
	Spec func(v cty.Value, secret string, computed bool) (map[string]any, []Placeholder)
	// Upgrade brings state of an older form into that of Schema. It is only asked where it is needed. Nil refuses such state.
	Upgrade func(stored contract.StoredState) (cty.Value, error)
}

// Placeholder is an argument that is sensitive, and the key of the Secret under which it is expected.
type Placeholder struct {
	Path cty.Path
	Key  string
}

// Target is how a provider's configuration is called in Atoll: the Provider, and the ProviderConfig of the objects' namespace.
// Without one it is the one that is called like the Provider.
type Target struct{ Provider, Config string }

// config is the name of the ProviderConfig.
func (t Target) config() string {
	if t.Config == "" {
		return t.Provider
	}
	return t.Config
}

// served is a Kind with what is needed of it again and again.
type served struct {
	*Kind
	target   Target
	typeName string
	data     bool
	implied  cty.Type
}

// value reads what a state file has of a resource, in the form of the Kind's schema. Errors quote no value.
func (k *served) value(i *Instance) (cty.Value, error) {
	if i.Flat == nil && i.SchemaVersion == k.Schema.Version {
		if v, err := ctyjson.Unmarshal(i.Attributes, k.implied); err == nil && !v.IsNull() {
			return v, nil
		}
	}
	if k.Upgrade == nil {
		return cty.NilVal, fmt.Errorf("its state is of version %d of its schema, or has not the form of it, and the provider's version is %d: the provider has to upgrade it, so adopt it where the provider can be run, or run tofu apply -refresh-only with its current version before",
			i.SchemaVersion, k.Schema.Version)
	}
	v, err := k.Upgrade(contract.StoredState{Version: i.SchemaVersion, JSON: i.Attributes, Flat: i.Flat})
	if err != nil {
		return cty.NilVal, fmt.Errorf("the provider cannot upgrade its state of version %d: %w", i.SchemaVersion, err)
	}
	if v, _ = v.UnmarkDeep(); v.IsNull() || !v.IsWhollyKnown() || !v.Type().Equals(k.implied) {
		return cty.NilVal, errors.New("the provider upgraded its state to something that is not of its schema")
	}
	return v, nil
}
