package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// legacy is demo_legacy, whose state has had three versions:
//
//	0: size = "10GB"
//	1: size_gb = 10
//	2: size = { gb = 10, unit = "GB" }
type legacy struct{ common }

func newLegacy() resource.Resource {
	return &legacy{common{kind: kind{
		name: "legacy",
		schema: schema.Schema{
			Description: "State of older versions is upgraded.",
			Version:     2,
			Attributes: withName(map[string]schema.Attribute{
				"size": schema.SingleNestedAttribute{Optional: true, Attributes: map[string]schema.Attribute{
					"gb":   schema.Int64Attribute{Required: true},
					"unit": schema.StringAttribute{Optional: true},
				}},
			}),
		},
	}}}
}

type size struct {
	GB   types.Int64  `tfsdk:"gb"`
	Unit types.String `tfsdk:"unit"`
}

type model struct {
	ID   types.String `tfsdk:"id"`
	Name types.String `tfsdk:"name"`
	Size *size        `tfsdk:"size"`
}

func (*legacy) UpgradeState(context.Context) map[int64]resource.StateUpgrader {
	old := func(name string, size schema.Attribute) *schema.Schema {
		return &schema.Schema{Attributes: map[string]schema.Attribute{
			"id": schema.StringAttribute{Computed: true}, "name": schema.StringAttribute{Required: true}, name: size,
		}}
	}
	return map[int64]resource.StateUpgrader{
		0: {PriorSchema: old("size", schema.StringAttribute{Optional: true}), StateUpgrader: func(ctx context.Context, req resource.UpgradeStateRequest, resp *resource.UpgradeStateResponse) {
			var text types.String
			resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("size"), &text)...)
			gb, err := strconv.ParseInt(strings.TrimSuffix(text.ValueString(), "GB"), 10, 64)
			if err != nil && !text.IsNull() {
				resp.Diagnostics.AddAttributeError(path.Root("size"), "The old size cannot be read", fmt.Sprintf("%q is not a number of GB.", text.ValueString()))
				return
			}
			upgraded(ctx, req, resp, types.Int64Value(gb), text.IsNull())
		}},
		1: {PriorSchema: old("size_gb", schema.Int64Attribute{Optional: true}), StateUpgrader: func(ctx context.Context, req resource.UpgradeStateRequest, resp *resource.UpgradeStateResponse) {
			var gb types.Int64
			resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("size_gb"), &gb)...)
			upgraded(ctx, req, resp, gb, gb.IsNull())
		}},
	}
}

func upgraded(ctx context.Context, req resource.UpgradeStateRequest, resp *resource.UpgradeStateResponse, gb types.Int64, none bool) {
	if resp.Diagnostics.HasError() {
		return
	}
	was := attributesOf(req.State.Raw)
	now := model{ID: types.StringValue(was.text("id")), Name: types.StringValue(was.text("name"))}
	if !none {
		now.Size = &size{GB: gb, Unit: types.StringValue("GB")}
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, now)...)
}
