package schema

import (
	"encoding/json"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

type jsonValue = apiextensionsv1.JSON

// decoded returns a value as the API server holds it, with integers distinct from floats. Invalid
// JSON is nil, like a null.
func decoded(v jsonValue) any {
	var value any
	if len(v.Raw) == 0 || utiljson.Unmarshal(v.Raw, &value) != nil {
		return nil
	}
	return value
}

func contains(list []jsonValue, v jsonValue) bool {
	return slices.ContainsFunc(list, func(x jsonValue) bool { return sameValue(decoded(x), decoded(v)) })
}

// sameValue compares two values. 1 and 1.0 differ for a validator.
func sameValue(a, b any) bool { return reflect.DeepEqual(a, b) }

func hasNull(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, x := range v {
			if x == nil || hasNull(x) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(x any) bool { return x == nil || hasNull(x) })
	}
	return false
}

// equal compares schemas by their JSON in a CRD.
func equal(a, b *Props) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// accepts reports whether the API server would accept value as a default of p, ignoring rules.
func accepts(p *Props, value any) bool { return !hasOddFormat(p) && valid(p, value) }

// valid reports whether the API server would accept value in an object and keep all of it, ignoring
// rules. It uses the API server's own validator. It returns false for embedded resources, because
// it cannot check their metadata.
func valid(p *Props, value any) bool {
	if hasNull(value) || hasEmbedded(p) || len(unknown(location{}, p, value)) > 0 || !listsHold(p, value) {
		return false
	}
	validator := validate.NewSchemaValidator(validated(p), nil, "", strfmt.Default)
	return validator.Validate(runtime.DeepCopyJSONValue(value)).IsValid()
}

// validated converts p for the validator, as the API server does.
func validated(p *Props) *spec.Schema {
	out := &spec.Schema{SchemaProps: spec.SchemaProps{
		Nullable: p.Nullable, Required: p.Required, Pattern: p.Pattern, MultipleOf: p.MultipleOf, UniqueItems: p.UniqueItems,
		Maximum: p.Maximum, ExclusiveMaximum: p.ExclusiveMaximum, Minimum: p.Minimum, ExclusiveMinimum: p.ExclusiveMinimum,
		MaxLength: p.MaxLength, MinLength: p.MinLength, MaxItems: p.MaxItems, MinItems: p.MinItems,
		MaxProperties: p.MaxProperties, MinProperties: p.MinProperties,
		AllOf: validatedAll(p.AllOf), AnyOf: validatedAll(p.AnyOf), OneOf: validatedAll(p.OneOf),
	}}
	if p.Type != "" {
		out.Type = spec.StringOrArray{p.Type}
	}
	if p.XIntOrString {
		out.Type = spec.StringOrArray{"integer", "string"}
	}
	if formatOf(p) != "" {
		out.Format = p.Format
	}
	for _, v := range p.Enum {
		out.Enum = append(out.Enum, decoded(v))
	}
	if p.Not != nil {
		out.Not = validated(p.Not)
	}
	if p.Items != nil && p.Items.Schema != nil {
		out.Items = &spec.SchemaOrArray{Schema: validated(p.Items.Schema)}
	}
	for name, q := range p.Properties {
		out.SetProperty(name, *validated(&q))
	}
	if p.AdditionalProperties != nil {
		out.AdditionalProperties = &spec.SchemaOrBool{Allows: p.AdditionalProperties.Allows}
		if p.AdditionalProperties.Schema != nil {
			out.AdditionalProperties.Schema = validated(p.AdditionalProperties.Schema)
		}
	}
	return out
}

func validatedAll(list []Props) []spec.Schema {
	var out []spec.Schema
	for i := range list {
		out = append(out, *validated(&list[i]))
	}
	return out
}

// below returns the schema of one entry of an object, or nil.
func below(p *Props, name string) *Props {
	if q, ok := p.Properties[name]; ok {
		return &q
	}
	if p.AdditionalProperties != nil {
		return p.AdditionalProperties.Schema
	}
	return nil
}

// filled returns a copy of value with the defaults that p has below it.
func filled(p *Props, value any) any {
	value = runtime.DeepCopyJSONValue(value)
	fill(p, value)
	return value
}

func fill(p *Props, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, q := range p.Properties {
			if _, ok := v[name]; !ok && defaultOf(&q) != nil {
				v[name] = defaultOf(&q)
			}
		}
		for name, x := range v {
			if q := below(p, name); q != nil {
				fill(q, x)
			}
		}
	case []any:
		if p.Items != nil && p.Items.Schema != nil {
			for _, x := range v {
				fill(p.Items.Schema, x)
			}
		}
	}
}

// listsHold reports whether lists that are sets or maps have no duplicate entries.
func listsHold(p *Props, value any) bool {
	switch v := value.(type) {
	case map[string]any:
		for name, x := range v {
			if q := below(p, name); q != nil && !listsHold(q, x) {
				return false
			}
		}
	case []any:
		seen := map[string]bool{}
		for _, x := range v {
			key, err := json.Marshal(keyOf(p, x))
			if err != nil || listTypeOf(p) != "atomic" && seen[string(key)] {
				return false
			}
			seen[string(key)] = true
			if p.Items != nil && p.Items.Schema != nil && !listsHold(p.Items.Schema, x) {
				return false
			}
		}
	}
	return true
}

func keyOf(p *Props, item any) any {
	m, ok := item.(map[string]any)
	if listTypeOf(p) != "map" || !ok {
		return item
	}
	key := map[string]any{}
	for _, name := range p.XListMapKeys {
		if v, has := m[name]; has {
			key[name] = v
		}
	}
	return key
}

// hasOddFormat: when an API server checks defaults it applies every format, even one that is only
// an annotation or does not match the type.
func hasOddFormat(p *Props) bool {
	odd := func(q *Props) bool {
		return q.Format != "" && (formatOf(q) == "" || baseOf(q) == intOrString || baseOf(q) == anything)
	}
	return odd(p) || slices.ContainsFunc(combined(p), hasOddFormat) || anyBelow(p, hasOddFormat)
}

func hasEmbedded(p *Props) bool { return p.XEmbeddedResource || anyBelow(p, hasEmbedded) }
