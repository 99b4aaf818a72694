package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// source is the common part of both data sources.
type source struct {
	name     string
	schema   schema.Schema
	read     func(context.Context, *world.World, datasource.ReadRequest, *datasource.ReadResponse)
	provider *configured
}

func (s *source) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "demo_" + s.name
}

func (s *source) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = s.schema
}

func (s *source) Configure(_ context.Context, req datasource.ConfigureRequest, _ *datasource.ConfigureResponse) {
	s.provider, _ = req.ProviderData.(*configured) // nil before the provider is configured
}

func (s *source) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	if s.provider == nil {
		resp.Diagnostics.AddError("The provider is not configured", "Its directory must be known.")
		return
	}
	select {
	case <-time.After(s.provider.delay):
		s.read(ctx, s.provider.world, req, resp)
	case <-ctx.Done():
		resp.Diagnostics.AddError("The call was stopped", ctx.Err().Error())
	}
}

// newFileData returns the data source demo_file.
func newFileData() datasource.DataSource {
	return &source{
		name: "file",
		schema: schema.Schema{
			Description: "An existing file, whoever created it.",
			Attributes: map[string]schema.Attribute{
				"name":    schema.StringAttribute{Required: true, Validators: names},
				"content": schema.StringAttribute{Computed: true},
				"sha256":  schema.StringAttribute{Computed: true},
			},
		},
		read: func(ctx context.Context, w *world.World, req datasource.ReadRequest, resp *datasource.ReadResponse) {
			var name types.String
			resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("name"), &name)...)
			content, err := os.ReadFile(filePath(w, name.ValueString()))
			if err != nil {
				resp.Diagnostics.AddAttributeError(path.Root("name"), "The file cannot be read", err.Error())
				return
			}
			set(ctx, resp, &resp.Diagnostics, map[string]any{"name": name, "content": string(content), "sha256": digest(string(content))})
		},
	}
}

// newLookupData returns the data source demo_lookup. A host cannot read it before the value of the
// argument after is known.
func newLookupData() datasource.DataSource {
	return &source{
		name: "lookup",
		schema: schema.Schema{
			Description: "Finds an object by its name.",
			Attributes: map[string]schema.Attribute{
				"type":     schema.StringAttribute{Required: true, Description: "Such as demo_network."},
				"name":     schema.StringAttribute{Required: true, Validators: names},
				"after":    schema.DynamicAttribute{Optional: true, Description: "Any value; it is not used."},
				"id":       schema.StringAttribute{Computed: true},
				"version":  schema.Int64Attribute{Computed: true, Description: "Counts the object's changes."},
				"document": schema.StringAttribute{Computed: true, Sensitive: true, Description: "The whole object, as JSON."},
			},
		},
		read: lookup,
	}
}

func lookup(ctx context.Context, w *world.World, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var typ, name types.String
	var after types.Dynamic
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("type"), &typ)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("name"), &name)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("after"), &after)...)
	object, err := w.Find(typ.ValueString(), name.ValueString())
	if err != nil {
		resp.Diagnostics.AddAttributeError(path.Root("name"), "The object was not found", err.Error())
		return
	}
	document, err := json.Marshal(object.Attributes)
	if err != nil {
		resp.Diagnostics.AddError("The object cannot be shown", err.Error())
		return
	}
	set(ctx, resp, &resp.Diagnostics, map[string]any{"type": typ, "name": name, "after": after,
		"id": object.ID, "version": int64(object.Version), "document": string(document)})
}

func set(ctx context.Context, resp *datasource.ReadResponse, diagnostics *diag.Diagnostics, all map[string]any) {
	for name, v := range all {
		diagnostics.Append(resp.State.SetAttribute(ctx, path.Root(name), v)...)
	}
}
