package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// private is demo_private. It stores its ID in the private bytes, and fails if the host lost them.
// It stores the planned value of an update in the private bytes of the plan, and fails if those did
// not arrive. (The framework does not pass them to a create; evil_thing checks them there.)
type private struct{ common }

func newPrivate() resource.Resource {
	return &private{common{kind: kind{
		name: "private",
		schema: schema.Schema{
			Description: "Fails where private bytes are lost.",
			Attributes:  withName(map[string]schema.Attribute{"value": schema.StringAttribute{Optional: true}}),
		},
	}}}
}

const (
	owned   = "owned"   // the ID
	planned = "planned" // the planned value
)

// keeper is the interface of private bytes, whose type the framework does not export.
type keeper interface {
	GetKey(context.Context, string) ([]byte, diag.Diagnostics)
	SetKey(context.Context, string, []byte) diag.Diagnostics
}

func keep(ctx context.Context, in keeper, key, what string) diag.Diagnostics {
	encoded, _ := json.Marshal(what) // strings never fail
	return in.SetKey(ctx, key, encoded)
}

func check(ctx context.Context, in keeper, key, want string) diag.Diagnostics {
	kept, diagnostics := in.GetKey(ctx, key)
	var got string
	if json.Unmarshal(kept, &got) != nil || got != want {
		diagnostics.AddError("Private bytes were lost", fmt.Sprintf("The host must preserve %q for the provider. It is %q instead of %q.", key, kept, want))
	}
	return diagnostics
}

func (p *private) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	p.common.ModifyPlan(ctx, req, resp)
	if !req.State.Raw.IsNull() {
		resp.Diagnostics.Append(check(ctx, req.Private, owned, attributesOf(req.State.Raw).text("id"))...)
	}
	if next := attributesOf(req.Plan.Raw); next != nil && next["value"].IsKnown() {
		resp.Diagnostics.Append(keep(ctx, resp.Private, planned, next.text("value"))...)
	}
}

func (p *private) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	p.common.Create(ctx, req, resp)
	if !resp.State.Raw.IsNull() {
		resp.Diagnostics.Append(keep(ctx, resp.Private, owned, attributesOf(resp.State.Raw).text("id"))...)
	}
}

func (p *private) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	resp.Diagnostics.Append(check(ctx, req.Private, owned, attributesOf(req.State.Raw).text("id"))...)
	if !resp.Diagnostics.HasError() {
		p.common.Read(ctx, req, resp)
	}
}

func (p *private) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	resp.Diagnostics.Append(check(ctx, req.Private, owned, attributesOf(req.State.Raw).text("id"))...)
	resp.Diagnostics.Append(check(ctx, req.Private, planned, attributesOf(req.Plan.Raw).text("value"))...)
	if !resp.Diagnostics.HasError() {
		p.common.Update(ctx, req, resp)
	}
}

func (p *private) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	resp.Diagnostics.Append(check(ctx, req.Private, owned, attributesOf(req.State.Raw).text("id"))...)
	if !resp.Diagnostics.HasError() {
		p.common.Delete(ctx, req, resp)
	}
}

func (p *private) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	p.common.ImportState(ctx, req, resp)
	var id types.String
	resp.Diagnostics.Append(resp.State.GetAttribute(ctx, path.Root("id"), &id)...)
	if !resp.Diagnostics.HasError() {
		resp.Diagnostics.Append(keep(ctx, resp.Private, owned, id.ValueString())...)
	}
}
