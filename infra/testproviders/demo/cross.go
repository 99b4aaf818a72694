package main

import (
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// newCross returns demo_cross, which refers to any number of other objects.
func newCross() resource.Resource {
	references := func(now attributes) []string {
		return slices.Concat(now.texts("references"), now.texts("others"), now.texts("named"))
	}
	return &common{kind: kind{
		name: "cross",
		schema: schema.Schema{
			Description: "Refers to others.",
			Attributes: withName(map[string]schema.Attribute{
				"references": schema.ListAttribute{Optional: true, ElementType: types.StringType, Description: "IDs, in order."},
				"others":     schema.SetAttribute{Optional: true, ElementType: types.StringType},
				"named":      schema.MapAttribute{Optional: true, ElementType: types.StringType},
				"value":      schema.StringAttribute{Optional: true, Description: "Anything."},
				"joined":     schema.StringAttribute{Computed: true, Description: "The references, with commas."},
			}),
		},
		references: references,
		complete: func(c *change) diag.Diagnostics {
			c.next.set("joined", joined(c.next.texts("references")))
			return nil
		},
	}}
}
