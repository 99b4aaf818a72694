package schema

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/atoll-dev/atoll/infra/contract"
)

const (
	secretKeyRef     = "secretKeyRef"
	secretKeyRefName = "name"
	secretKeyRefKey  = "key"
)

const secretRemedy = "{secretKeyRef: {name: …, key: …}} that names a Secret of the namespace, or take it from another object with ${…}"

// indirect reads what stands for a value without being one, if given is that.
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

// secretKeyRefIn finds what {secretKeyRef: …} holds. Nothing else stands beside it.
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
		r.complain(field.Invalid(at, text, fmt.Sprintf("what this gives does not fit: %s", err)))
		return cty.NullVal(ty)
	}
	return converted
}

func (r *reader) evaluated(at *field.Path, text string) (cty.Value, bool) {
	v, err := r.resolve.Expression(at, text)
	if err != nil {
		r.complain(field.Invalid(at, text, err.Error()))
		return cty.NilVal, false
	}
	return v, true
}

func (r *reader) secret(at *field.Path, ty cty.Type, given any) cty.Value {
	at = at.Child(secretKeyRef)
	ref, err := readSecretKeyRef(given)
	if err != nil {
		r.complain(field.Forbidden(at, err.Error()))
		return cty.NullVal(ty)
	}
	text, err := r.resolve.Secret(at, ref)
	if err == nil {
		text, err = secretValue(text, ty, ref)
	}
	if err != nil {
		r.complain(field.Forbidden(at, err.Error()))
		return cty.NullVal(ty)
	}
	return text.Mark(contract.Sensitive)
}

func readSecretKeyRef(given any) (SecretKeyRef, error) {
	fields, _ := given.(map[string]any)
	name, _ := fields[secretKeyRefName].(string)
	key, _ := fields[secretKeyRefKey].(string)
	if name == "" || key == "" || len(fields) != 2 {
		return SecretKeyRef{}, errors.New("must have the name of a Secret and a key in it, and nothing else")
	}
	return SecretKeyRef{Name: name, Key: key}, nil
}

// secretValue makes a value of the text under a key: of a string it is the text itself, of anything else JSON. No
// complaint quotes it.
func secretValue(text cty.Value, ty cty.Type, ref SecretKeyRef) (cty.Value, error) {
	text, marks := text.Unmark()
	switch {
	case !text.IsKnown():
		return cty.UnknownVal(ty).WithMarks(marks), nil
	case text.IsNull() || text.Type() != cty.String:
		return cty.NilVal, fmt.Errorf("there is no text under the key %q of Secret %q", ref.Key, ref.Name)
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
	return cty.NilVal, fmt.Errorf("the text under the key %q of Secret %q must be JSON of the type %s", ref.Key, ref.Name, ty.FriendlyName())
}

// withOptional is a type whose objects need not have all of their attributes: those that are missing become null.
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

// argumentsOnly makes null what the provider computes: an expression may give a whole object of another's, with what was
// computed for that.
func argumentsOnly(o *contract.Object, v cty.Value) cty.Value {
	result, err := cty.Transform(v, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if a := attributeAt(o, path); a != nil && !settable(a) {
			return cty.NullVal(v.Type()), nil
		}
		return v, nil
	})
	if err != nil {
		return v // the function above gives none
	}
	return result
}

// attributeAt finds the attribute that a path into an object ends at, nil if it ends elsewhere.
func attributeAt(o *contract.Object, path cty.Path) *contract.Attribute {
	var found *contract.Attribute
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
