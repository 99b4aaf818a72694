package main

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// identity is demo_identity, identified by realm and name. It can be moved from a demo_network,
// whose zone becomes the realm.
type identity struct{ common }

const mainRealm = "main"

func newIdentity() resource.Resource {
	return &identity{common{kind: kind{
		name: "identity",
		schema: schema.Schema{
			Description: "Identified by realm and name.",
			Attributes: withName(map[string]schema.Attribute{
				"name":  schema.StringAttribute{Required: true, Validators: names, PlanModifiers: replaces},
				"realm": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString(mainRealm), PlanModifiers: replaces},
				"value": schema.StringAttribute{Optional: true},
			}),
		},
		// An object that was created as a network has no realm.
		refresh: func(_ *world.World, now attributes) (bool, error) {
			if now["realm"].IsNull() {
				now.set("realm", realmOf(""))
			}
			return true, nil
		},
	}}}
}

func realmOf(zone string) string {
	if zone == "" {
		return mainRealm
	}
	return zone
}

func (*identity) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"name":  identityschema.StringAttribute{RequiredForImport: true, Description: "Its name."},
		"realm": identityschema.StringAttribute{OptionalForImport: true, Description: "Defaults to main."},
	}}
}

// setIdentity does nothing for types without an identity.
func setIdentity(ctx context.Context, into *tfsdk.ResourceIdentity, now attributes, diagnostics *diag.Diagnostics) {
	if into == nil || diagnostics.HasError() {
		return
	}
	diagnostics.Append(into.SetAttribute(ctx, path.Root("name"), now.text("name"))...)
	diagnostics.Append(into.SetAttribute(ctx, path.Root("realm"), now.text("realm"))...)
}

func (i *identity) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	if req.ID == "" && req.Identity != nil && i.provider != nil {
		var name, realm types.String
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("name"), &name)...)
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("realm"), &realm)...)
		req.ID = i.find(name.ValueString(), realmOf(realm.ValueString()), &resp.Diagnostics)
		if resp.Diagnostics.HasError() {
			return
		}
	}
	i.common.ImportState(ctx, req, resp)
}

// find returns the ID of an object, or "".
func (i *identity) find(name, realm string, diagnostics *diag.Diagnostics) string {
	all, err := i.provider.world.Objects(i.full())
	if err != nil {
		diagnostics.AddError("The objects cannot be listed", err.Error())
	}
	for _, object := range all {
		if object.Text("name") == name && object.Text("realm") == realm {
			return object.ID
		}
	}
	return ""
}

func (i *identity) MoveState(ctx context.Context) []resource.StateMover {
	source := newNetwork().(*common).schema
	return []resource.StateMover{{SourceSchema: &source, StateMover: func(ctx context.Context, req resource.MoveStateRequest, resp *resource.MoveStateResponse) {
		if req.SourceTypeName != "demo_network" || !strings.HasSuffix(req.SourceProviderAddress, "/demo") || req.SourceState == nil {
			return // the framework reports an unsupported move
		}
		from := attributesOf(req.SourceState.Raw)
		for name, text := range map[string]string{"id": from.text("id"), "name": from.text("name"), "realm": realmOf(from.text("zone"))} {
			resp.Diagnostics.Append(resp.TargetState.SetAttribute(ctx, path.Root(name), text)...)
		}
		setIdentity(ctx, resp.TargetIdentity, attributesOf(resp.TargetState.Raw), &resp.Diagnostics)
	}}}
}
