package main

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// New returns the unconfigured provider.
func New() provider.Provider { return &demo{} }

type demo struct{}

// configured is the part of the configuration that resources and data sources need.
type configured struct {
	world       *world.World
	delay       time.Duration
	refuseInUse bool
	logReads    bool
}

type config struct {
	Directory     types.String `tfsdk:"directory"`
	Token         types.String `tfsdk:"token"`
	Delay         types.String `tfsdk:"delay"`
	FailConfigure types.String `tfsdk:"fail_configure"`
	RefuseInUse   types.Bool   `tfsdk:"refuse_in_use"`
	LogReads      types.Bool   `tfsdk:"log_reads"`
}

func (*demo) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "demo"
	resp.Version = "1.0.0"
}

func (*demo) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	resp.Schema = schema.Schema{
		Description: "Creates objects in a directory.",
		Attributes: map[string]schema.Attribute{
			"directory": schema.StringAttribute{Required: true, Description: "The world: an absolute path. It is created if necessary."},
			"token": schema.StringAttribute{Optional: true, Sensitive: true,
				Description: "A credential. \"wrong\" is rejected, \"outdated\" causes a warning."},
			"delay":          schema.StringAttribute{Optional: true, Description: "Added to each call about a resource or a data source, such as 20ms.", Validators: durations},
			"fail_configure": schema.StringAttribute{Optional: true, Description: "Fails the configuration with this message."},
			"refuse_in_use":  schema.BoolAttribute{Optional: true, Description: "Rejects the deletion of objects that others refer to."},
			"log_reads":      schema.BoolAttribute{Optional: true, Description: "Whether calls that only read are logged. Defaults to true."},
		},
	}
}

func (*demo) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	var c config
	resp.Diagnostics.Append(req.Config.Get(ctx, &c)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if c.FailConfigure.ValueString() != "" {
		resp.Diagnostics.AddAttributeError(path.Root("fail_configure"), "The configuration fails", c.FailConfigure.ValueString())
		return
	}
	if c.Token.ValueString() == "wrong" {
		resp.Diagnostics.AddAttributeError(path.Root("token"), "The token is refused", "Set another token.")
		return
	}
	if token := c.Token.ValueString(); token == "outdated" {
		// The message contains the token on purpose: a host must mask it.
		resp.Diagnostics.AddAttributeWarning(path.Root("token"), "The token ends soon", "Set another than "+token+".")
	}
	if c.Directory.IsUnknown() {
		resp.Diagnostics.AddAttributeWarning(path.Root("directory"), "The directory is not known yet",
			"Plans are made without it; everything else fails until it is known.")
		return
	}
	w, err := world.Open(c.Directory.ValueString())
	if err != nil {
		resp.Diagnostics.AddAttributeError(path.Root("directory"), "The directory cannot be opened", err.Error())
		return
	}
	if err := w.Note(world.Entry{Call: "configure"}); err != nil {
		resp.Diagnostics.AddError("The log cannot be written", err.Error())
		return
	}
	delay, _ := time.ParseDuration(c.Delay.ValueString()) // validated; 0 if not set
	known := &configured{world: w, delay: delay, refuseInUse: c.RefuseInUse.ValueBool(), logReads: c.LogReads.IsNull() || c.LogReads.ValueBool()}
	resp.ResourceData, resp.DataSourceData = known, known
}

func (*demo) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		newFile, newNetwork, newServer, newSecret, newCollection, newLegacy, newSlow,
		newFlaky, newPrivate, newIdentity, newUnknown, newCross,
	}
}

func (*demo) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{newFileData, newLookupData}
}

func (*demo) Functions(context.Context) []func() function.Function {
	return []func() function.Function{newLabel}
}
