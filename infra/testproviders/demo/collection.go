package main

import (
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// newCollection returns demo_collection: an optional attribute of every type. Null, empty and
// absent values are returned unchanged.
func newCollection() resource.Resource {
	point := types.ObjectType{AttrTypes: map[string]attr.Type{"x": types.NumberType, "y": types.NumberType, "label": types.StringType}}
	return &common{kind: kind{
		name: "collection",
		schema: schema.Schema{
			Description: "An attribute of every type.",
			Attributes: withName(map[string]schema.Attribute{
				"text":    schema.StringAttribute{Optional: true},
				"truth":   schema.BoolAttribute{Optional: true},
				"int32":   schema.Int32Attribute{Optional: true},
				"int64":   schema.Int64Attribute{Optional: true},
				"float32": schema.Float32Attribute{Optional: true},
				"float64": schema.Float64Attribute{Optional: true},
				"number":  schema.NumberAttribute{Optional: true, Description: "Of any size and precision."},
				"dynamic": schema.DynamicAttribute{Optional: true, Description: "Of any type."},

				"list":         schema.ListAttribute{Optional: true, ElementType: types.StringType},
				"set":          schema.SetAttribute{Optional: true, ElementType: types.StringType},
				"map":          schema.MapAttribute{Optional: true, ElementType: types.StringType},
				"numbers":      schema.ListAttribute{Optional: true, ElementType: types.NumberType},
				"truths":       schema.MapAttribute{Optional: true, ElementType: types.BoolType},
				"object":       schema.ObjectAttribute{Optional: true, AttributeTypes: point.AttrTypes},
				"objects":      schema.ListAttribute{Optional: true, ElementType: point},
				"object_set":   schema.SetAttribute{Optional: true, ElementType: point},
				"object_map":   schema.MapAttribute{Optional: true, ElementType: point},
				"lists":        schema.ListAttribute{Optional: true, ElementType: types.ListType{ElemType: types.StringType}},
				"sets_by_name": schema.MapAttribute{Optional: true, ElementType: types.SetType{ElemType: types.StringType}},
				"chosen":       schema.ListAttribute{Optional: true, Computed: true, ElementType: types.StringType, Description: "Chosen by the provider if it is not set."},
			}),
		},
	}}
}
