// Package value converts the protocol's values to and from JSON.
package value

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"

	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Decode decodes a value. Attributes missing in the JSON become null; attributes that the type does
// not have are ignored.
func Decode(text []byte, typ tftypes.Type) (tftypes.Value, error) {
	return tftypes.ValueFromJSONWithOpts(text, typ, tftypes.ValueFromJSONOpts{IgnoreUndefinedAttributes: true})
}

// DecodeObject decodes attributes that were encoded one by one.
func DecodeObject(attributes map[string]json.RawMessage, typ tftypes.Type) (tftypes.Value, error) {
	text, err := json.Marshal(attributes)
	if err != nil {
		return tftypes.Value{}, err
	}
	return Decode(text, typ)
}

// EncodeObject encodes each attribute of an object. The type is the schema's, which distinguishes a
// dynamic attribute from one that happens to be a string.
func EncodeObject(v tftypes.Value, typ tftypes.Type) (map[string]json.RawMessage, error) {
	object, ok := typ.(tftypes.Object)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", typ)
	}
	var fields map[string]tftypes.Value
	if err := v.As(&fields); err != nil {
		return nil, err
	}
	all := make(map[string]json.RawMessage, len(fields))
	for name, field := range fields {
		plain, err := encode(object.AttributeTypes[name], field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if all[name], err = json.Marshal(plain); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

var errUnknown = errors.New("the value is not known")

// encode returns a value for encoding/json.
func encode(typ tftypes.Type, v tftypes.Value) (any, error) {
	switch {
	case !v.IsFullyKnown():
		return nil, errUnknown
	case v.IsNull():
		return nil, nil
	case typ.Is(tftypes.DynamicPseudoType):
		return encodeDynamic(v)
	}
	switch typ := typ.(type) {
	case tftypes.List:
		return encodeAll(func(int) tftypes.Type { return typ.ElementType }, v)
	case tftypes.Set:
		return encodeAll(func(int) tftypes.Type { return typ.ElementType }, v)
	case tftypes.Tuple:
		return encodeAll(func(i int) tftypes.Type { return typ.ElementTypes[i] }, v)
	case tftypes.Map:
		return encodeNamed(func(string) tftypes.Type { return typ.ElementType }, v)
	case tftypes.Object:
		return encodeNamed(func(name string) tftypes.Type { return typ.AttributeTypes[name] }, v)
	}
	return encodePrimitive(typ, v)
}

func encodePrimitive(typ tftypes.Type, v tftypes.Value) (any, error) {
	switch {
	case typ.Is(tftypes.String):
		var text string
		err := v.As(&text)
		return text, err
	case typ.Is(tftypes.Bool):
		var truth bool
		err := v.As(&truth)
		return truth, err
	case typ.Is(tftypes.Number):
		var number *big.Float
		if err := v.As(&number); err != nil {
			return nil, err
		}
		format := byte('g')
		if number.IsInt() && number.MantExp(nil) < 512 { // in full, up to a readable length
			format = 'f'
		}
		return json.Number(number.Text(format, -1)), nil
	}
	return nil, fmt.Errorf("%s cannot be encoded", typ)
}

func encodeAll(typ func(int) tftypes.Type, v tftypes.Value) (any, error) {
	var elements []tftypes.Value
	if err := v.As(&elements); err != nil {
		return nil, err
	}
	all := make([]any, len(elements))
	for i, element := range elements {
		plain, err := encode(typ(i), element)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		all[i] = plain
	}
	return all, nil
}

func encodeNamed(typ func(string) tftypes.Type, v tftypes.Value) (any, error) {
	var elements map[string]tftypes.Value
	if err := v.As(&elements); err != nil {
		return nil, err
	}
	all := make(map[string]any, len(elements))
	for name, element := range elements {
		plain, err := encode(typ(name), element)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = plain
	}
	return all, nil
}

// encodeDynamic encodes the value together with its type.
func encodeDynamic(v tftypes.Value) (any, error) {
	typ, err := v.Type().MarshalJSON() //nolint:staticcheck // the only way to encode a type
	if err != nil {
		return nil, err
	}
	plain, err := encode(v.Type(), v)
	return map[string]any{"type": json.RawMessage(typ), "value": plain}, err
}

// Fill replaces every unknown part by a value derived from the seed and its path. The same seed
// gives the same values.
func Fill(v tftypes.Value, seed string) (tftypes.Value, error) {
	return tftypes.Transform(v, func(path *tftypes.AttributePath, part tftypes.Value) (tftypes.Value, error) {
		if part.IsKnown() {
			return part, nil
		}
		return invent(part.Type(), seed+"/"+path.String()), nil
	})
}

// invent generates a value of a type. Numbers are whole, because some attributes require that and
// the protocol does not say which.
func invent(typ tftypes.Type, seed string) tftypes.Value {
	switch typ := typ.(type) {
	case tftypes.List:
		return tftypes.NewValue(typ, []tftypes.Value{invent(typ.ElementType, seed+"/0"), invent(typ.ElementType, seed+"/1")})
	case tftypes.Set:
		return tftypes.NewValue(typ, []tftypes.Value{invent(typ.ElementType, seed+"/0"), invent(typ.ElementType, seed+"/1")})
	case tftypes.Map:
		return tftypes.NewValue(typ, map[string]tftypes.Value{"one": invent(typ.ElementType, seed+"/one"), "two": invent(typ.ElementType, seed+"/two")})
	case tftypes.Tuple:
		all := make([]tftypes.Value, len(typ.ElementTypes))
		for i, element := range typ.ElementTypes {
			all[i] = invent(element, fmt.Sprint(seed, "/", i))
		}
		return tftypes.NewValue(typ, all)
	case tftypes.Object:
		all := make(map[string]tftypes.Value, len(typ.AttributeTypes))
		for name, attribute := range typ.AttributeTypes {
			all[name] = invent(attribute, seed+"/"+name)
		}
		return tftypes.NewValue(typ, all)
	}
	sum := sha256.Sum256([]byte(seed))
	switch {
	case typ.Is(tftypes.Number):
		return tftypes.NewValue(typ, int64(binary.BigEndian.Uint32(sum[:4])>>8))
	case typ.Is(tftypes.Bool):
		return tftypes.NewValue(typ, sum[0]&1 == 1)
	}
	return tftypes.NewValue(tftypes.String, hex.EncodeToString(sum[:6])) // also for dynamic types
}
