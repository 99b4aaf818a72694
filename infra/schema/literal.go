package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// value decodes JSON as a value of a type.
func (r *reader) value(at *field.Path, ty cty.Type, given any, secret bool) cty.Value {
	if v, done := r.indirect(at, ty, given, secret); done {
		return v
	}
	switch {
	case given == nil:
		return cty.NullVal(ty)
	case ty == cty.DynamicPseudoType:
		return r.dynamic(at, given, secret)
	case ty.IsPrimitiveType():
		return r.primitive(at, ty, given, secret)
	case ty.IsListType(), ty.IsSetType():
		if list, ok := given.([]any); ok {
			return r.sequence(at, ty.IsSetType(), ty.ElementType(), r.elements(at, list, secret, func(int) cty.Type { return ty.ElementType() }))
		}
		r.addError(typeError(at, given, "must be a list", secret))
	case ty.IsTupleType():
		list, ok := given.([]any)
		types := ty.TupleElementTypes()
		if ok && len(list) == len(types) {
			return cty.TupleVal(r.elements(at, list, secret, func(i int) cty.Type { return types[i] }))
		}
		r.addError(typeError(at, given, fmt.Sprintf("must be a list of %d", len(types)), secret))
	case ty.IsMapType():
		if object, ok := given.(map[string]any); ok {
			return r.mapOf(at, ty.ElementType(), object, secret)
		}
		r.addError(typeError(at, given, "must be an object", secret))
	case ty.IsObjectType():
		if object, ok := given.(map[string]any); ok {
			return r.objectOf(at, ty, object, secret)
		}
		r.addError(typeError(at, given, "must be an object", secret))
	default:
		r.addError(field.Forbidden(at, "has a type that cannot be set; remove it"))
	}
	return cty.NullVal(ty)
}

func (r *reader) elements(at *field.Path, list []any, secret bool, typeOf func(int) cty.Type) []cty.Value {
	elements := make([]cty.Value, len(list))
	for i, item := range list {
		elements[i] = r.value(at.Index(i), typeOf(i), item, secret)
	}
	return elements
}

func (r *reader) mapOf(at *field.Path, element cty.Type, object map[string]any, secret bool) cty.Value {
	elements := make(map[string]cty.Value, len(object))
	for _, key := range sortedKeys(object) {
		elements[key] = r.value(at.Key(key), element, object[key], secret)
	}
	return r.mapping(at, element, elements)
}

// objectOf decodes an object of a fixed type. Absent fields are null.
func (r *reader) objectOf(at *field.Path, ty cty.Type, object map[string]any, secret bool) cty.Value {
	types := ty.AttributeTypes()
	for _, name := range sortedKeys(object) {
		if _, known := types[name]; !known {
			r.addError(field.Forbidden(at.Child(name), unknownField(name, sortedKeys(types))))
		}
	}
	values := make(map[string]cty.Value, len(types))
	for _, name := range sortedKeys(types) {
		values[name] = r.value(at.Child(name), types[name], object[name], secret)
	}
	return cty.ObjectVal(values)
}

// dynamic decodes JSON for an attribute of dynamic type. The value's type follows from the JSON.
func (r *reader) dynamic(at *field.Path, given any, secret bool) cty.Value {
	switch given := given.(type) {
	case []any:
		return cty.TupleVal(r.elements(at, given, secret, func(int) cty.Type { return cty.DynamicPseudoType }))
	case map[string]any:
		values := make(map[string]cty.Value, len(given))
		for _, key := range sortedKeys(given) {
			values[key] = r.value(at.Key(key), cty.DynamicPseudoType, given[key], secret)
		}
		return cty.ObjectVal(values)
	case string:
		return r.primitive(at, cty.String, given, secret)
	case bool:
		return r.primitive(at, cty.Bool, given, secret)
	}
	return r.primitive(at, cty.Number, given, secret)
}

func (r *reader) primitive(at *field.Path, ty cty.Type, given any, secret bool) cty.Value {
	if secret {
		r.addError(field.Forbidden(at, "is sensitive; use "+secretRemedy))
		return cty.NullVal(ty)
	}
	switch ty {
	case cty.String:
		if text, ok := given.(string); ok {
			return cty.StringVal(unescape(text))
		}
		if text, ok := exactText(given); ok {
			return cty.StringVal(text)
		}
		r.addError(typeError(at, given, "must be a string; put it in quotes", secret))
	case cty.Bool:
		if yes, ok := given.(bool); ok {
			return cty.BoolVal(yes)
		}
		if text, ok := given.(string); ok { // "true", as in OpenTofu; expressions have been resolved
			if yes, err := convert.Convert(cty.StringVal(text), cty.Bool); err == nil {
				return yes
			}
		}
		r.addError(typeError(at, given, "must be true or false, without quotes", secret))
	default:
		return r.number(at, given)
	}
	return cty.NullVal(ty)
}

// exactText returns the text of a boolean or a whole number, as OpenTofu converts them to strings. Other
// numbers have several spellings, and which one was written is not known: 1.30 would become 1.3. The API
// reads 1e3 as 1000.
func exactText(given any) (text string, ok bool) {
	switch given := given.(type) {
	case bool:
		return strconv.FormatBool(given), true
	case int64:
		return strconv.FormatInt(given, 10), -exactFloat < given && given < exactFloat
	case int:
		return exactText(int64(given))
	case json.Number:
		n, err := given.Int64()
		if err != nil || strconv.FormatInt(n, 10) != given.String() {
			return "", false
		}
		return exactText(n)
	}
	return "", false // a float64 is not whole, or was not written as a whole number
}

// exactFloat is the limit up to which the API represents all integers exactly as floats.
const exactFloat = 1 << 53

// number decodes a number exactly. The API has 64-bit integers and floats; larger numbers must be
// strings.
func (r *reader) number(at *field.Path, given any) cty.Value {
	var text string
	switch given := given.(type) {
	case int64:
		return cty.NumberIntVal(given)
	case int:
		return cty.NumberIntVal(int64(given))
	case float64:
		if math.Abs(given) >= exactFloat {
			r.addError(field.Invalid(at, given, "a number of this size may have lost precision; put it in quotes"))
			return cty.NullVal(cty.Number)
		}
		// The decimal number as written, not the nearest binary fraction: providers compare with
		// what they parse themselves.
		text = strconv.FormatFloat(given, 'g', -1, 64)
	case json.Number:
		text = given.String()
	case string:
		text = given
	default:
		r.addError(typeError(at, given, "must be a number", false))
		return cty.NullVal(cty.Number)
	}
	number, err := cty.ParseNumberVal(text)
	if err != nil || number.AsBigFloat().IsInf() {
		r.addError(field.TypeInvalid(at, text, "must be a number"))
		return cty.NullVal(cty.Number)
	}
	return number
}

// sequence returns a list or set. Elements of dynamic type are converted to their common type.
func (r *reader) sequence(at *field.Path, set bool, element cty.Type, elements []cty.Value) cty.Value {
	ty := cty.List(element)
	if set {
		ty = cty.Set(element)
	}
	switch {
	case len(elements) == 0 && set:
		return cty.SetValEmpty(element)
	case len(elements) == 0:
		return cty.ListValEmpty(element)
	case set && cty.CanSetVal(elements):
		return cty.SetVal(elements)
	case !set && cty.CanListVal(elements):
		return cty.ListVal(elements)
	}
	return r.common(at, ty, cty.TupleVal(elements))
}

func (r *reader) mapping(at *field.Path, element cty.Type, elements map[string]cty.Value) cty.Value {
	switch {
	case len(elements) == 0:
		return cty.MapValEmpty(element)
	case cty.CanMapVal(elements):
		return cty.MapVal(elements)
	}
	return r.common(at, cty.Map(element), cty.ObjectVal(elements))
}

func (r *reader) common(at *field.Path, ty cty.Type, elements cty.Value) cty.Value {
	v, err := convert.Convert(elements, ty)
	if err != nil {
		r.addError(field.Forbidden(at, "its elements have no common type: "+err.Error()))
		return cty.NullVal(ty)
	}
	return v
}
