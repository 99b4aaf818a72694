package negotiation

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// A source makes random schemas and objects. It draws from few names and
// values, so that what it makes meets itself often.
type source struct{ *rand.Rand }

func newSource(seed, pair uint64) source { return source{rand.New(rand.NewPCG(seed, pair))} }

func (r source) chance(percent int) bool { return r.IntN(100) < percent }

func pick[T any](r source, from ...T) T { return from[r.IntN(len(from))] }

func ptr[T any](v T) *T { return &v }

func (r source) name() string { return pick(r, "a", "b", "c", "d", "x-y") }

// schema makes one that an API server takes as a CRD.
func (r source) schema() *props {
	for {
		root := &props{Type: "object", Properties: map[string]props{"spec": *r.node(3, "object")}}
		if r.chance(20) {
			root.Properties[r.name()] = *r.node(1, "")
		}
		if r.chance(5) {
			root.Properties["metadata"] = props{Type: "object", Properties: map[string]props{"name": {Type: "string", MaxLength: ptr(int64(r.IntN(8)))}}}
		}
		if r.chance(10) {
			root.Required = []string{"spec"}
		}
		r.rule(root)
		if refuses(root) == nil {
			return root
		}
	}
}

// related makes a second schema out of one, with a few changes.
func (r source) related(p *props) *props {
	for range 200 {
		next := p.DeepCopy()
		for range 1 + r.IntN(3) {
			nodes := nodesOf(next)
			r.change(nodes[r.IntN(len(nodes))])
		}
		next.Default = nil // of a whole object: nobody asks for it
		if refuses(next) == nil {
			return next
		}
	}
	return p.DeepCopy()
}

// small makes a schema of one property, so that whatever two of them say is
// about the same values.
func (r source) small() *props {
	for {
		p := &props{Type: "object", Properties: map[string]props{"a": *r.node(r.IntN(2), "")}}
		root := &props{Type: "object", Properties: map[string]props{"spec": *p}}
		if refuses(root) == nil {
			return root
		}
	}
}

// changed makes a second small schema that differs in what it says of the
// property.
func (r source) changed(p *props) *props {
	for range 200 {
		next := p.DeepCopy()
		for range 1 + r.IntN(2) {
			nodes := nodesOf(next)[2:]
			r.change(nodes[r.IntN(len(nodes))])
		}
		if refuses(next) == nil {
			return next
		}
	}
	return p.DeepCopy()
}

// nodesOf lists the nodes below the root, each a place to change.
func nodesOf(p *props) []*edit {
	var all []*edit
	var walk func(p *props, write func(props))
	walk = func(p *props, write func(props)) {
		all = append(all, &edit{p, write})
		for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
			child := p.Properties[name]
			walk(&child, func(q props) { p.Properties[name] = q; write(*p) })
		}
		if p.Items != nil && p.Items.Schema != nil {
			walk(p.Items.Schema, func(q props) { *p.Items.Schema = q; write(*p) })
		}
		if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
			walk(p.AdditionalProperties.Schema, func(q props) { *p.AdditionalProperties.Schema = q; write(*p) })
		}
	}
	walk(p, func(props) {})
	return all
}

type edit struct {
	node  *props
	write func(props)
}

// node makes a schema of a type, any if none is named.
func (r source) node(depth int, kind string) *props {
	p := &props{Type: kind}
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
			p.AnyOf = []props{{Type: "integer"}, {Type: "string"}}
		} else if r.chance(30) {
			p.AllOf = []props{{AnyOf: []props{{Type: "integer"}, {Type: "string"}}}, r.value(p)}
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

func (r source) fields(p *props, depth int) {
	switch n := r.IntN(20); {
	case n < 14:
		p.Properties = map[string]props{}
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
	for name := range p.Properties {
		if r.chance(25) {
			p.Required = append(p.Required, name)
		}
	}
	slices.Sort(p.Required)
	if r.chance(8) {
		p.XMapType = ptr(pick(r, "atomic", "granular"))
	}
}

func (r source) listType(p *props) {
	items := p.Items.Schema
	switch kind := pick(r, "", "", "atomic", "set", "map"); kind {
	case "":
	case "map":
		for name, f := range items.Properties {
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

// constrain adds constraints that fit the type, and now and then ones that
// do not.
func (r source) constrain(p *props) {
	v := r.value(p)
	p.Enum, p.Pattern, p.Format = v.Enum, v.Pattern, v.Format
	p.Minimum, p.Maximum, p.ExclusiveMinimum, p.ExclusiveMaximum, p.MultipleOf = v.Minimum, v.Maximum, v.ExclusiveMinimum, v.ExclusiveMaximum, v.MultipleOf
	p.MinLength, p.MaxLength, p.MinItems, p.MaxItems = v.MinLength, v.MaxLength, v.MinItems, v.MaxItems
	p.MinProperties, p.MaxProperties = v.MinProperties, v.MaxProperties
}

// value makes constraints on values, without structure.
func (r source) value(p *props) props {
	var v props
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

func (r source) stringValue(v *props) {
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

func (r source) numberValue(v *props, kind string) {
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

func (r source) some(values ...string) []apiextensionsv1.JSON {
	var all []apiextensionsv1.JSON
	for _, v := range values {
		if r.chance(50) {
			all = append(all, apiextensionsv1.JSON{Raw: []byte(v)})
		}
	}
	return all
}

// combine adds allOf, anyOf, oneOf or not.
func (r source) combine(p *props) {
	part := func() props {
		v := r.value(p)
		if len(p.Properties) > 0 && r.chance(60) {
			names := slices.Sorted(maps.Keys(p.Properties))
			name := names[r.IntN(len(names))]
			if r.chance(50) {
				v = props{Required: []string{name}}
			} else {
				f := p.Properties[name]
				v = props{Properties: map[string]props{name: r.value(&f)}}
			}
		}
		if p.Items != nil && p.Items.Schema != nil && r.chance(40) {
			v = props{Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: ptr(r.value(p.Items.Schema))}}
		}
		return v
	}
	switch r.IntN(4) {
	case 0:
		p.AllOf = append(p.AllOf, part())
	case 1:
		p.AnyOf = []props{part(), part()}
	case 2:
		p.OneOf = []props{part(), part()}
	case 3:
		p.Not = ptr(part())
	}
}

func (r source) defaultFor(p *props) *apiextensionsv1.JSON {
	raw, err := json.Marshal(r.valueFor(p, 0))
	if err != nil {
		panic(err)
	}
	return &apiextensionsv1.JSON{Raw: raw}
}

// rule adds a rule that may or may not compile; who asks for a schema gets
// one that does.
func (r source) rule(p *props) {
	if !r.chance(6) {
		return
	}
	var texts []string
	for name, f := range p.Properties {
		if name == "x-y" {
			texts = append(texts, "has(self.x__dash__y)")
			continue
		}
		s := "self." + name
		texts = append(texts, "!has("+s+")", "has("+s+")", "self == self")
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
		for other := range p.Properties {
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
		slices.Sort(texts)
		p.XValidations = append(p.XValidations, apiextensionsv1.ValidationRule{Rule: pick(r, texts...)})
	}
}
