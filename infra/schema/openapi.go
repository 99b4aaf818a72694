package schema

import (
	"fmt"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// OpenAPI returns the schema of a kind as in Kubernetes' OpenAPI v3 documents: spec and status,
// without the parts that all kinds share. It refers to the schemas of Components; Inline removes
// these references.
//
// Any argument can be an expression, which is a string. So lists, maps and objects have no type,
// only items and properties, which allow a string. Numbers and booleans refer to a component that
// allows both.
func (k Kind) OpenAPI() *spec.Schema {
	root := ofType("object", k.Schema.Block.Description)
	root.Properties = map[string]spec.Schema{"spec": *k.specSchema(), "status": *k.statusSchema()}
	root.AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": k.Group, "version": v1alpha1.ProvidersVersion, "kind": k.Kind},
	})
	return root
}

func (k Kind) specSchema() *spec.Schema {
	s := ofType("object", k.about()+" Arguments have the provider's names; any can be an expression, ${…}.")
	s.Properties = metaSchemas(k.Data)
	describeFields(s.Properties, &k.Schema.Block, arguments)
	for i := range k.Schema.Block.Attributes {
		a := &k.Schema.Block.Attributes[i]
		if property, ok := s.Properties[a.Name]; ok && mergedAsSet(a) {
			property.AddExtension("x-kubernetes-list-type", "set")
		}
	}
	return s
}

func (k Kind) about() string {
	if k.Data {
		return fmt.Sprintf("Arguments of the provider's data source %s.", k.Type)
	}
	return fmt.Sprintf("Desired state: the provider's resource type %s.", k.Type)
}

func (k Kind) statusSchema() *spec.Schema {
	attributes := ofType("object", "The attributes that the provider reported, without sensitive ones.")
	attributes.Properties = map[string]spec.Schema{}
	attributes.AddExtension("x-kubernetes-map-type", "atomic")
	describeFields(attributes.Properties, &k.Schema.Block, results)
	conditions := ofType("array", "Conditions of the resource: Ready, Reconciled, Drifted.")
	conditions.Items = &spec.SchemaOrArray{Schema: conditionSchema()}
	conditions.AddExtension("x-kubernetes-list-type", "map")
	conditions.AddExtension("x-kubernetes-list-map-keys", []any{"type"})
	s := ofType("object", "Last observed state.")
	s.Properties = map[string]spec.Schema{"attributes": *attributes, "conditions": *conditions}
	return s
}

// A side is a side of a schema: arguments in spec, or results in status.
type side bool

const (
	arguments side = true
	results   side = false
)

func describeFields(into map[string]spec.Schema, b *providerapi.Block, side side) {
	describeAttributes(into, b.Attributes, side)
	for i := range b.Blocks {
		n := &b.Blocks[i]
		into[n.Name] = *describeBlocks(n, side)
	}
}

func describeAttributes(into map[string]spec.Schema, attributes []providerapi.Attribute, side side) {
	for i := range attributes {
		a := &attributes[i]
		if side == arguments && settable(a) || side == results && !isSensitive(a) {
			into[a.Name] = *describeAttribute(a, side)
		}
	}
}

func describeAttribute(a *providerapi.Attribute, side side) *spec.Schema {
	var s *spec.Schema
	switch {
	case side == arguments && isSensitive(a):
		s = reference(componentSecret, "")
	case a.Nested != nil:
		one := &spec.Schema{}
		one.Properties = map[string]spec.Schema{}
		describeAttributes(one.Properties, a.Nested.Attributes, side)
		s = several(a.Nested.Nesting, 0, closed(one, side), side)
	default:
		s = describeType(a.Type, side)
	}
	s.Description = remarks(a, side)
	return s
}

// remarks returns the provider's description, preceded by Atoll's remarks. Required arguments are
// not required in the schema, because an object that is imported or only read does not need them.
func remarks(a *providerapi.Attribute, side side) string {
	var text []string
	if a.Deprecated {
		text = append(text, "Deprecated.")
	}
	if side == arguments {
		switch {
		case a.Required:
			text = append(text, "Required.")
		case a.Computed:
			text = append(text, "Computed by the provider if not set.")
		}
		if a.WriteOnly {
			text = append(text, "Passed to the provider and not stored.")
		}
	}
	if a.Description != "" {
		text = append(text, a.Description)
	}
	return strings.Join(text, " ")
}

func describeBlocks(n *providerapi.NestedBlock, side side) *spec.Schema {
	one := &spec.Schema{}
	one.Properties = map[string]spec.Schema{}
	describeFields(one.Properties, &n.Block, side)
	limit := n.Max
	if side == results {
		limit = 0 // the provider's form, which references use
	}
	s := several(n.Nesting, limit, closed(one, side), side)
	var text []string
	if n.Block.Deprecated {
		text = append(text, "Deprecated.")
	}
	if side == arguments && n.Min > 0 {
		text = append(text, fmt.Sprintf("At least %d required.", n.Min))
	}
	if side == arguments && n.Max > 1 {
		text = append(text, fmt.Sprintf("At most %d.", n.Max))
	}
	if n.Block.Description != "" {
		text = append(text, n.Block.Description)
	}
	s.Description = strings.Join(text, " ")
	return s
}

// several returns the schema of one object, a list, or a map of it.
func several(nesting providerapi.Nesting, limit int64, one *spec.Schema, side side) *spec.Schema {
	switch {
	case nesting == providerapi.NestingMap:
		return mapOf(one, side)
	case (nesting == providerapi.NestingList || nesting == providerapi.NestingSet) && limit != 1:
		return listOf(one, side)
	}
	return one
}

// closed restricts a result to an object. An argument can also be an expression.
func closed(s *spec.Schema, side side) *spec.Schema {
	if side == results {
		s.Type = spec.StringOrArray{"object"}
	}
	return s
}

func listOf(one *spec.Schema, side side) *spec.Schema {
	s := &spec.Schema{}
	if side == results {
		s.Type = spec.StringOrArray{"array"}
	}
	s.Items = &spec.SchemaOrArray{Schema: one}
	s.AddExtension("x-kubernetes-list-type", "atomic")
	return s
}

func mapOf(one *spec.Schema, side side) *spec.Schema {
	s := closed(&spec.Schema{}, side)
	s.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: one}
	return s
}

// describeType returns the schema of values without a nested schema.
func describeType(ty cty.Type, side side) *spec.Schema {
	switch {
	case ty == cty.String:
		return ofType("string", "")
	case ty == cty.Number && side == arguments:
		return reference(componentNumber, "")
	case ty == cty.Bool && side == arguments:
		return reference(componentBoolean, "")
	case ty == cty.Bool:
		return ofType("boolean", "")
	case ty.IsListType(), ty.IsSetType():
		return listOf(describeType(ty.ElementType(), side), side)
	case ty.IsTupleType():
		return listOf(reference(componentAny, ""), side)
	case ty.IsMapType():
		return mapOf(describeType(ty.ElementType(), side), side)
	case ty.IsObjectType():
		s := closed(&spec.Schema{}, side)
		s.Properties = map[string]spec.Schema{}
		for name, attribute := range ty.AttributeTypes() {
			s.Properties[name] = *describeType(attribute, side)
		}
		return s
	case ty == cty.Number:
		return reference(componentNumber, "") // large numbers are strings in status as well
	}
	return reference(componentAny, "")
}

func ofType(name, description string) *spec.Schema {
	s := &spec.Schema{}
	s.Type = spec.StringOrArray{name}
	s.Description = description
	return s
}

const componentPrefix = "#/components/schemas/"

// reference refers to a component with a description, which OpenAPI 3.0 only allows in this form.
func reference(component, description string) *spec.Schema {
	s := &spec.Schema{}
	s.Description = description
	s.AllOf = []spec.Schema{*spec.RefSchema(componentPrefix + component)}
	return s
}
