package decide

import (
	"bytes"
	"encoding/json"

	"github.com/zclconf/go-cty/cty"
)

// onlyKnownAttributes removes attributes that the type does not have from stored state. It returns
// the same bytes if there are none.
func onlyKnownAttributes(stored []byte, ty cty.Type) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(stored))
	decoder.UseNumber() // keeps numbers of any size
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, err
	}
	if !dropUnknown(v, ty) {
		return stored, nil
	}
	return json.Marshal(v)
}

// dropUnknown reports whether it removed an attribute.
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
