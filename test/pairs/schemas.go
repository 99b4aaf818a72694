// Package pairs generates random pairs of CRD schemas, and objects with values near
// the differences of the two. The same seed and pair number give the same result.
package pairs

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A Generator generates random schemas and objects. It uses few names and values, so that
// schemas and objects often share them.
type Generator struct {
	*rand.Rand
	near *near
}

// New returns the generator of one pair. It is deterministic.
func New(seed, pair uint64) Generator { return Generator{rand.New(rand.NewPCG(seed, pair)), &near{}} }

// Pair generates two schemas, mostly versions of one schema, as clusters have them. The
// objects generated afterwards have values near the differences.
func (r Generator) Pair() (a, b *Props) {
	switch n := r.IntN(20); {
	case n < 8:
		a, b = r.Themed()
	case n < 12:
		base := r.small()
		a, b = r.changed(base), r.changed(base)
	case n < 15:
		a = r.schema()
		b = r.related(a)
	case n < 18:
		base := r.schema()
		a, b = r.related(base), r.related(base)
	default:
		a, b = r.schema(), r.schema()
	}
	r.near.to(a)
	r.near.to(b)
	return a, b
}

func (r Generator) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r Generator, from ...T) T { return from[r.IntN(len(from))] }

func ptr[T any](v T) *T { return &v }

func (r Generator) name() string { return pick(r, "a", "b", "c", "d", "x-y") }

// Props is a schema as a CRD holds it.
type Props = apiextensionsv1.JSONSchemaProps

// schema returns a schema that an API server accepts in a CRD.
func (r Generator) schema() *Props {
	for {
		root := &Props{Type: "object", Properties: map[string]Props{"spec": *r.node(3, "object")}}
		if r.chance(20) {
			root.Properties[r.name()] = *r.node(1, "")
		}
		if r.chance(5) {
			root.Properties["metadata"] = Props{Type: "object", Properties: map[string]Props{"name": {Type: "string", MaxLength: ptr(int64(r.IntN(8)))}}}
		}
		if r.chance(10) {
			root.Required = []string{"spec"}
		}
		r.rule(root)
		if Validate(root) == nil {
			return root
		}
	}
}

// related returns a copy of a schema with a few changes.
func (r Generator) related(p *Props) *Props {
	for range 200 {
		next := p.DeepCopy()
		for range 1 + r.IntN(3) {
			nodes := nodesOf(next)
			r.change(nodes[r.IntN(len(nodes))])
		}
		next.Default = nil // a default of the whole object is never used
		if Validate(next) == nil {
			return next
		}
	}
	return p.DeepCopy()
}

// small returns a schema with one property, so that the constraints of two such schemas
// concern the same values.
func (r Generator) small() *Props {
	for {
		p := &Props{Type: "object", Properties: map[string]Props{"a": *r.node(r.IntN(2), "")}}
		root := &Props{Type: "object", Properties: map[string]Props{"spec": *p}}
		if Validate(root) == nil {
			return root
		}
	}
}

// changed returns a copy of a small schema with other constraints on the property.
func (r Generator) changed(p *Props) *Props {
	for range 200 {
		next := p.DeepCopy()
		for range 1 + r.IntN(2) {
			nodes := nodesOf(next)[2:]
			r.change(nodes[r.IntN(len(nodes))])
		}
		if Validate(next) == nil {
			return next
		}
	}
	return p.DeepCopy()
}

// nodesOf lists the nodes below the root, each of which can be changed.
func nodesOf(p *Props) []*edit {
	var all []*edit
	var walk func(p *Props, write func(Props))
	walk = func(p *Props, write func(Props)) {
		all = append(all, &edit{p, write})
		for _, name := range sorted(p.Properties) {
			child := p.Properties[name]
			walk(&child, func(q Props) { p.Properties[name] = q; write(*p) })
		}
		if p.Items != nil && p.Items.Schema != nil {
			walk(p.Items.Schema, func(q Props) { *p.Items.Schema = q; write(*p) })
		}
		if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
			walk(p.AdditionalProperties.Schema, func(q Props) { *p.AdditionalProperties.Schema = q; write(*p) })
		}
	}
	walk(p, func(Props) {})
	return all
}

func sorted(properties map[string]Props) []string { return slices.Sorted(maps.Keys(properties)) }

type edit struct {
	node  *Props
	write func(Props)
}

// node returns a schema of a type, or of any type if none is named.
func (r Generator) node(depth int, kind string) *Props {
	p := &Props{Type: kind}
	if kind == "" {
		p.Type = pick(r, "string", "string", "integer", "number", "boolean", "object", "object", "array", "array", "any", "int-or-string")
	}
	if depth == 0 && (p.Type == "object" || p.Type == "array") {
		p.Type = "string"
	}
	switch p.Type {
	case "any":
		p.Type, p.XPreserveUnknownFields = "", ptr(true)
	case "int-or-string":
		p.Type, p.XIntOrString = "", true
		if r.chance(30) {
			p.AnyOf = []Props{{Type: "integer"}, {Type: "string"}}
		} else if r.chance(30) {
			p.AllOf = []Props{{AnyOf: []Props{{Type: "integer"}, {Type: "string"}}}, r.value(p)}
		}
	case "object":
		r.fields(p, depth)
	case "array":
		p.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: r.node(depth-1, "")}
		r.listType(p)
	}
	if r.chance(60) {
		r.constrain(p)
	}
	if r.chance(15) {
		r.combine(p)
	}
	if r.chance(8) {
		p.Nullable = true
	}
	if r.chance(12) {
		p.Default = r.defaultFor(p)
	}
	r.rule(p)
	return p
}

func (r Generator) fields(p *Props, depth int) {
	switch n := r.IntN(20); {
	case n < 14:
		p.Properties = map[string]Props{}
		for range 1 + r.IntN(3) {
			p.Properties[r.name()] = *r.node(depth-1, "")
		}
		if r.chance(15) {
			p.XPreserveUnknownFields = ptr(true)
		}
		if r.chance(5) {
			p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
		}
		if r.chance(5) {
			p.XEmbeddedResource = true
		}
	case n < 17:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: r.node(depth-1, "")}
	case n < 18:
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: r.chance(70)}
	default:
		p.XPreserveUnknownFields = ptr(true)
		p.XEmbeddedResource = r.chance(40)
	}
	for _, name := range sorted(p.Properties) {
		if r.chance(25) {
			p.Required = append(p.Required, name)
		}
	}
	if r.chance(8) {
		p.XMapType = ptr(pick(r, "atomic", "granular"))
	}
}

func (r Generator) listType(p *Props) {
	items := p.Items.Schema
	switch kind := pick(r, "", "", "atomic", "set", "map"); kind {
	case "":
	case "map":
		for _, name := range sorted(items.Properties) {
			f := items.Properties[name]
			if f.Type == "string" || f.Type == "integer" {
				f.Nullable, items.Nullable = false, false
				items.Properties[name] = f
				if !slices.Contains(items.Required, name) {
					items.Required = append(items.Required, name)
				}
				p.XListType, p.XListMapKeys = ptr(kind), []string{name}
				return
			}
		}
	default:
		p.XListType = ptr(kind)
	}
}

// constrain adds constraints, mostly ones that apply to the type.
func (r Generator) constrain(p *Props) {
	v := r.value(p)
	p.Enum, p.Pattern, p.Format = v.Enum, v.Pattern, v.Format
	p.Minimum, p.Maximum, p.ExclusiveMinimum, p.ExclusiveMaximum, p.MultipleOf = v.Minimum, v.Maximum, v.ExclusiveMinimum, v.ExclusiveMaximum, v.MultipleOf
	p.MinLength, p.MaxLength, p.MinItems, p.MaxItems = v.MinLength, v.MaxLength, v.MinItems, v.MaxItems
	p.MinProperties, p.MaxProperties = v.MinProperties, v.MaxProperties
}

// value returns constraints on scalar values.
func (r Generator) value(p *Props) Props {
	var v Props
	kind := p.Type
	if p.XIntOrString {
		kind = pick(r, "integer", "string")
	}
	if kind == "" || r.chance(3) {
		kind = pick(r, "string", "integer", "number", "array", "object", "boolean")
	}
	for range 1 + r.IntN(2) {
		switch kind {
		case "string":
			r.stringValue(&v)
		case "integer", "number":
			r.numberValue(&v, kind)
		case "array":
			if r.chance(50) {
				v.MinItems = ptr(int64(r.IntN(3)))
			} else {
				v.MaxItems = ptr(int64(1 + r.IntN(3)))
			}
		case "object":
			if r.chance(50) {
				v.MinProperties = ptr(int64(r.IntN(3)))
			} else {
				v.MaxProperties = ptr(int64(1 + r.IntN(4)))
			}
		case "boolean":
			if r.chance(30) {
				v.Enum = []apiextensionsv1.JSON{{Raw: []byte("true")}}
			}
		}
	}
	return v
}

func (r Generator) stringValue(v *Props) {
	switch r.IntN(5) {
	case 0:
		v.Enum = r.some(`"red"`, `"green"`, `"blue"`, `"A"`, `""`)
	case 1:
		v.MinLength = ptr(int64(r.IntN(4)))
	case 2:
		v.MaxLength = ptr(int64(r.IntN(10)))
	case 3:
		v.Pattern = pick(r, "^[a-z]+$", "^[a-z0-9-]*$", "e", "^.{2}")
	case 4:
		v.Format = pick(r, "date", "ipv4", "uuid", "email", "duration", "byte", "quantity", "date-time")
	}
}

func (r Generator) numberValue(v *Props, kind string) {
	bound := func() *float64 { return ptr(pick(r, -2.0, 0, 1, 3, 5, 5.5, 5.2, 5.7, 8)) }
	switch r.IntN(5) {
	case 0:
		v.Minimum, v.ExclusiveMinimum = bound(), r.chance(30)
	case 1:
		v.Maximum, v.ExclusiveMaximum = bound(), r.chance(30)
	case 2:
		v.Enum = r.some("1", "2", "5", "5.5", "65")
	case 3:
		v.MultipleOf = ptr(pick(r, 1.0, 2, 3, 0.5, 2.5))
	case 4:
		v.Format = pick(r, "int32", "int64")
		if kind == "number" {
			v.Format = pick(r, "float", "double")
		}
	}
}

// combine adds allOf, anyOf, oneOf or not.
func (r Generator) combine(p *Props) {
	part := func() Props {
		v := r.value(p)
		if len(p.Properties) > 0 && r.chance(60) {
			names := sorted(p.Properties)
			name := names[r.IntN(len(names))]
			if r.chance(50) {
				v = Props{Required: []string{name}}
			} else {
				f := p.Properties[name]
				v = Props{Properties: map[string]Props{name: r.value(&f)}}
			}
		}
		if p.Items != nil && p.Items.Schema != nil && r.chance(40) {
			v = Props{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: ptr(r.value(p.Items.Schema))}}
		}
		return v
	}
	switch r.IntN(4) {
	case 0:
		p.AllOf = append(p.AllOf, part())
	case 1:
		p.AnyOf = []Props{part(), part()}
	case 2:
		p.OneOf = []Props{part(), part()}
	case 3:
		p.Not = ptr(part())
	}
}

func (r Generator) defaultFor(p *Props) *apiextensionsv1.JSON {
	raw, err := json.Marshal(r.valueFor(p, 0))
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: raw}
}

// rule adds a CEL rule that may not compile. The callers discard invalid schemas.
func (r Generator) rule(p *Props) {
	if !r.chance(6) {
		return
	}
	var texts []string
	for _, name := range sorted(p.Properties) {
		f := p.Properties[name]
		if name == "x-y" {
			texts = append(texts, "has(self.x__dash__y)")
			continue
		}
		s := "self." + name
		texts = append(texts, "!has("+s+")", "has("+s+")", "self == self", "has(oldSelf."+name+") == has("+s+")")
		switch {
		case f.XIntOrString:
			texts = append(texts, fmt.Sprintf("!has(%s) || type(%s) == int", s, s))
		case f.Type == "string":
			texts = append(texts, fmt.Sprintf("!has(%s) || size(%s) < 3", s, s))
		case f.Type == "integer":
			texts = append(texts, fmt.Sprintf("!has(%s) || %s / 2 == 1", s, s), fmt.Sprintf("!has(%s) || %s > 1", s, s))
		case f.Type == "number":
			texts = append(texts, fmt.Sprintf("!has(%s) || %s / 2.0 == 1.5", s, s))
		case f.Type == "array":
			texts = append(texts, fmt.Sprintf("!has(%s) || size(%s) < 2", s, s), fmt.Sprintf("!has(%s) || %s == %s", s, s, s))
		case f.Type == "object":
			texts = append(texts, fmt.Sprintf("!has(%s) || !has(%s.a)", s, s), fmt.Sprintf("!has(%s) || has(%s.b)", s, s))
		}
		for _, other := range sorted(p.Properties) {
			if other != name && other != "x-y" {
				texts = append(texts, fmt.Sprintf("!has(%s) || !has(self.%s) || %s == self.%s", s, other, s, other))
			}
		}
	}
	switch p.Type {
	case "string":
		texts = append(texts, "size(self) < 4", "self != 'red'")
	case "integer":
		texts = append(texts, "self < 6")
	case "number":
		texts = append(texts, "self < 5.5")
	case "array":
		texts = append(texts, "size(self) < 3", "self.all(x, self.exists_one(y, x == y))")
	case "object":
		if p.AdditionalProperties != nil {
			texts = append(texts, "self.all(k, k != 'a')", "size(self) < 2")
		}
	}
	if len(texts) > 0 {
		p.XValidations = append(p.XValidations, apiextensionsv1.ValidationRule{Rule: pick(r, texts...)})
	}
}
