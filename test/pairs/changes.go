package pairs

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// change changes one node in a way that the next version of a CRD might.
func (r Generator) change(e *edit) {
	p := e.node
	defer func() { e.write(*p) }()
	switch r.IntN(16) {
	case 0:
		p.Nullable = !p.Nullable
	case 1:
		r.changeProperties(p)
	case 2:
		r.changeRequired(p)
	case 3, 4, 5:
		r.constrain(p)
	case 6:
		p.Default = nil
		if r.chance(70) {
			p.Default = r.defaultFor(p)
		}
	case 7:
		r.changeType(p)
	case 8:
		r.combine(p)
	case 9:
		p.AllOf, p.AnyOf, p.OneOf, p.Not = nil, nil, nil, nil
	case 10:
		if p.Type == "array" && p.Items != nil {
			p.XListType, p.XListMapKeys = nil, nil
			r.listType(p)
		}
		if p.Type == "object" && r.chance(30) {
			p.XMapType = ptr("atomic")
		}
	case 11:
		if p.Type == "array" {
			p.XPreserveUnknownFields = ptr(true)
		}
		r.changeUnlisted(p)
	case 12:
		p.XValidations = nil
	case 13:
		for range 12 {
			r.rule(p)
		}
	case 14:
		q := r.value(p)
		tighten(p, &q)
	case 15:
		p.Enum, p.Pattern, p.Format, p.MaxLength, p.Minimum, p.Maximum, p.MultipleOf = nil, "", "", nil, nil, nil, nil
		p.ExclusiveMinimum, p.ExclusiveMaximum = false, false
	}
}

func tighten(p, q *Props) {
	if q.Minimum != nil {
		p.Minimum, p.ExclusiveMinimum = q.Minimum, q.ExclusiveMinimum
	}
	if q.Maximum != nil {
		p.Maximum, p.ExclusiveMaximum = q.Maximum, q.ExclusiveMaximum
	}
	if q.Pattern != "" {
		p.Pattern = q.Pattern
	}
	if q.MaxLength != nil {
		p.MaxLength = q.MaxLength
	}
	if q.MaxItems != nil {
		p.MaxItems = q.MaxItems
	}
	if len(q.Enum) > 0 {
		p.Enum = q.Enum
	}
}

func (r Generator) changeProperties(p *Props) {
	if p.Type != "object" || p.AdditionalProperties != nil {
		return
	}
	if p.Properties == nil {
		p.Properties = map[string]Props{}
	}
	if names := sorted(p.Properties); len(names) > 0 && r.chance(50) {
		delete(p.Properties, names[r.IntN(len(names))])
		return
	}
	p.Properties[r.name()] = *r.node(1, "")
}

func (r Generator) changeRequired(p *Props) {
	names := sorted(p.Properties)
	if len(names) == 0 {
		return
	}
	name := names[r.IntN(len(names))]
	if i := slices.Index(p.Required, name); i >= 0 {
		p.Required = slices.Delete(slices.Clone(p.Required), i, i+1)
		return
	}
	p.Required = append(slices.Clone(p.Required), name)
}

func (r Generator) changeType(p *Props) {
	switch {
	case p.Type == "integer":
		p.Type = "number"
	case p.Type == "number":
		p.Type = "integer"
	case p.XIntOrString:
		p.XIntOrString, p.AnyOf, p.AllOf, p.Type = false, nil, nil, pick(r, "integer", "string", "number")
	case p.Type == "string":
		p.Type, p.XIntOrString = "", true
	case p.Type == "":
		*p = *r.node(1, "")
	default:
		*p = Props{XPreserveUnknownFields: ptr(true)}
	}
}

func (r Generator) changeUnlisted(p *Props) {
	if p.Type != "object" {
		return
	}
	switch r.IntN(5) {
	case 0:
		p.XPreserveUnknownFields = nil
	case 1:
		p.XPreserveUnknownFields = ptr(true)
	case 2:
		p.XEmbeddedResource = !p.XEmbeddedResource
	case 3:
		if p.AdditionalProperties != nil {
			p.AdditionalProperties = nil
			p.Properties = map[string]Props{r.name(): *r.node(1, "")}
		}
	case 4:
		p.Properties, p.Required = nil, nil
		p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: r.node(1, "")}
	}
}
