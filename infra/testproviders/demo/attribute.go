package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
)

// withName adds what every type has.
func withName(more map[string]schema.Attribute) map[string]schema.Attribute {
	all := map[string]schema.Attribute{
		"id": schema.StringAttribute{Computed: true, Description: "Made by the provider.",
			PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
		"name": schema.StringAttribute{Required: true, Description: "What a person calls it.", Validators: names},
	}
	maps.Copy(all, more)
	return all
}

var (
	names     = []validator.String{matches{regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`), "letters, digits, dots, dashes and underscores, and begin with a letter or a digit"}}
	durations = []validator.String{duration{}}
	replaces  = []planmodifier.String{stringplanmodifier.RequiresReplace()}
)

// matches is a validator.
type matches struct {
	what *regexp.Regexp
	says string
}

func (m matches) Description(context.Context) string         { return "must have only " + m.says }
func (m matches) MarkdownDescription(context.Context) string { return "must have only " + m.says }

func (m matches) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if text := req.ConfigValue; !text.IsNull() && !text.IsUnknown() && !m.what.MatchString(text.ValueString()) {
		resp.Diagnostics.AddAttributeError(req.Path, "The value is not valid", fmt.Sprintf("%q must have only %s.", text.ValueString(), m.says))
	}
}

// duration is a validator.
type duration struct{}

func (duration) Description(context.Context) string         { return "must be a duration" }
func (duration) MarkdownDescription(context.Context) string { return "must be a duration" }

func (duration) ValidateString(_ context.Context, req validator.StringRequest, resp *validator.StringResponse) {
	if req.ConfigValue.IsNull() || req.ConfigValue.IsUnknown() {
		return
	}
	if _, err := time.ParseDuration(req.ConfigValue.ValueString()); err != nil {
		resp.Diagnostics.AddAttributeError(req.Path, "The value is not a duration", err.Error()+". Write 150ms or 2s.")
	}
}

// keptUnless is a plan modifier: a computed value stays as it is, unless one of the attributes
// changes.
type keptUnless []string

func (k keptUnless) Description(context.Context) string {
	return fmt.Sprintf("stays unless one of %q changes", []string(k))
}
func (k keptUnless) MarkdownDescription(ctx context.Context) string { return k.Description(ctx) }

func (k keptUnless) PlanModifyString(_ context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if req.State.Raw.IsNull() || !req.PlanValue.IsUnknown() || req.ConfigValue.IsUnknown() {
		return
	}
	before, after := attributesOf(req.State.Raw), attributesOf(req.Plan.Raw)
	if slices.ContainsFunc(k, func(name string) bool { return after.changed(before, name) }) {
		return
	}
	resp.PlanValue = req.StateValue
}
