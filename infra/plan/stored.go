package plan

import (
	"bytes"
	"encoding/json"

	"github.com/zclconf/go-cty/cty"
)

// onlyKnownAttributes leaves out of stored state what the type does not have. If there is
// no such thing the bytes stay as they are.
func onlyKnownAttributes(stored []byte, ty cty.Type) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(stored))
	decoder.UseNumber() // numbers of any size come back as they were
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	if !dropUnknown(v, ty) {
		return stored, nil
	}
	return json.Marshal(v)
}

// dropUnknown tells whether it dropped something.
func dropUnknown(v any, ty cty.Type) bool {
	dropped := false
	switch v := v.(type) {
	case map[string]any:
		for name, of := range v {
			switch {
			case ty.IsMapType():
				dropped = dropUnknown(of, ty.ElementType()) || dropped
			case !ty.IsObjectType():
			case ty.HasAttribute(name):
				dropped = dropUnknown(of, ty.AttributeType(name)) || dropped
			default:
				delete(v, name)
				dropped = true
			}
		}
	case []any:
		for i, of := range v {
			switch {
			case ty.IsListType() || ty.IsSetType():
				dropped = dropUnknown(of, ty.ElementType()) || dropped
			case ty.IsTupleType() && i < ty.Length():
				dropped = dropUnknown(of, ty.TupleElementType(i)) || dropped
			}
		}
	}
	return dropped
}
