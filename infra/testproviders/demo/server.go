package main

import (
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// newNetwork returns demo_network, which servers refer to.
func newNetwork() resource.Resource {
	return &common{kind: kind{
		name: "network",
		schema: schema.Schema{
			Description: "A network.",
			Attributes: withName(map[string]schema.Attribute{
				"cidr": schema.StringAttribute{Required: true, Description: "Its addresses.", PlanModifiers: replaces},
				"zone": schema.StringAttribute{Optional: true},
				"tags": schema.MapAttribute{Optional: true, ElementType: types.StringType},
				"gateway": schema.StringAttribute{Computed: true, Description: "The address of the gateway.",
					PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
			}),
		},
	}}
}

// newServer returns demo_server, with every kind of nesting, references, defaults, and arguments
// that force a replacement.
func newServer() resource.Resource {
	return &common{kind: kind{
		name: "server",
		schema: schema.Schema{
			MarkdownDescription: "A **server** in a network.",
			Attributes:          serverAttributes(),
			Blocks:              serverBlocks(),
		},
		references: func(now attributes) []string { return append(now.texts("peers"), now.text("network_id")) },
	}}
}

func serverAttributes() map[string]schema.Attribute {
	return withName(map[string]schema.Attribute{
		"network_id": schema.StringAttribute{Required: true, Description: "ID of its network, which must exist."},
		"peers":      schema.SetAttribute{Optional: true, ElementType: types.StringType, Description: "IDs of other objects, which must exist."},
		"zone":       schema.StringAttribute{Required: true, PlanModifiers: replaces},
		"image": schema.StringAttribute{Optional: true, Computed: true, Description: "Chosen by the provider if not set; changing a configured image replaces the server.",
			PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown(), stringplanmodifier.RequiresReplaceIfConfigured()}},
		"size":   schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString("small")},
		"copies": schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(1), DeprecationMessage: "Write several servers."},
		"spot":   schema.BoolAttribute{Optional: true, PlanModifiers: []planmodifier.Bool{boolplanmodifier.RequiresReplace()}},
		"address": schema.StringAttribute{Computed: true, Description: "Differs after each change of the network.",
			PlanModifiers: []planmodifier.String{keptUnless{"network_id"}}},
		"revision": schema.Int64Attribute{Computed: true, Description: "Differs after each change."},
		"placement": schema.SingleNestedAttribute{Optional: true, Attributes: map[string]schema.Attribute{
			"rack": schema.StringAttribute{Required: true},
			"slot": schema.Int64Attribute{Optional: true},
			"host": schema.StringAttribute{Computed: true},
		}},
		"interface": schema.ListNestedAttribute{Optional: true, NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{Required: true},
			"mtu":  schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(1500)},
			"mac":  schema.StringAttribute{Computed: true},
		}}},
		"allow": schema.SetNestedAttribute{Optional: true, NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"from": schema.StringAttribute{Required: true},
			"port": schema.Int64Attribute{Required: true},
		}}},
		"volume": schema.MapNestedAttribute{Optional: true, NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
			"size":   schema.Int64Attribute{Required: true},
			"labels": schema.MapAttribute{Optional: true, ElementType: types.StringType},
			"serial": schema.StringAttribute{Computed: true},
		}}},
	})
}

// serverBlocks has all kinds of blocks that the framework supports; only evil_thing has a map of
// blocks.
func serverBlocks() map[string]schema.Block {
	return map[string]schema.Block{
		"boot": schema.SingleNestedBlock{Attributes: map[string]schema.Attribute{
			"device": schema.StringAttribute{Optional: true},
			"secure": schema.BoolAttribute{Optional: true},
		}},
		"disk": schema.ListNestedBlock{NestedObject: schema.NestedBlockObject{
			Attributes: map[string]schema.Attribute{
				"size": schema.Int64Attribute{Required: true},
				"kind": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString("ssd")},
				"id":   schema.StringAttribute{Computed: true},
			},
			Blocks: map[string]schema.Block{
				"partition": schema.ListNestedBlock{NestedObject: schema.NestedBlockObject{Attributes: map[string]schema.Attribute{
					"mount": schema.StringAttribute{Required: true},
				}}},
			},
		}},
		"rule": schema.SetNestedBlock{NestedObject: schema.NestedBlockObject{Attributes: map[string]schema.Attribute{
			"port":     schema.Int64Attribute{Required: true},
			"protocol": schema.StringAttribute{Optional: true},
		}}},
	}
}
