package pairs

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Themed generates two small schemas that differ in details of one feature, such as the
// bounds of numbers, the keys of a list or defaults. Among random schemas such pairs are
// rare, and they are the ones that reveal errors in the comparison.
func (r Generator) Themed() (a, b *Props) {
	themes := []func() (Props, Props){
		r.numbers, r.enums, r.formats, r.lengths, r.lists, r.counted, r.preserving, r.unlisted, r.nulls, r.defaults, r.ownDefaults, r.ownDefaults,
		r.combined, r.embedded, r.ruled, r.transitions, r.types,
	}
	theme := themes[r.IntN(len(themes))]
	for {
		one, other := theme()
		if r.chance(50) {
			one, other = other, one
		}
		wrap := pick(r, r.asField, r.asField, r.asItem, r.asValue)
		a, b = wrap(one), wrap(other)
		if Validate(a) == nil && Validate(b) == nil {
			return a, b
		}
	}
}

func root(spec Props) *Props {
	return &Props{Type: "object", Properties: map[string]Props{"spec": spec}}
}

func object(properties map[string]Props) Props {
	return Props{Type: "object", Properties: properties}
}

func list(items Props) Props {
	return Props{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
}

func values(p Props) *apiextensionsv1.JSONSchemaPropsOrBool {
	return &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &p}
}

func encoded(raw string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(raw)} }

func (r Generator) asField(p Props) *Props { return root(object(map[string]Props{"a": p})) }

func (r Generator) asItem(p Props) *Props {
	return root(object(map[string]Props{"a": list(p)}))
}

func (r Generator) asValue(p Props) *Props {
	return root(Props{Type: "object", AdditionalProperties: values(p)})
}

// numbers returns schemas of numbers with similar bounds and multiples.
func (r Generator) numbers() (Props, Props) {
	one := func() Props {
		p := Props{Type: pick(r, "number", "number", "integer")}
		if r.chance(10) {
			p.Type, p.XIntOrString = "", true
		}
		bounds := Props{}
		bound := func() *float64 { return ptr(pick(r, 5, 5.2, 5.5, 5.7, 6.0)) }
		switch r.IntN(8) {
		case 0, 1, 2:
			bounds.Minimum, bounds.ExclusiveMinimum = bound(), r.chance(50)
		case 3, 4, 5:
			bounds.Maximum, bounds.ExclusiveMaximum = bound(), r.chance(50)
		case 6:
			bounds.MultipleOf = ptr(pick(r, 1, 2, 2.5, 3, 4.0))
		case 7:
			p.Format = pick(r, "int32", "int64", "float", "double")
			bounds.Maximum = ptr(pick(r, 5, 1e10, 1e300))
		}
		return r.within(p, bounds)
	}
	return one(), one()
}

// within adds constraints to p, mostly directly, otherwise in allOf.
func (r Generator) within(p, constraints Props) Props {
	if r.chance(15) {
		p.AllOf = append(p.AllOf, constraints)
		return p
	}
	q := constraints
	p.Minimum, p.ExclusiveMinimum, p.Maximum, p.ExclusiveMaximum, p.MultipleOf = q.Minimum, q.ExclusiveMinimum, q.Maximum, q.ExclusiveMaximum, q.MultipleOf
	p.Enum, p.MinLength, p.MaxLength, p.Pattern = q.Enum, q.MinLength, q.MaxLength, q.Pattern
	return p
}

func (r Generator) enums() (Props, Props) {
	kind := pick(r, "string", "integer", "any", "int-or-string", "object")
	one := func() Props {
		p, constraints := Props{Type: kind, Nullable: r.chance(30)}, Props{}
		switch kind {
		case "string":
			constraints.Enum = r.some(`"red"`, `"green"`, `"blue"`)
		case "object":
			p.Properties = map[string]Props{"a": {Type: "string"}, "b": {Type: "string"}}
			constraints.Enum = r.some(`{"a":"red"}`, `{}`, `{"a":"red","b":"red"}`)
		case "int-or-string":
			p.Type, p.XIntOrString = "", true
			constraints.Enum = r.some("1", "2", `"red"`)
		case "any":
			p.Type, p.XPreserveUnknownFields = "", ptr(true)
			constraints.Enum = r.some("1", `"red"`, "null", "[]")
		default:
			constraints.Enum = r.some("1", "2", "5")
		}
		return r.within(p, constraints)
	}
	return one(), one()
}

func (r Generator) formats() (Props, Props) {
	one := func() Props {
		p := Props{Type: "string"}
		if r.chance(15) {
			p.Type, p.XPreserveUnknownFields = "", ptr(true)
		} else if r.chance(15) {
			p.Type, p.XIntOrString = "", true
		}
		format := pick(r, "date", "date", "uuid", "quantity", "")
		switch {
		case r.chance(20):
			p.AllOf = []Props{{Format: format}}
		default:
			p.Format = format
		}
		if r.chance(20) {
			p.AllOf = append(p.AllOf, Props{Format: "date"})
		}
		return p
	}
	return one(), one()
}

func (r Generator) lengths() (Props, Props) {
	one := func() Props {
		constraints := Props{}
		switch r.IntN(3) {
		case 0:
			constraints.MinLength = ptr(int64(r.IntN(3)))
		case 1:
			constraints.MaxLength = ptr(int64(1 + r.IntN(3)))
		case 2:
			constraints.Pattern = pick(r, "^a", "b$", "^.{2}$")
		}
		return r.within(Props{Type: "string"}, constraints)
	}
	return one(), one()
}

// lists returns schemas of lists that are maps with several keys, sets, or atomic.
func (r Generator) lists() (Props, Props) {
	one := func() Props {
		items := object(map[string]Props{"a": {Type: "string"}, "b": {Type: "string", Nullable: r.chance(5)}})
		if r.chance(10) {
			items.Properties["b"] = Props{Type: "integer"}
		}
		for _, key := range []string{"a", "b"} {
			if r.chance(10) {
				delete(items.Properties, key)
				continue
			}
			if r.chance(15) {
				p := items.Properties[key]
				p.Default = r.defaultFor(&p)
				items.Properties[key] = p
				continue
			}
			items.Required = append(items.Required, key)
		}
		if r.chance(15) {
			items.XMapType = ptr("atomic")
		}
		if r.chance(20) {
			items = pick(r, Props{Type: "string", Nullable: r.chance(20)}, Props{XPreserveUnknownFields: ptr(true)}, list(Props{Type: "string"}))
		}
		items.Nullable = items.Nullable || r.chance(5)
		p := list(items)
		switch {
		case len(items.Properties) > 0 && r.chance(70):
			p.XListType, p.XListMapKeys = ptr("map"), pick(r, []string{"a"}, []string{"b"}, []string{"a", "b"})
		case r.chance(60):
			p.XListType = ptr(pick(r, "set", "atomic"))
		}
		return p
	}
	return one(), one()
}

func (r Generator) counted() (Props, Props) {
	one := func() Props {
		if r.chance(50) {
			p := list(Props{Type: "string"})
			p.MinItems, p.MaxItems = ptr(int64(r.IntN(2))), ptr(int64(1+r.IntN(2)))
			return p
		}
		p := Props{Type: "object", AdditionalProperties: values(Props{Type: "string"})}
		if r.chance(50) {
			p = object(map[string]Props{"a": {Type: "string"}, "b": {Type: "string"}})
		}
		p.MinProperties, p.MaxProperties = ptr(int64(r.IntN(2))), ptr(int64(1+r.IntN(2)))
		return p
	}
	return one(), one()
}

// preserving returns schemas with x-kubernetes-preserve-unknown-fields, which applies to
// list items and not to properties.
func (r Generator) preserving() (Props, Props) {
	one := func() Props {
		inner := object(map[string]Props{"a": {Type: "string"}})
		if r.chance(20) {
			inner.XPreserveUnknownFields = ptr(true)
		}
		if r.chance(30) {
			inner = list(inner)
		}
		p := list(inner)
		if r.chance(30) {
			p = object(map[string]Props{"b": inner})
		}
		if r.chance(60) {
			p.XPreserveUnknownFields = ptr(true)
		}
		return p
	}
	return one(), one()
}

// unlisted returns schemas that treat unnamed fields in different ways.
func (r Generator) unlisted() (Props, Props) {
	one := func() Props {
		p := Props{Type: "object"}
		value := pick(r, Props{Type: "string"}, Props{Type: "string", MaxLength: ptr(int64(2))}, object(map[string]Props{"a": {Type: "string"}}),
			Props{XPreserveUnknownFields: ptr(true)}, list(Props{Type: "string"}))
		switch r.IntN(7) {
		case 0:
			p.AdditionalProperties = values(value)
		case 1:
			p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
		case 2:
			p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: false}
		case 3:
			p.XPreserveUnknownFields = ptr(true)
		case 4:
			p.XPreserveUnknownFields = ptr(true)
			p.Properties = map[string]Props{"a": value}
		case 5:
			p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}
			p.Properties = map[string]Props{"a": value}
		case 6:
			p.Properties = map[string]Props{"a": value}
			p.Required = pick(r, nil, []string{"a"})
		}
		return p
	}
	return one(), one()
}

// nulls returns schemas in which a null is replaced by a default, kept or removed.
func (r Generator) nulls() (Props, Props) {
	one := func() Props {
		p := pick(r, Props{Type: "string"}, Props{Type: "string", MaxLength: ptr(int64(3))}, Props{XPreserveUnknownFields: ptr(true)}, Props{XIntOrString: true},
			Props{XPreserveUnknownFields: ptr(true), AllOf: []Props{{MinLength: ptr(int64(1))}}})
		p.Nullable = r.chance(30)
		if r.chance(60) {
			p.Default = encoded(pick(r, `"green"`, `"red"`))
		}
		if r.chance(50) {
			return list(p)
		}
		return Props{Type: "object", AdditionalProperties: values(p)}
	}
	return one(), one()
}

// defaults returns schemas whose defaults differ, or violate the other schema.
func (r Generator) defaults() (Props, Props) {
	one := func() Props {
		f := pick(r, Props{Type: "string"}, Props{Type: "string", MaxLength: ptr(int64(3))}, Props{Type: "string", Enum: r.some(`"red"`, `"green"`)},
			Props{Type: "string", Nullable: true}, object(map[string]Props{"a": {Type: "string", Default: encoded(`"red"`)}}))
		if r.chance(60) {
			f.Default = encoded(pick(r, `"red"`, `"green"`))
			if f.Type == "object" {
				f.Default = encoded(pick(r, `{}`, `{"a":"green"}`))
			}
		}
		if r.chance(15) && f.Type == "string" {
			f.XValidations = []apiextensionsv1.ValidationRule{{Rule: "self != 'red'"}}
		}
		p := object(map[string]Props{"a": f, "b": {Type: "string"}})
		if r.chance(30) {
			p.Required = []string{"a"}
		}
		return p
	}
	return one(), one()
}

// ownDefaults returns schemas in which only one cluster knows a field and sets its
// default, and another constraint may depend on the field.
func (r Generator) ownDefaults() (Props, Props) {
	own := pick(r, Props{Type: "string", Default: encoded(`"red"`)}, Props{Type: "string", Default: encoded(`"red"`), XValidations: []apiextensionsv1.ValidationRule{{Rule: "self == 'red'"}}},
		Props{Type: "object", Default: encoded(`{}`), Properties: map[string]Props{"a": {Type: "integer", Default: encoded("1")}}})
	owner := object(map[string]Props{"a": {Type: "string"}, "b": own})
	other := object(map[string]Props{"a": {Type: "string"}})
	if r.chance(20) {
		owner.Required = []string{"b"}
	}
	outer := r.chance(40)
	looking := &owner
	if outer {
		wrapped := object(map[string]Props{"c": owner})
		looking = &wrapped
		other = object(map[string]Props{"c": other})
	}
	r.look(looking, outer)
	return *looking, other
}

// look adds a constraint that may depend on the default of b: in p itself, or below c.
func (r Generator) look(p *Props, outer bool) {
	at, path := func(q Props) Props { return q }, "self"
	if outer {
		at, path = func(q Props) Props { return Props{Properties: map[string]Props{"c": q}} }, "self.c"
	}
	part := pick(r, Props{Required: []string{"b"}}, Props{MaxProperties: ptr(int64(1))}, Props{MinProperties: ptr(int64(2))},
		Props{Properties: map[string]Props{"b": {MinLength: ptr(int64(1))}}}, Props{Enum: []apiextensionsv1.JSON{*encoded(`{"a":"red"}`), *encoded(`{}`)}})
	switch r.IntN(8) {
	case 0:
		p.Not = ptr(at(part))
	case 1:
		p.AnyOf = []Props{at(part), at(Props{Not: ptr(part)})}
	case 2:
		p.OneOf = []Props{at(part), at(Props{Required: []string{"a"}})}
	case 3:
		p.AllOf = []Props{at(part)}
	case 4:
		p.MaxProperties = ptr(int64(1))
	case 5:
		has := "!has(" + path + ".b)"
		if outer {
			has = "!has(self.c) || " + has
		}
		p.XValidations = []apiextensionsv1.ValidationRule{{Rule: has}}
	case 6:
		p.Enum = part.Enum
		if outer {
			p.Enum = []apiextensionsv1.JSON{*encoded(`{"c":{}}`), *encoded(`{"c":{"a":"red"}}`)}
		}
	}
}

// combined returns schemas that constrain a field in allOf, anyOf, oneOf or not. The other
// schema may not know the field, or may imply the constraint.
func (r Generator) combined() (Props, Props) {
	sub := func() Props {
		return pick(r, Props{MinLength: ptr(int64(1))}, Props{MaxLength: ptr(int64(3))}, Props{Pattern: "^a"}, Props{Enum: r.some(`"red"`, `"a"`)}, Props{Format: "date"})
	}
	one := func() Props {
		p := object(map[string]Props{"a": r.within(Props{Type: "string"}, Props{MaxLength: ptr(int64(1 + r.IntN(4)))}), "b": r.within(Props{Type: "string"}, sub())})
		p.Properties["c"] = list(r.within(Props{Type: "string"}, sub()))
		if r.chance(20) {
			delete(p.Properties, pick(r, "a", "b", "c"))
		}
		if r.chance(30) {
			p.Required = []string{"a"}
		}
		part := func() Props {
			items := sub()
			return pick(r, Props{Properties: map[string]Props{"b": sub()}}, Props{Properties: map[string]Props{"a": sub()}}, Props{Required: []string{"a"}}, Props{Required: []string{"b"}},
				Props{Properties: map[string]Props{"c": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}}}, Props{AllOf: []Props{{Properties: map[string]Props{"a": sub()}}}},
				Props{MinProperties: ptr(int64(1))}, Props{Not: &Props{Required: []string{"b"}}})
		}
		switch r.IntN(5) {
		case 0, 1:
			p.AllOf = []Props{part()}
		case 2:
			p.AnyOf = []Props{part(), part()}
		case 3:
			p.OneOf = []Props{part(), part()}
		case 4:
			p.Not = ptr(part())
		}
		return p
	}
	a, b := one(), one()
	if r.chance(50) {
		b.AllOf, b.AnyOf, b.OneOf, b.Not = a.AllOf, a.AnyOf, a.OneOf, a.Not
	} else if r.chance(50) {
		b.AllOf, b.AnyOf, b.OneOf, b.Not = nil, nil, nil, nil
	}
	return a, b
}

func (r Generator) embedded() (Props, Props) {
	one := func() Props {
		p := Props{Type: "object", XEmbeddedResource: r.chance(60)}
		if r.chance(60) {
			p.XPreserveUnknownFields = ptr(true)
		}
		if r.chance(60) {
			p.Properties = map[string]Props{"a": {Type: "string"}}
		}
		if r.chance(20) {
			p.Properties = map[string]Props{"metadata": {Type: "object"}, "kind": {Type: "string"}}
		}
		if r.chance(20) {
			p.Required = []string{pick(r, "metadata", "kind", "a")}
		}
		return p
	}
	return one(), one()
}

// ruled returns schemas with a rule over a field that may have another type in the other schema.
func (r Generator) ruled() (Props, Props) {
	field := func() Props {
		items := Props{Type: pick(r, "integer", "number")}
		l := list(items)
		l.XListType = pick(r, nil, ptr("set"))
		return pick(r, Props{Type: "integer"}, Props{Type: "number"}, Props{Type: "string"}, Props{Type: "string", Format: "date"}, l,
			object(map[string]Props{"a": {Type: pick(r, "integer", "number")}}), Props{XIntOrString: true}, Props{Type: "object", AdditionalProperties: values(items)})
	}
	one := func() Props {
		name := pick(r, "a", "a", "x-y", "for")
		p := object(map[string]Props{name: field(), "b": {Type: "string"}})
		if r.chance(30) {
			p.Properties["c"] = field()
		}
		self := map[string]string{"a": "self.a", "x-y": "self.x__dash__y", "for": "self.__for__"}[name]
		p.XValidations = []apiextensionsv1.ValidationRule{{Rule: pick(r, "!has("+self+")", "has("+self+")", "!has("+self+") || "+self+" / 2 == 1", "!has("+self+") || "+self+" == "+self,
			"!has("+self+") || "+self+" == [1, 2] ", "!has("+self+") || "+self+".a / 2 == 1", "!has("+self+") || size("+self+") < 2", "self == self", "!has(self.b) || self.b != 'red'",
			"!has("+self+") || type("+self+") == int", "!has(self.b) || !has("+self+") || "+self+".size() > 1")}}
		return p
	}
	a, b := one(), one()
	switch r.IntN(3) {
	case 0:
		b.XValidations = a.XValidations
	case 1:
		b.XValidations = nil
	}
	return a, b
}

// transitions returns schemas with transition rules.
func (r Generator) transitions() (Props, Props) {
	one := func() Props {
		inner := object(map[string]Props{"a": {Type: "string", Enum: r.some(`"red"`, `"green"`)}, "b": {Type: "string"}})
		if r.chance(20) {
			inner.XMapType = ptr("atomic")
		}
		rule := apiextensionsv1.ValidationRule{Rule: pick(r, "self == oldSelf", "!has(self.a) || !has(oldSelf.a) || self.a == oldSelf.a", "has(self.a) == has(oldSelf.a)", "self.all(k, k in oldSelf)")}
		if r.chance(15) {
			rule = apiextensionsv1.ValidationRule{Rule: "oldSelf.hasValue() || has(self.a)", OptionalOldSelf: ptr(true)}
		}
		if r.chance(70) {
			inner.XValidations = []apiextensionsv1.ValidationRule{rule}
		}
		if r.chance(40) {
			inner.Required = []string{"a"}
			l := list(inner)
			l.XListType = pick(r, nil, ptr("map"))
			if l.XListType != nil {
				l.XListMapKeys = pick(r, []string{"a"}, []string{"a"}, []string{"b"})
				l.Items.Schema.Required = []string{"a", "b"}
			}
			return l
		}
		p := object(map[string]Props{"c": inner})
		if r.chance(20) {
			p.XMapType = ptr("atomic")
		}
		return p
	}
	a, b := one(), one()
	if a.Type != b.Type || r.chance(20) {
		b = *a.DeepCopy()
		b.XMapType, b.XListType, b.XListMapKeys = nil, nil, nil
	}
	return a, b
}

// types returns schemas of types whose intersection is a narrower type or empty.
func (r Generator) types() (Props, Props) {
	one := func() Props {
		p := Props{Type: pick(r, "string", "integer", "number", "boolean", "int-or-string", "any", "object")}
		switch p.Type {
		case "any":
			p.Type, p.XPreserveUnknownFields = "", ptr(true)
		case "int-or-string":
			p.Type, p.XIntOrString = "", true
		case "object":
			p.Properties = map[string]Props{"a": {Type: "string"}}
		}
		if r.chance(40) {
			r.constrain(&p)
		}
		return p
	}
	return one(), one()
}

// some returns some of the values, at least one.
func (r Generator) some(from ...string) []apiextensionsv1.JSON {
	var all []apiextensionsv1.JSON
	for _, v := range from {
		if r.chance(50) {
			all = append(all, apiextensionsv1.JSON{Raw: []byte(v)})
		}
	}
	if len(all) == 0 {
		all = append(all, apiextensionsv1.JSON{Raw: []byte(pick(r, from...))})
	}
	return slices.Clip(all)
}
