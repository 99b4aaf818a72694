// Package host calls a provider in the same order as Terraform and OpenTofu, within the process of
// a test, and verifies that it keeps its plans. Configurations are JSON. An attribute of dynamic
// type is {"type": …, "value": …}.
package host

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/value"
)

// Host is a provider with a configuration.
type Host struct {
	t      testing.TB
	server tfprotov6.ProviderServer
	has    *tfprotov6.GetProviderSchemaResponse
}

// Thing is a resource as a host stores it.
type Thing struct {
	Type     string
	State    tftypes.Value
	Private  []byte
	Identity *tfprotov6.ResourceIdentityData
}

// Plan is a provider's plan for a resource.
type Plan struct {
	Thing    Thing // before the change
	Config   tftypes.Value
	Planned  tftypes.Value
	Replace  []string
	Says     []string
	private  []byte
	identity *tfprotov6.ResourceIdentityData
	lenient  bool
}

// Start loads the schemas and configures the provider. It fails the test on errors.
func Start(t testing.TB, server tfprotov6.ProviderServer, config string) *Host {
	t.Helper()
	h := Open(t, server)
	if says := h.Configure(config); len(says) > 0 {
		t.Fatalf("the configuration was not taken: %q", says)
	}
	return h
}

// Open only loads the schemas.
func Open(t testing.TB, server tfprotov6.ProviderServer) *Host {
	t.Helper()
	h := &Host{t: t, server: server}
	has, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	h.must(err)
	if says := plain(has.Diagnostics); len(says) > 0 {
		t.Fatalf("the schemas are not valid: %q", says)
	}
	h.has = has
	return h
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// Schemas returns the provider's schemas.
func (h *Host) Schemas() *tfprotov6.GetProviderSchemaResponse { return h.has }

// Configure validates the configuration and configures the provider.
func (h *Host) Configure(config string) []string {
	h.t.Helper()
	encoded := h.wire(h.has.Provider, h.decode(h.has.Provider, config))
	valid, err := h.server.ValidateProviderConfig(h.t.Context(), &tfprotov6.ValidateProviderConfigRequest{Config: encoded})
	h.must(err)
	if says := plain(valid.Diagnostics); len(says) > 0 {
		return says
	}
	answer, err := h.server.ConfigureProvider(h.t.Context(), &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.12.0", Config: encoded})
	h.must(err)
	return plain(answer.Diagnostics)
}

func (h *Host) schema(typ string) *tfprotov6.Schema {
	h.t.Helper()
	schema := h.has.ResourceSchemas[typ]
	if schema == nil {
		h.t.Fatalf("the provider has no type %s", typ)
	}
	return schema
}

// decode decodes a configuration. Missing blocks become empty collections, not null.
func (h *Host) decode(schema *tfprotov6.Schema, config string) tftypes.Value {
	h.t.Helper()
	if config == "" {
		return tftypes.NewValue(schema.ValueType(), nil)
	}
	v, err := value.Decode([]byte(config), schema.ValueType())
	h.must(err)
	return withBlocks(schema.Block, v)
}

func (h *Host) wire(schema *tfprotov6.Schema, v tftypes.Value) *tfprotov6.DynamicValue {
	h.t.Helper()
	encoded, err := tfprotov6.NewDynamicValue(schema.ValueType(), v)
	h.must(err)
	return &encoded
}

func (h *Host) unwire(schema *tfprotov6.Schema, encoded *tfprotov6.DynamicValue) tftypes.Value {
	h.t.Helper()
	if encoded == nil {
		return tftypes.NewValue(schema.ValueType(), nil)
	}
	v, err := encoded.Unmarshal(schema.ValueType())
	h.must(err)
	return v
}

// Validate validates a configuration.
func (h *Host) Validate(typ, config string) []string {
	h.t.Helper()
	schema := h.schema(typ)
	answer, err := h.server.ValidateResourceConfig(h.t.Context(), &tfprotov6.ValidateResourceConfigRequest{TypeName: typ, Config: h.wire(schema, h.decode(schema, config)),
		ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true}})
	h.must(err)
	return plain(answer.Diagnostics)
}

// Plan plans a thing. Without a state it plans a create, with the configuration "" a delete.
func (h *Host) Plan(thing Thing, config string) Plan {
	h.t.Helper()
	schema := h.schema(thing.Type)
	if thing.State.Type() == nil {
		thing.State = tftypes.NewValue(schema.ValueType(), nil)
	}
	if config != "" {
		if says := errorsOf(h.Validate(thing.Type, config)); len(says) > 0 {
			return Plan{Thing: thing, Says: says}
		}
	}
	return h.plan(schema, thing, h.decode(schema, config))
}

func (h *Host) plan(schema *tfprotov6.Schema, thing Thing, config tftypes.Value) Plan {
	h.t.Helper()
	answer, err := h.server.PlanResourceChange(h.t.Context(), &tfprotov6.PlanResourceChangeRequest{
		TypeName: thing.Type, PriorState: h.wire(schema, thing.State), Config: h.wire(schema, config),
		ProposedNewState: h.wire(schema, withoutWriteOnly(schema.Block, proposed(schema.Block, thing.State, config))),
		PriorPrivate:     thing.Private, PriorIdentity: thing.Identity,
	})
	h.must(err)
	p := Plan{Thing: thing, Config: config, Says: plain(answer.Diagnostics), private: answer.PlannedPrivate, identity: answer.PlannedIdentity, lenient: answer.UnsafeToUseLegacyTypeSystem}
	if len(errorsOf(p.Says)) == 0 {
		p.Planned = h.unwire(schema, answer.PlannedState)
	}
	for _, path := range answer.RequiresReplace {
		p.Replace = append(p.Replace, path.String())
	}
	return p
}

// Apply applies a plan. It returns errors and warnings, and all deviations from the plan.
func (h *Host) Apply(p Plan) (Thing, []string) {
	h.t.Helper()
	if says := errorsOf(p.Says); len(says) > 0 {
		h.t.Fatalf("the plan of %s failed: %q", p.Thing.Type, says)
	}
	schema := h.schema(p.Thing.Type)
	answer, err := h.server.ApplyResourceChange(h.t.Context(), &tfprotov6.ApplyResourceChangeRequest{
		TypeName: p.Thing.Type, PriorState: h.wire(schema, p.Thing.State), PlannedState: h.wire(schema, p.Planned),
		Config: h.wire(schema, p.Config), PlannedPrivate: p.private, PlannedIdentity: p.identity,
	})
	h.must(err)
	thing := Thing{Type: p.Thing.Type, State: h.unwire(schema, answer.NewState), Private: answer.Private, Identity: answer.NewIdentity}
	says := plain(answer.Diagnostics)
	if len(errorsOf(says)) == 0 && !p.lenient {
		says = append(says, broken(p.Planned, thing.State)...)
	}
	return thing, says
}

// Make plans and applies. It fails the test on errors.
func (h *Host) Make(thing Thing, config string) Thing {
	h.t.Helper()
	p := h.Plan(thing, config)
	if len(p.Replace) > 0 && !thing.State.IsNull() {
		h.t.Fatalf("%s would be replaced, because of %q", thing.Type, p.Replace)
	}
	made, says := h.Apply(p)
	if says = errorsOf(says); len(says) > 0 {
		h.t.Fatalf("%s: %q", thing.Type, says)
	}
	return made
}

// Read refreshes a thing.
func (h *Host) Read(thing Thing) (Thing, []string) {
	h.t.Helper()
	schema := h.schema(thing.Type)
	answer, err := h.server.ReadResource(h.t.Context(), &tfprotov6.ReadResourceRequest{TypeName: thing.Type, CurrentState: h.wire(schema, thing.State), Private: thing.Private, CurrentIdentity: thing.Identity})
	h.must(err)
	return Thing{Type: thing.Type, State: h.unwire(schema, answer.NewState), Private: answer.Private, Identity: answer.NewIdentity}, plain(answer.Diagnostics)
}

// Import imports a thing, and reads it.
func (h *Host) Import(typ, id string, identity *tfprotov6.ResourceIdentityData) (Thing, []string) {
	h.t.Helper()
	answer, err := h.server.ImportResourceState(h.t.Context(), &tfprotov6.ImportResourceStateRequest{TypeName: typ, ID: id, Identity: identity})
	h.must(err)
	if says := plain(answer.Diagnostics); len(says) > 0 {
		return Thing{}, says
	}
	found := answer.ImportedResources[0]
	return h.Read(Thing{Type: found.TypeName, State: h.unwire(h.schema(typ), found.State), Private: found.Private, Identity: found.Identity})
}

// Upgrade upgrades stored state.
func (h *Host) Upgrade(typ string, version int64, stored string) (tftypes.Value, []string) {
	h.t.Helper()
	answer, err := h.server.UpgradeResourceState(h.t.Context(), &tfprotov6.UpgradeResourceStateRequest{TypeName: typ, Version: version, RawState: &tfprotov6.RawState{JSON: []byte(stored)}})
	h.must(err)
	return h.unwire(h.schema(typ), answer.UpgradedState), plain(answer.Diagnostics)
}

// Data reads a data source.
func (h *Host) Data(typ, config string) (tftypes.Value, []string) {
	h.t.Helper()
	schema := h.has.DataSourceSchemas[typ]
	answer, err := h.server.ReadDataSource(h.t.Context(), &tfprotov6.ReadDataSourceRequest{TypeName: typ, Config: h.wire(schema, h.decode(schema, config))})
	h.must(err)
	return h.unwire(schema, answer.State), plain(answer.Diagnostics)
}

// Get returns an attribute as JSON.
func Get(v tftypes.Value, name string) string {
	var all map[string]tftypes.Value
	if v.As(&all) != nil {
		return ""
	}
	return Show(all[name])
}

// plain formats diagnostics: "error: SUMMARY: DETAIL (PATH)".
func plain(diagnostics []*tfprotov6.Diagnostic) []string {
	var all []string
	for _, d := range diagnostics {
		text := fmt.Sprintf("%s: %s: %s", strings.ToLower(d.Severity.String()), d.Summary, d.Detail)
		if d.Attribute != nil && len(d.Attribute.Steps()) > 0 {
			text += " (" + d.Attribute.String() + ")"
		}
		all = append(all, text)
	}
	return all
}

func errorsOf(says []string) []string {
	var all []string
	for _, text := range says {
		if !strings.HasPrefix(text, "warning: ") {
			all = append(all, text)
		}
	}
	return all
}

// Stop calls StopProvider.
func (h *Host) Stop() {
	h.t.Helper()
	_, err := h.server.StopProvider(context.WithoutCancel(h.t.Context()), &tfprotov6.StopProviderRequest{})
	h.must(err)
}
