package main

import (
	"context"
	"fmt"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// flaky is demo_flaky, which fails according to its faults.
type flaky struct{ common }

// When a fault strikes.
const (
	before = "before" // nothing was changed
	after  = "after"  // the change was made, and the state reports it
	half   = "half"   // value was changed, second was not
	lost   = "lost"   // the change was made, but the state does not report it
)

func newFlaky() resource.Resource {
	return &flaky{common{kind: kind{
		name: "flaky",
		schema: schema.Schema{
			Description: "Fails as configured.",
			Attributes: withName(map[string]schema.Attribute{
				"value":  schema.StringAttribute{Optional: true},
				"second": schema.StringAttribute{Optional: true, Description: "Not changed by a fault of kind half."},
				"warn":   schema.StringAttribute{Optional: true, Description: "A warning for every plan, create and update."},
				"made":   schema.StringAttribute{Computed: true, Description: "Differs after each change."},
				"faults": schema.ListNestedAttribute{Optional: true, NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"call": schema.StringAttribute{Required: true, Validators: []validator.String{matches{regexp.MustCompile("^(plan|create|read|update|delete)$"),
						"plan, create, read, update or delete"}}},
					"when": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString(before),
						Validators: []validator.String{matches{regexp.MustCompile("^(before|after|half|lost)$"), "before, after, half or lost"}}},
					"first":   schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(1), Description: "The first attempt that fails, over all processes."},
					"times":   schema.Int64Attribute{Optional: true, Computed: true, Default: int64default.StaticInt64(1), Description: "The number of attempts that fail."},
					"message": schema.StringAttribute{Optional: true, Computed: true, Default: stringdefault.StaticString("as told")},
				}}},
			}),
		},
	}}}
}

type fault struct {
	Call    types.String `tfsdk:"call"`
	When    types.String `tfsdk:"when"`
	First   types.Int64  `tfsdk:"first"`
	Times   types.Int64  `tfsdk:"times"`
	Message types.String `tfsdk:"message"`

	index int
}

// fail reports the failure at the fault's place in the configuration.
func (f *fault) fail(diagnostics *diag.Diagnostics) {
	at := path.Root("faults").AtListIndex(f.index).AtName("call")
	diagnostics.AddAttributeError(at, "The "+f.Call.ValueString()+" fails", f.Message.ValueString())
}

// strikes counts the attempt and returns the fault that strikes, or nil.
func (f *flaky) strikes(ctx context.Context, call string, raw tftypes.Value, s tfsdk.State, diagnostics *diag.Diagnostics) *fault {
	s.Raw = raw
	var list types.List
	diagnostics.Append(s.GetAttribute(ctx, path.Root("faults"), &list)...)
	if f.provider == nil || list.IsNull() || !attributesOf(raw)["faults"].IsFullyKnown() {
		return nil
	}
	var faults []fault
	diagnostics.Append(list.ElementsAs(ctx, &faults, false)...)
	var struck *fault
	for i, one := range faults {
		if one.Call.ValueString() != call {
			continue
		}
		n, err := f.provider.world.Attempt(fmt.Sprintf("%s.%s.%d", attributesOf(raw).text("name"), call, i))
		if err != nil {
			diagnostics.AddError("The attempt cannot be counted", err.Error())
			return nil
		}
		first := one.First.ValueInt64()
		if struck == nil && int64(n) >= first && int64(n) < first+one.Times.ValueInt64() {
			one.index = i
			struck = &one
		}
	}
	return struck
}

func (f *flaky) warn(now attributes, diagnostics *diag.Diagnostics) {
	if text := now.text("warn"); text != "" {
		diagnostics.AddAttributeWarning(path.Root("warn"), "A warning, as told", text)
	}
}

// without resets second in a plan to its previous value, or null.
func without(plan tftypes.Value, prior attributes) tftypes.Value {
	next := attributesOf(plan)
	next["second"] = tftypes.NewValue(tftypes.String, nil)
	if prior != nil {
		next["second"] = prior["second"]
	}
	return tftypes.NewValue(plan.Type(), map[string]tftypes.Value(next))
}

func (f *flaky) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	f.common.ModifyPlan(ctx, req, resp)
	if req.Plan.Raw.IsNull() {
		return
	}
	f.warn(attributesOf(req.Plan.Raw), &resp.Diagnostics)
	if struck := f.strikes(ctx, "plan", req.Plan.Raw, req.State, &resp.Diagnostics); struck != nil {
		struck.fail(&resp.Diagnostics)
	}
}

func (f *flaky) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	f.warn(attributesOf(req.Plan.Raw), &resp.Diagnostics)
	struck := f.strikes(ctx, "create", req.Plan.Raw, resp.State, &resp.Diagnostics)
	if struck == nil {
		f.common.Create(ctx, req, resp)
		return
	}
	switch struck.When.ValueString() {
	case after:
		f.common.Create(ctx, req, resp)
	case half:
		req.Plan.Raw = without(req.Plan.Raw, nil)
		f.common.Create(ctx, req, resp)
	case lost:
		f.common.Create(ctx, req, resp)
		resp.State.RemoveResource(ctx)
	}
	struck.fail(&resp.Diagnostics)
}

func (f *flaky) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	f.warn(attributesOf(req.Plan.Raw), &resp.Diagnostics)
	struck := f.strikes(ctx, "update", req.Plan.Raw, resp.State, &resp.Diagnostics)
	if struck == nil {
		f.common.Update(ctx, req, resp)
		return
	}
	switch struck.When.ValueString() {
	case after:
		f.common.Update(ctx, req, resp)
	case half:
		req.Plan.Raw = without(req.Plan.Raw, attributesOf(req.State.Raw))
		f.common.Update(ctx, req, resp)
	case lost:
		f.common.Update(ctx, req, resp)
		resp.State.Raw = req.State.Raw
	}
	struck.fail(&resp.Diagnostics)
}

func (f *flaky) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if struck := f.strikes(ctx, "read", req.State.Raw, req.State, &resp.Diagnostics); struck != nil {
		struck.fail(&resp.Diagnostics)
		return
	}
	f.common.Read(ctx, req, resp)
}

// Delete with a fault before keeps the object. With any other fault the object is deleted, but the
// state remains.
func (f *flaky) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	struck := f.strikes(ctx, "delete", req.State.Raw, req.State, &resp.Diagnostics)
	if struck == nil || struck.When.ValueString() != before {
		f.common.Delete(ctx, req, resp)
	}
	if struck != nil {
		struck.fail(&resp.Diagnostics)
	}
}
