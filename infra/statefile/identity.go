package statefile

import (
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// A state file has an identity as plain JSON; a ResourceState has it with its type. Attributes that
// are not in the provider's schema are dropped: the provider returns them again with the next
// refresh.

// typedIdentity converts an identity from a state file's form to a ResourceState's.
func typedIdentity(attributes []providerapi.IdentityAttribute, plain []byte) []byte {
	if len(plain) == 0 || len(attributes) == 0 {
		return nil
	}
	of := make(map[string]cty.Type, len(attributes))
	for _, a := range attributes {
		of[a.Name] = a.Type
	}
	v, err := ctyjson.Unmarshal(plain, cty.Object(of))
	if err != nil || v.IsNull() {
		return nil
	}
	text, err := ctyjson.Marshal(v, cty.DynamicPseudoType)
	if err != nil {
		return nil
	}
	return text
}

// plainIdentity converts an identity from a ResourceState's form to a state file's.
func plainIdentity(typed []byte) []byte {
	if len(typed) == 0 {
		return nil
	}
	v, err := ctyjson.Unmarshal(typed, cty.DynamicPseudoType)
	if err != nil || v.IsNull() {
		return nil
	}
	text, err := ctyjson.Marshal(v, v.Type())
	if err != nil {
		return nil
	}
	return text
}
