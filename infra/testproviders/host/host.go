// Package host asks a provider in the order that Terraform and OpenTofu do, in the process of
// a test, and holds it to what it planned. Configurations are JSON, an attribute of any
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

// Thing is a resource: what a host keeps of it.
type Thing struct {
	Type     string
	State    tftypes.Value
	Private  []byte
	Identity *tfprotov6.ResourceIdentityData
}

// Plan is what a provider wants to do.
type Plan struct {
	Thing    Thing // as it is before
	Config   tftypes.Value
	Planned  tftypes.Value
	Replace  []string
	Says     []string
	private  []byte
	identity *tfprotov6.ResourceIdentityData
	lenient  bool
}

// Start gets the schemas and configures the provider, which has to succeed.
func Start(t testing.TB, server tfprotov6.ProviderServer, config string) *Host {
	t.Helper()
	h := Open(t, server)
	if says := h.Configure(config); len(says) > 0 {
		t.Fatalf("the configuration was not taken: %q", says)
	}
	return h
}

// Open gets the schemas only.
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

// Schemas are all that the provider has.
func (h *Host) Schemas() *tfprotov6.GetProviderSchemaResponse { return h.has }

// Configure validates and configures.
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

// decode reads a configuration. Blocks that are not there are none, not null.
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

// Validate asks about a configuration.
func (h *Host) Validate(typ, config string) []string {
	h.t.Helper()
	schema := h.schema(typ)
	answer, err := h.server.ValidateResourceConfig(h.t.Context(), &tfprotov6.ValidateResourceConfigRequest{TypeName: typ, Config: h.wire(schema, h.decode(schema, config)),
		ClientCapabilities: &tfprotov6.ValidateResourceConfigClientCapabilities{WriteOnlyAttributesAllowed: true}})
	h.must(err)
	return plain(answer.Diagnostics)
}

// Plan asks what would become of a thing. A thing without state is to be created, a configuration ""
// deletes.
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

// Apply carries a plan out. What the provider says is errors and warnings, and what it broke of
// its plan.
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

// Make plans and applies, which has to succeed.
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

// Import finds a thing, and reads it.
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

// Upgrade brings stored state into its present form.
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

// Get is an attribute as JSON.
func Get(v tftypes.Value, name string) string {
	var all map[string]tftypes.Value
	if v.As(&all) != nil {
		return ""
	}
	return Show(all[name])
}

// plain writes diagnostics as text: "error: SUMMARY: DETAIL (PATH)".
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

// Stop tells the provider to end its calls.
func (h *Host) Stop() {
	h.t.Helper()
	_, err := h.server.StopProvider(context.WithoutCancel(h.t.Context()), &tfprotov6.StopProviderRequest{})
	h.must(err)
}
