package schema

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

const (
	secretKeyRef     = "secretKeyRef"
	secretKeyRefName = "name"
	secretKeyRefKey  = "key"
)

const secretRemedy = "{secretKeyRef: {name: …, key: …}} for a Secret in the same namespace, or an expression ${…} that refers to another object"

// indirect resolves an expression or a secretKeyRef. It returns false for any other value.
func (r *reader) indirect(at *field.Path, ty cty.Type, given any, secret bool) (cty.Value, bool) {
	if text, ok := given.(string); ok && HasExpression(text) {
		return r.expression(at, ty, text), true
	}
	ref, ok := secretKeyRefIn(given)
	if !ok || !secret {
		return cty.NilVal, false
	}
	return r.secret(at, ty, ref), true
}

// secretKeyRefIn returns the content of {secretKeyRef: …}, which must be the only field.
func secretKeyRefIn(given any) (any, bool) {
	object, ok := given.(map[string]any)
	if !ok || len(object) != 1 {
		return nil, false
	}
	ref, ok := object[secretKeyRef]
	return ref, ok
}

func (r *reader) expression(at *field.Path, ty cty.Type, text string) cty.Value {
	v, ok := r.evaluated(at, text)
	if !ok {
		return cty.NullVal(ty)
	}
	converted, err := convert.Convert(v, withOptional(ty))
	if err != nil {
		r.addError(field.Invalid(at, text, fmt.Sprintf("the expression's value has the wrong type: %s", err)))
		return cty.NullVal(ty)
	}
	return converted
}

func (r *reader) evaluated(at *field.Path, text string) (cty.Value, bool) {
	v, err := r.resolve.Expression(at, text)
	if err != nil {
		r.addError(field.Invalid(at, text, err.Error()))
		return cty.NilVal, false
	}
	return v, true
}

func (r *reader) secret(at *field.Path, ty cty.Type, given any) cty.Value {
	at = at.Child(secretKeyRef)
	ref, err := readSecretKeyRef(given)
	if err != nil {
		r.addError(field.Forbidden(at, err.Error()))
		return cty.NullVal(ty)
	}
	text, err := r.resolve.Secret(at, ref)
	if err == nil {
		text, err = secretValue(text, ty, ref)
	}
	if err != nil {
		r.addError(field.Forbidden(at, err.Error()))
		return cty.NullVal(ty)
	}
	return text.Mark(providerapi.Sensitive)
}

func readSecretKeyRef(given any) (SecretKeyRef, error) {
	fields, _ := given.(map[string]any)
	name, _ := fields[secretKeyRefName].(string)
	key, _ := fields[secretKeyRefKey].(string)
	if name == "" || key == "" || len(fields) != 2 {
		return SecretKeyRef{}, errors.New("must have exactly the fields name and key, both not empty")
	}
	return SecretKeyRef{Name: name, Key: key}, nil
}

// secretValue converts the text under a key: for a string it is the value, for any other type it is
// JSON. Errors do not quote it.
func secretValue(text cty.Value, ty cty.Type, ref SecretKeyRef) (cty.Value, error) {
	text, marks := text.Unmark()
	switch {
	case !text.IsKnown():
		return cty.UnknownVal(ty).WithMarks(marks), nil
	case text.IsNull() || text.Type() != cty.String:
		return cty.NilVal, fmt.Errorf("key %q of Secret %q has no text", ref.Key, ref.Name)
	case ty == cty.String:
		return text.WithMarks(marks), nil
	}
	data := []byte(text.AsString())
	natural, err := ctyjson.ImpliedType(data)
	if err == nil {
		var v cty.Value
		if v, err = ctyjson.Unmarshal(data, natural); err == nil {
			v, err = convert.Convert(v, withOptional(ty))
		}
		if err == nil {
			return v.WithMarks(marks), nil
		}
	}
	return cty.NilVal, fmt.Errorf("the text under key %q of Secret %q must be JSON of type %s", ref.Key, ref.Name, ty.FriendlyName())
}

// withOptional returns a type whose objects may lack attributes: missing ones become null.
func withOptional(ty cty.Type) cty.Type {
	switch {
	case ty.IsListType():
		return cty.List(withOptional(ty.ElementType()))
	case ty.IsSetType():
		return cty.Set(withOptional(ty.ElementType()))
	case ty.IsMapType():
		return cty.Map(withOptional(ty.ElementType()))
	case ty.IsTupleType():
		types := make([]cty.Type, len(ty.TupleElementTypes()))
		for i, element := range ty.TupleElementTypes() {
			types[i] = withOptional(element)
		}
		return cty.Tuple(types)
	case ty.IsObjectType():
		types := map[string]cty.Type{}
		for name, attribute := range ty.AttributeTypes() {
			types[name] = withOptional(attribute)
		}
		return cty.ObjectWithOptionalAttrs(types, sortedKeys(types))
	}
	return ty
}

// argumentsOnly replaces computed attributes by null: the value of an expression may be a whole
// object of another resource, including its computed attributes.
func argumentsOnly(o *providerapi.Object, v cty.Value) cty.Value {
	result, err := cty.Transform(v, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if a := attributeAt(o, path); a != nil && !settable(a) {
			return cty.NullVal(v.Type()), nil
		}
		return v, nil
	})
	if err != nil {
		return v // unreachable: the function returns no errors
	}
	return result
}

// attributeAt returns the attribute at the end of a path into an object, or nil if the path ends
// elsewhere.
func attributeAt(o *providerapi.Object, path cty.Path) *providerapi.Attribute {
	var found *providerapi.Attribute
	for _, step := range path {
		name, ok := step.(cty.GetAttrStep)
		if !ok {
			found = nil
			continue
		}
		if o == nil {
			return nil
		}
		if found = o.Attribute(name.Name); found == nil {
			return nil
		}
		o = found.Nested
	}
	return found
}
