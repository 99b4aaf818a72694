package schema

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// A Resolver evaluates expressions and reads Secrets.
type Resolver interface {
	// Expression evaluates a string with ${…} in a field. The value may be unknown. It is marked
	// providerapi.Sensitive if it depends on something sensitive.
	Expression(at *field.Path, text string) (cty.Value, error)
	// Secret returns the text under a key of a Secret, or an unknown string. Errors do not quote
	// it.
	Secret(at *field.Path, ref SecretKeyRef) (cty.Value, error)
}

// SecretKeyRef refers to a key of a Secret in the object's namespace.
type SecretKeyRef struct{ Name, Key string }

// Checks configure validation.
type Checks struct {
	// Partial allows required arguments to be absent, for objects that are imported or only read.
	Partial bool
}

// Config decodes arguments as the provider's value, of the block's implied type. Absent arguments
// are null, and there are as many blocks as in the arguments. Values are marked providerapi.Sensitive
// where the block or the resolver says so. It returns all errors at once, or a value. Required
// arguments may be absent: Validate and the provider check for those.
func Config(block *providerapi.Block, at *field.Path, arguments map[string]any, resolve Resolver) (cty.Value, field.ErrorList) {
	r := &reader{resolve: resolve, checks: Checks{Partial: true}}
	values := r.fields(at, block, arguments)
	if len(r.errs) > 0 {
		return cty.NilVal, r.errs
	}
	if HasSensitive(block) {
		for name := range arguments { // absent arguments are not sensitive
			values[name] = markField(block, name, values[name])
		}
	}
	return cty.ObjectVal(values), nil
}

// A reader decodes JSON and collects errors. It always returns a value of the requested type; after
// an error, that is null.
type reader struct {
	resolve Resolver
	checks  Checks
	errs    field.ErrorList
}

func (r *reader) addError(err *field.Error) { r.errs = append(r.errs, err) }

func (r *reader) block(at *field.Path, b *providerapi.Block, given map[string]any) cty.Value {
	return cty.ObjectVal(r.fields(at, b, given))
}

func (r *reader) fields(at *field.Path, b *providerapi.Block, given map[string]any) map[string]cty.Value {
	values := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for _, name := range sortedKeys(given) {
		if b.Attribute(name) == nil && b.Nested(name) == nil {
			r.addError(field.Forbidden(at.Child(name), unknownField(name, argumentNames(b))))
		}
	}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		if of := given[a.Name]; of != nil || a.Required {
			values[a.Name] = r.attribute(at.Child(a.Name), a, of, false)
		} else {
			values[a.Name] = cty.NullVal(a.Type) // the common case, which cannot fail and needs no path
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		values[n.Name] = r.blocks(at.Child(n.Name), n, given[n.Name])
	}
	return values
}

// attribute decodes one argument. Secret is true within a sensitive argument.
func (r *reader) attribute(at *field.Path, a *providerapi.Attribute, given any, secret bool) cty.Value {
	null := cty.NullVal(a.Type)
	switch {
	case given == nil:
		if a.Required && !r.checks.Partial {
			r.addError(field.Required(at, "the provider requires it"))
		}
		return null
	case !settable(a):
		r.addError(field.Forbidden(at, "is computed by the provider and shown in status.attributes; remove it"))
		return null
	}
	secret = secret || isSensitive(a)
	if a.Nested == nil {
		return r.value(at, a.Type, given, secret)
	}
	if v, done := r.indirect(at, a.Type, given, secret); done {
		return argumentsOnly(a.Nested, v)
	}
	return r.objects(at, a.Nested, given, secret)
}

// objects decodes an attribute with nested attributes.
func (r *reader) objects(at *field.Path, o *providerapi.Object, given any, secret bool) cty.Value {
	one := func(at *field.Path, given any) cty.Value { return r.object(at, o, given, secret) }
	single := objectType(o)
	switch o.Nesting {
	case providerapi.NestingList, providerapi.NestingSet:
		list, ok := given.([]any)
		if !ok {
			r.addError(typeError(at, given, "must be a list of objects", secret))
			return cty.NullVal(o.ImpliedType())
		}
		elements := make([]cty.Value, len(list))
		for i, item := range list {
			elements[i] = one(at.Index(i), item)
		}
		if o.ImpliedType() == cty.DynamicPseudoType {
			return cty.TupleVal(elements)
		}
		return r.sequence(at, o.Nesting == providerapi.NestingSet, single, elements)
	case providerapi.NestingMap:
		object, ok := given.(map[string]any)
		if !ok {
			r.addError(typeError(at, given, "must be an object with a name for each entry", secret))
			return cty.NullVal(o.ImpliedType())
		}
		elements := make(map[string]cty.Value, len(object))
		for _, key := range sortedKeys(object) {
			elements[key] = one(at.Key(key), object[key])
		}
		if o.ImpliedType() == cty.DynamicPseudoType {
			return cty.ObjectVal(elements)
		}
		return r.mapping(at, single, elements)
	}
	return one(at, given)
}

// objectType returns the type of a single object of a nested attribute.
func objectType(o *providerapi.Object) cty.Type {
	single := providerapi.Object{Attributes: o.Attributes, Nesting: providerapi.NestingSingle}
	return single.ImpliedType()
}

func (r *reader) object(at *field.Path, o *providerapi.Object, given any, secret bool) cty.Value {
	single := objectType(o)
	if v, done := r.indirect(at, single, given, secret); done {
		return argumentsOnly(o, v)
	}
	fields, ok := given.(map[string]any)
	if !ok {
		if given != nil {
			r.addError(typeError(at, given, "must be an object", secret))
		}
		return cty.NullVal(single)
	}
	var names []string
	values := make(map[string]cty.Value, len(o.Attributes))
	for i := range o.Attributes {
		a := &o.Attributes[i]
		if settable(a) {
			names = append(names, a.Name)
		}
		values[a.Name] = r.attribute(at.Child(a.Name), a, fields[a.Name], secret)
	}
	for _, name := range sortedKeys(fields) {
		if o.Attribute(name) == nil {
			r.addError(field.Forbidden(at.Child(name), unknownField(name, names)))
		}
	}
	return cty.ObjectVal(values)
}

// typeError returns an error about the type of a value. It does not quote the value.
func typeError(at *field.Path, given any, must string, secret bool) *field.Error {
	if secret {
		must += ", or " + secretRemedy
	}
	if _, reference := secretKeyRefIn(given); reference && !secret {
		must += "; only sensitive arguments accept a secretKeyRef, because all other values are shown"
	}
	return field.TypeInvalid(at, jsonTypeOf(given), must)
}

func jsonTypeOf(given any) string {
	switch given.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return "a number"
}
