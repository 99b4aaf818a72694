package adopt

import (
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/contract"
)

// A state file has an identity as plain JSON, and a state has it with its type. What is not of the provider's schema is dropped: the
// provider says it anew with the next reading.

// typedIdentity is an identity as states have it.
func typedIdentity(attributes []contract.IdentityAttribute, plain []byte) []byte {
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

// plainIdentity is an identity as a state file has it.
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
