package main

import (
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
)

// newSecret returns demo_secret, with sensitive arguments, sensitive results, and a write-only
// argument.
func newSecret() resource.Resource {
	return &common{kind: kind{
		name: "secret",
		schema: schema.Schema{
			Description: "A secret.",
			Attributes: withName(map[string]schema.Attribute{
				"secret":   schema.StringAttribute{Optional: true, Sensitive: true},
				"settings": schema.MapAttribute{Optional: true, Sensitive: true, ElementType: types.StringType},
				"login": schema.SingleNestedAttribute{Optional: true, Attributes: map[string]schema.Attribute{
					"user":     schema.StringAttribute{Required: true},
					"password": schema.StringAttribute{Required: true, Sensitive: true},
				}},
				"password_wo": schema.StringAttribute{Optional: true, WriteOnly: true, Sensitive: true,
					Description: "Never stored. It is passed on when password_wo_version changes."},
				"password_wo_version": schema.Int64Attribute{Optional: true},
				"token": schema.StringAttribute{Computed: true, Sensitive: true, Description: "Made by the provider.",
					PlanModifiers: []planmodifier.String{stringplanmodifier.UseStateForUnknown()}},
				"fingerprint": schema.StringAttribute{Computed: true, Description: "The start of password_wo's SHA-256, which shows that it arrived.",
					PlanModifiers: []planmodifier.String{keptUnless{"password_wo_version"}}},
			}),
			Blocks: map[string]schema.Block{
				"account": schema.ListNestedBlock{NestedObject: schema.NestedBlockObject{Attributes: map[string]schema.Attribute{
					"user": schema.StringAttribute{Required: true},
					"key":  schema.StringAttribute{Required: true, Sensitive: true},
				}}},
			},
		},
		complete: fingerprint,
	}}
}

// fingerprint reads the password from the configuration, the only place that has it.
func fingerprint(c *change) diag.Diagnostics {
	var diagnostics diag.Diagnostics
	if !c.next.changed(c.prior, "password_wo_version") {
		return nil
	}
	password := c.config.text("password_wo")
	switch {
	case password != "":
		c.next.set("fingerprint", digest(password)[:12])
	case !c.next["password_wo_version"].IsNull():
		diagnostics.AddAttributeError(path.Root("password_wo"), "The password did not arrive", "password_wo_version is set, so password_wo has to be.")
	default:
		c.next.set("fingerprint", "")
	}
	return diagnostics
}
