package main

import (
	"context"
	"sync"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/bare"
)

func (e *evil) GetProviderSchema(ctx context.Context, req *tfprotov6.GetProviderSchemaRequest) (*tfprotov6.GetProviderSchemaResponse, error) {
	m := e.mood("schema", nil)
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.GetProviderSchema(ctx, req)
	m.after()
	return answer, err
}

func (e *evil) ConfigureProvider(ctx context.Context, req *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	configured, err := bare.Fields(req.Config, e.Config)
	if err != nil {
		return nil, err
	}
	e.configured = configured
	m := e.mood("configure", nil)
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.ConfigureProvider(ctx, req)
	m.after()
	return answer, err
}

func (e *evil) ValidateResourceConfig(ctx context.Context, req *tfprotov6.ValidateResourceConfigRequest) (*tfprotov6.ValidateResourceConfigResponse, error) {
	m := e.mood("validate", e.fields(req.TypeName, req.Config))
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.ValidateResourceConfig(ctx, req)
	m.after()
	if err != nil {
		return nil, err
	}
	same := req.Config
	return answer, m.spoil(&same, &answer.Diagnostics)
}

func (e *evil) UpgradeResourceState(ctx context.Context, req *tfprotov6.UpgradeResourceStateRequest) (*tfprotov6.UpgradeResourceStateResponse, error) {
	answer, err := e.Server.UpgradeResourceState(ctx, req)
	if err != nil {
		return nil, err
	}
	m := e.mood("upgrade", e.fields(req.TypeName, answer.UpgradedState))
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	m.after()
	return answer, m.spoil(&answer.UpgradedState, &answer.Diagnostics)
}

func (e *evil) ReadResource(ctx context.Context, req *tfprotov6.ReadResourceRequest) (*tfprotov6.ReadResourceResponse, error) {
	m := e.mood("read", e.fields(req.TypeName, req.CurrentState))
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.ReadResource(ctx, req)
	m.after()
	if err != nil {
		return nil, err
	}
	return answer, m.spoil(&answer.NewState, &answer.Diagnostics)
}

func (e *evil) PlanResourceChange(ctx context.Context, req *tfprotov6.PlanResourceChangeRequest) (*tfprotov6.PlanResourceChangeResponse, error) {
	resource := e.fields(req.TypeName, req.ProposedNewState, req.PriorState)
	m := e.mood("plan", resource)
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.PlanResourceChange(ctx, req)
	m.after()
	if err != nil {
		return nil, err
	}
	if m.behaviour == "replaces" && e.asked.next(bare.Text(resource, "name")) > 1 {
		answer.RequiresReplace = append(answer.RequiresReplace, tftypes.NewAttributePath().WithAttributeName("value"))
	}
	return answer, m.spoil(&answer.PlannedState, &answer.Diagnostics)
}

func (e *evil) ApplyResourceChange(ctx context.Context, req *tfprotov6.ApplyResourceChangeRequest) (*tfprotov6.ApplyResourceChangeResponse, error) {
	call := "update apply"
	if e.fields(req.TypeName, req.PriorState) == nil {
		call = "create apply"
	} else if e.fields(req.TypeName, req.PlannedState) == nil {
		call = "delete apply"
	}
	m := e.mood(call, e.fields(req.TypeName, req.PlannedState, req.PriorState))
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	answer, err := e.Server.ApplyResourceChange(ctx, req)
	m.after()
	if err != nil {
		return nil, err
	}
	return answer, m.spoil(&answer.NewState, &answer.Diagnostics)
}

func (e *evil) ImportResourceState(ctx context.Context, req *tfprotov6.ImportResourceStateRequest) (*tfprotov6.ImportResourceStateResponse, error) {
	answer, err := e.Server.ImportResourceState(ctx, req)
	if err != nil || len(answer.ImportedResources) == 0 {
		return answer, err
	}
	m := e.mood("import", e.fields(req.TypeName, answer.ImportedResources[0].State))
	if err := m.before(ctx); err != nil {
		return nil, err
	}
	m.after()
	return answer, m.spoil(&answer.ImportedResources[0].State, &answer.Diagnostics)
}

// counter counts by name.
type counter struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counter) next(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[name]++
	return c.of[name]
}

func providerSchema() *tfprotov6.Schema {
	return &tfprotov6.Schema{Block: &tfprotov6.SchemaBlock{Attributes: []*tfprotov6.SchemaAttribute{
		{Name: "behaviour", Type: tftypes.String, Optional: true, Description: "The behaviour."},
		{Name: "call", Type: tftypes.String, Optional: true, Description: "The affected call."},
		{Name: "directory", Type: tftypes.String, Optional: true, Description: "The world: an absolute path."},
		{Name: "log_reads", Type: tftypes.Bool, Optional: true, Description: "Whether calls that only read are logged. Defaults to true."},
		{Name: "size", Type: tftypes.String, Optional: true, Description: "MiB that it writes or answers."},
	}}}
}

// thingSchema has the blocks that the framework does not support: a map of blocks, and a group.
func thingSchema() *tfprotov6.Schema {
	text := func(name string) *tfprotov6.SchemaAttribute {
		return &tfprotov6.SchemaAttribute{Name: name, Type: tftypes.String, Optional: true}
	}
	block := func(attributes ...*tfprotov6.SchemaAttribute) *tfprotov6.SchemaBlock {
		return &tfprotov6.SchemaBlock{Attributes: attributes}
	}
	return &tfprotov6.Schema{Version: 1, Block: &tfprotov6.SchemaBlock{
		Description: "Honest until told otherwise.",
		Attributes: []*tfprotov6.SchemaAttribute{
			text("behaviour"), text("call"),
			{Name: "id", Type: tftypes.String, Computed: true},
			{Name: "mood", Type: tftypes.String, Computed: true, Description: "Where it is shifty or huge."},
			{Name: "name", Type: tftypes.String, Required: true},
			{Name: "revision", Type: tftypes.Number, Computed: true},
			{Name: "secret", Type: tftypes.String, Optional: true, Sensitive: true, Description: "What it leaks."},
			text("size"),
			text("value"),
			{Name: "zone", Type: tftypes.String, Optional: true, Description: "Replaces."},
		},
		BlockTypes: []*tfprotov6.SchemaNestedBlock{
			{TypeName: "label", Nesting: tfprotov6.SchemaNestedBlockNestingModeMap, Block: block(text("text"))},
			{TypeName: "options", Nesting: tfprotov6.SchemaNestedBlockNestingModeGroup, Block: block(text("first"), text("second"))},
			{TypeName: "part", Nesting: tfprotov6.SchemaNestedBlockNestingModeList, MinItems: 0, MaxItems: 2, Block: block(
				&tfprotov6.SchemaAttribute{Name: "size", Type: tftypes.Number, Required: true},
				text("text"),
			)},
			{TypeName: "rule", Nesting: tfprotov6.SchemaNestedBlockNestingModeSet, Block: block(text("port"))},
			{TypeName: "single", Nesting: tfprotov6.SchemaNestedBlockNestingModeSingle, Block: block(text("text"))},
		},
	}}
}
