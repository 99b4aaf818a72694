package schema

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// A Resolver tells what stands behind that which is no literal.
type Resolver interface {
	// Expression gives the value of a string with ${…} in it, which stands at a field. The value may be unknown, and is
	// marked contract.Sensitive if it came of something that is.
	Expression(at *field.Path, text string) (cty.Value, error)
	// Secret gives the text under a key of a Secret, or an unknown string. Errors do not quote it.
	Secret(at *field.Path, ref SecretKeyRef) (cty.Value, error)
}

// SecretKeyRef names a key of a Secret in the object's namespace.
type SecretKeyRef struct{ Name, Key string }

// Checks is what is asked of arguments.
type Checks struct {
	// Partial is of an object that is only looked at, or is to be imported: what is required need not be there.
	Partial bool
}

// Config makes the provider's value of arguments: of the block's implied type, null for what is absent, with as many
// blocks as are written, and marked contract.Sensitive where block or resolver says so. It says all that is
// wrong at once, and then gives no value. What is required need not be there: Validate asks for that, and a provider too.
func Config(block *contract.Block, at *field.Path, arguments map[string]any, resolve Resolver) (cty.Value, field.ErrorList) {
	r := &reader{resolve: resolve, checks: Checks{Partial: true}}
	values := r.fields(at, block, arguments)
	if len(r.errs) > 0 {
		return cty.NilVal, r.errs
	}
	if hasSensitive(block) {
		for name := range arguments { // nothing is secret of what is not there
			values[name] = markField(block, name, values[name])
		}
	}
	return cty.ObjectVal(values), nil
}

// A reader makes values of JSON and collects complaints. Whatever the JSON is, a value is of the type that was
// asked for; where there was a complaint it is null.
type reader struct {
	resolve Resolver
	checks  Checks
	errs    field.ErrorList
}

func (r *reader) complain(err *field.Error) { r.errs = append(r.errs, err) }

func (r *reader) block(at *field.Path, b *contract.Block, given map[string]any) cty.Value {
	return cty.ObjectVal(r.fields(at, b, given))
}

func (r *reader) fields(at *field.Path, b *contract.Block, given map[string]any) map[string]cty.Value {
	values := make(map[string]cty.Value, len(b.Attributes)+len(b.Blocks))
	for _, name := range sortedKeys(given) {
		if b.Attribute(name) == nil && b.Nested(name) == nil {
			r.complain(field.Forbidden(at.Child(name), unknownName(name, argumentNames(b))))
		}
	}
	for i := range b.Attributes {
		a := &b.Attributes[i]
		if of := given[a.Name]; of != nil || a.Required {
			values[a.Name] = r.attribute(at.Child(a.Name), a, of, false)
		} else {
			values[a.Name] = cty.NullVal(a.Type) // most are, and nothing can be wrong with them: they need no path
		}
	}
	for i := range b.Blocks {
		n := &b.Blocks[i]
		values[n.Name] = r.blocks(at.Child(n.Name), n, given[n.Name])
	}
	return values
}

// attribute reads one argument. Secret is of those within something sensitive.
func (r *reader) attribute(at *field.Path, a *contract.Attribute, given any, secret bool) cty.Value {
	null := cty.NullVal(a.Type)
	switch {
	case given == nil:
		if a.Required && !r.checks.Partial {
			r.complain(field.Required(at, "the provider needs it"))
		}
		return null
	case !settable(a):
		r.complain(field.Forbidden(at, "is computed by the provider and stands in status.attributes; leave it out"))
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

// objects reads an attribute that has attributes itself.
func (r *reader) objects(at *field.Path, o *contract.Object, given any, secret bool) cty.Value {
	one := func(at *field.Path, given any) cty.Value { return r.object(at, o, given, secret) }
	single := objectType(o)
	switch o.Nesting {
	case contract.NestingList, contract.NestingSet:
		list, ok := given.([]any)
		if !ok {
			r.complain(mistyped(at, given, "must be a list of objects", secret))
			return cty.NullVal(o.ImpliedType())
		}
		elements := make([]cty.Value, len(list))
		for i, item := range list {
			elements[i] = one(at.Index(i), item)
		}
		if o.ImpliedType() == cty.DynamicPseudoType {
			return cty.TupleVal(elements)
		}
		return r.sequence(at, o.Nesting == contract.NestingSet, single, elements)
	case contract.NestingMap:
		object, ok := given.(map[string]any)
		if !ok {
			r.complain(mistyped(at, given, "must be an object with a name for each entry", secret))
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

// objectType is the type of one object of those that an attribute has.
func objectType(o *contract.Object) cty.Type {
	single := contract.Object{Attributes: o.Attributes, Nesting: contract.NestingSingle}
	return single.ImpliedType()
}

func (r *reader) object(at *field.Path, o *contract.Object, given any, secret bool) cty.Value {
	single := objectType(o)
	if v, done := r.indirect(at, single, given, secret); done {
		return argumentsOnly(o, v)
	}
	fields, ok := given.(map[string]any)
	if !ok {
		if given != nil {
			r.complain(mistyped(at, given, "must be an object", secret))
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
			r.complain(field.Forbidden(at.Child(name), unknownName(name, names)))
		}
	}
	return cty.ObjectVal(values)
}

// mistyped is a complaint about the type of what is given, which it does not quote.
func mistyped(at *field.Path, given any, must string, secret bool) *field.Error {
	if secret {
		must += ", or " + secretRemedy
	}
	if _, reference := secretKeyRefIn(given); reference && !secret {
		must += "; only what the provider calls sensitive takes a secretKeyRef, because all else is shown"
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
