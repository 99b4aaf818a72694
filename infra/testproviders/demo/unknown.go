package main

import (
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// newUnknown returns demo_unknown: a computed attribute of every type. All become unknown whenever
// anything changes.
func newUnknown() resource.Resource {
	within := map[string]schema.Attribute{
		"text":   schema.StringAttribute{Computed: true},
		"number": schema.Int64Attribute{Computed: true},
	}
	nested := schema.NestedAttributeObject{Attributes: within}
	return &common{kind: kind{
		name: "unknown",
		schema: schema.Schema{
			Description: "All computed attributes are unknown before an apply.",
			Attributes: withName(map[string]schema.Attribute{
				"seed":          schema.StringAttribute{Optional: true, Description: "Change it to change everything."},
				"text":          schema.StringAttribute{Computed: true},
				"truth":         schema.BoolAttribute{Computed: true},
				"int32":         schema.Int32Attribute{Computed: true},
				"int64":         schema.Int64Attribute{Computed: true},
				"float32":       schema.Float32Attribute{Computed: true},
				"float64":       schema.Float64Attribute{Computed: true},
				"number":        schema.NumberAttribute{Computed: true},
				"dynamic":       schema.DynamicAttribute{Computed: true},
				"list":          schema.ListAttribute{Computed: true, ElementType: types.StringType},
				"set":           schema.SetAttribute{Computed: true, ElementType: types.NumberType},
				"map":           schema.MapAttribute{Computed: true, ElementType: types.StringType},
				"object":        schema.ObjectAttribute{Computed: true, AttributeTypes: map[string]attr.Type{"a": types.StringType, "b": types.NumberType}},
				"nested":        schema.SingleNestedAttribute{Computed: true, Attributes: within},
				"nested_list":   schema.ListNestedAttribute{Computed: true, NestedObject: nested},
				"nested_set":    schema.SetNestedAttribute{Computed: true, NestedObject: nested},
				"nested_map":    schema.MapNestedAttribute{Computed: true, NestedObject: nested},
				"secret_number": schema.Int64Attribute{Computed: true, Sensitive: true},
			}),
		},
	}}
}
