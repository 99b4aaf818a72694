package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// terraformVersion is the OpenTofu version that providers are configured with. Some providers
// change their behaviour with it.
const terraformVersion = "1.12.6"

// clientCapabilities returns the client capabilities announced to providers. Deferred answers are
// not supported.
func clientCapabilities() *tfplugin6.ClientCapabilities {
	return &tfplugin6.ClientCapabilities{WriteOnlyAttributesAllowed: true}
}

// A rejectedConfigError reports that the provider rejected its configuration.
type rejectedConfigError struct {
	name        string
	diagnostics providerapi.Diagnostics
}

func (r *rejectedConfigError) Error() string {
	var summaries []string
	for _, d := range r.diagnostics {
		if !d.Warning {
			summaries = append(summaries, d.Summary)
		}
	}
	return fmt.Sprintf("provider %s: %v: the configuration was rejected: %s", r.name, providerapi.ErrNotCalled, strings.Join(summaries, "; "))
}

func (r *rejectedConfigError) Unwrap() error { return providerapi.ErrNotCalled }

// prepare makes a process ready for calls. It requests the schema first, because some providers
// expect that call, and then configures the process.
func (i *Instance) prepare(ctx context.Context, p *process) (providerapi.Diagnostics, error) {
	switch {
	case i.catalog == nil:
		catalog, err := p.loadCatalog(ctx)
		if err != nil {
			return nil, err
		}
		i.setCatalog(catalog)
		p.mask = i.mask
	case i.catalog.protocol != p.protocol:
		return nil, fmt.Errorf("provider %s: %w: it speaks protocol version %d, but its catalog was loaded with version %d; load the catalog again",
			p.name, providerapi.ErrNotCalled, p.protocol, i.catalog.protocol)
	case !i.catalog.schemaOptional:
		if _, err := p.rawSchema(ctx); err != nil {
			return nil, p.notReady("GetProviderSchema", err)
		}
	}
	if i.schemaOnly {
		return nil, nil
	}
	return i.configure(ctx, p)
}

func (p *process) notReady(method string, err error) error {
	return fmt.Errorf("provider %s: %s: %w: %w", p.name, method, providerapi.ErrNotCalled, p.explain(err))
}

func (i *Instance) configure(ctx context.Context, p *process) (providerapi.Diagnostics, error) {
	schema := i.catalog.Config()
	config, err := encode(i.settings.Config, schema.Block.ImpliedType())
	if err != nil {
		return nil, fmt.Errorf("configuration of provider %s: %w", p.name, err)
	}
	valid := &tfplugin6.ValidateProviderConfig_Response{}
	if err := p.invoke(ctx, "ValidateProviderConfig", &tfplugin6.ValidateProviderConfig_Request{Config: config}, valid); err != nil {
		return nil, p.notReady("ValidateProviderConfig", err)
	}
	diagnostics := i.diagnostics(valid.Diagnostics)
	if diagnostics.Failed() {
		return nil, &rejectedConfigError{p.name, diagnostics}
	}
	done := &tfplugin6.ConfigureProvider_Response{}
	request := &tfplugin6.ConfigureProvider_Request{TerraformVersion: terraformVersion, Config: config, ClientCapabilities: clientCapabilities()}
	if err := p.invoke(ctx, "ConfigureProvider", request, done); err != nil {
		return nil, p.notReady("ConfigureProvider", err)
	}
	diagnostics = append(diagnostics, i.diagnostics(done.Diagnostics)...)
	if diagnostics.Failed() {
		return nil, &rejectedConfigError{p.name, diagnostics}
	}
	return diagnostics, nil
}

// ValidateResource validates the configuration of a resource.
func (i *Instance) ValidateResource(ctx context.Context, typeName string, config *providerapi.Configuration) (providerapi.Diagnostics, error) {
	k, err := i.catalog.resource(typeName)
	if err != nil {
		return nil, err
	}
	encoded, err := k.encodeConfig(config)
	if err != nil {
		return nil, err
	}
	request := &tfplugin6.ValidateResourceConfig_Request{TypeName: typeName, Config: encoded, ClientCapabilities: clientCapabilities()}
	answer := &tfplugin6.ValidateResourceConfig_Response{}
	err = i.call(ctx, i.localCall("ValidateResourceConfig", typeName), request, answer)
	return i.diagnostics(answer.Diagnostics), err
}

// ValidateData validates the configuration of a data source.
func (i *Instance) ValidateData(ctx context.Context, typeName string, config cty.Value) (providerapi.Diagnostics, error) {
	k, err := i.catalog.dataSource(typeName)
	if err != nil {
		return nil, err
	}
	encoded, err := k.encode("configuration", config)
	if err != nil {
		return nil, err
	}
	request := &tfplugin6.ValidateDataResourceConfig_Request{TypeName: typeName, Config: encoded}
	answer := &tfplugin6.ValidateDataResourceConfig_Response{}
	err = i.call(ctx, i.localCall("ValidateDataResourceConfig", typeName), request, answer)
	return i.diagnostics(answer.Diagnostics), err
}

// Upgrade converts stored state to the schema of this provider version.
func (i *Instance) Upgrade(ctx context.Context, typeName string, stored providerapi.StoredState) (providerapi.UpgradeAnswer, error) {
	k, err := i.catalog.resource(typeName)
	if err != nil {
		return providerapi.UpgradeAnswer{}, err
	}
	request := &tfplugin6.UpgradeResourceState_Request{
		TypeName: typeName, Version: stored.Version,
		RawState: &tfplugin6.RawState{Json: stored.JSON, Flatmap: stored.Flat},
	}
	answer := &tfplugin6.UpgradeResourceState_Response{}
	err = i.call(ctx, i.localCall("UpgradeResourceState", typeName), request, answer)
	a := providerapi.UpgradeAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err != nil {
		return a, err
	}
	a.Value, err = i.decodeState(k, "UpgradeResourceState", answer.UpgradedState, &a.Diagnostics)
	return a, err
}

// Read refreshes the state of a resource.
func (i *Instance) Read(ctx context.Context, r providerapi.ReadRequest) (providerapi.ReadAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return providerapi.ReadAnswer{}, err
	}
	request := &tfplugin6.ReadResource_Request{TypeName: r.Type, Private: r.State.Private, ClientCapabilities: clientCapabilities()}
	if request.CurrentState, err = k.encode("state", r.State.Value); err != nil {
		return providerapi.ReadAnswer{}, err
	}
	if request.CurrentIdentity, err = k.encodeIdentity(r.State.Identity); err != nil {
		return providerapi.ReadAnswer{}, err
	}
	answer := &tfplugin6.ReadResource_Response{}
	err = i.call(ctx, i.remoteCall("ReadResource", r.Type), request, answer)
	a := providerapi.ReadAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err == nil {
		err = i.notDeferred("ReadResource", r.Type, answer.Deferred)
	}
	if err != nil {
		return a, err
	}
	a.State.Private = answer.Private
	if a.State.Value, err = i.decodeState(k, "ReadResource", answer.NewState, &a.Diagnostics); err != nil {
		return a, err
	}
	a.State.Identity, err = i.decodeIdentity(k, "ReadResource", answer.NewIdentity)
	return a, err
}

// Plan computes the planned state of a resource.
func (i *Instance) Plan(ctx context.Context, r providerapi.PlanRequest) (providerapi.PlanAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return providerapi.PlanAnswer{}, err
	}
	if isNull(r.Proposed) && !i.catalog.planDestroy {
		// Without the planDestroy capability a provider has nothing to say about a deletion, and
		// may not expect the call.
		return providerapi.PlanAnswer{Planned: cty.NullVal(k.implied), Private: r.Private, Identity: r.Identity}, nil
	}
	request := &tfplugin6.PlanResourceChange_Request{TypeName: r.Type, PriorPrivate: r.Private, ClientCapabilities: clientCapabilities()}
	if request.PriorState, err = k.encode("state", r.Prior); err != nil {
		return providerapi.PlanAnswer{}, err
	}
	if request.Config, err = k.encodeConfig(r.Config); err != nil {
		return providerapi.PlanAnswer{}, err
	}
	if request.ProposedNewState = request.Config; !r.AsWritten {
		if request.ProposedNewState, err = k.encode("proposed state", r.Proposed); err != nil {
			return providerapi.PlanAnswer{}, err
		}
	}
	if request.PriorIdentity, err = k.encodeIdentity(r.Identity); err != nil {
		return providerapi.PlanAnswer{}, err
	}
	answer := &tfplugin6.PlanResourceChange_Response{}
	err = i.call(ctx, i.remoteCall("PlanResourceChange", r.Type), request, answer)
	if err == nil {
		err = i.notDeferred("PlanResourceChange", r.Type, answer.Deferred)
	}
	if err != nil {
		return providerapi.PlanAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}, err
	}
	return i.planned(k, answer)
}

func (i *Instance) planned(k *typeSchema, answer *tfplugin6.PlanResourceChange_Response) (providerapi.PlanAnswer, error) {
	a := providerapi.PlanAnswer{
		Private:     answer.PlannedPrivate,
		Lenient:     answer.LegacyTypeSystem,
		Diagnostics: i.diagnostics(answer.Diagnostics),
	}
	for _, path := range answer.RequiresReplace {
		a.Replace = append(a.Replace, decodePath(path))
	}
	var err error
	if a.Planned, err = i.decodeState(k, "PlanResourceChange", answer.PlannedState, &a.Diagnostics); err != nil {
		return a, err
	}
	if packed := answer.PlannedState.GetMsgpack(); len(packed) > 0 && !k.writeOnly {
		if rest, err := checkMsgpack(packed); err == nil && len(rest) == 0 {
			a.Encoded = packed
		}
	}
	a.Identity, err = i.decodeIdentity(k, "PlanResourceChange", answer.PlannedIdentity)
	return a, err
}

// Apply applies the planned change. Once the provider has received the call, cancelling ctx does
// not interrupt it: the answer, and with it any created resource, would be lost. The call ends with
// its own timeout, or with Close, which asks the provider to stop.
func (i *Instance) Apply(ctx context.Context, r providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return providerapi.ApplyAnswer{}, err
	}
	request := &tfplugin6.ApplyResourceChange_Request{TypeName: r.Type, PlannedPrivate: r.Private}
	if request.PriorState, err = k.encode("state", r.Prior); err != nil {
		return providerapi.ApplyAnswer{}, err
	}
	if request.PlannedState, err = k.encode("planned state", r.Planned); err != nil {
		return providerapi.ApplyAnswer{}, err
	}
	if request.Config, err = k.encode("configuration", r.Config); err != nil {
		return providerapi.ApplyAnswer{}, err
	}
	if request.PlannedIdentity, err = k.encodeIdentity(r.Identity); err != nil {
		return providerapi.ApplyAnswer{}, err
	}
	spec := i.remoteCall("ApplyResourceChange", r.Type)
	spec.timeout, spec.finish = i.settings.Limits.ApplyTimeout, true
	spec.name = nameOf(r, k)
	answer := &tfplugin6.ApplyResourceChange_Response{}
	err = i.callOnce(ctx, spec, request, answer)
	a := providerapi.ApplyAnswer{Lenient: answer.LegacyTypeSystem, Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err != nil {
		return a, err
	}
	a.State.Private = answer.Private
	if a.State.Value, err = i.decodeState(k, "ApplyResourceChange", answer.NewState, &a.Diagnostics); err != nil {
		return a, err
	}
	a.State.Identity, err = i.decodeIdentity(k, "ApplyResourceChange", answer.NewIdentity)
	return a, err
}

// Import imports a resource by its ID, or by its identity as a JSON object.
func (i *Instance) Import(ctx context.Context, typeName, id string) (providerapi.ImportAnswer, error) {
	k, err := i.catalog.resource(typeName)
	if err != nil {
		return providerapi.ImportAnswer{}, err
	}
	request := &tfplugin6.ImportResourceState_Request{TypeName: typeName, Id: id, ClientCapabilities: clientCapabilities()}
	identity, problem := k.parseIdentity(id)
	switch {
	case problem != "":
		return providerapi.ImportAnswer{Diagnostics: providerapi.Diagnostics{{Summary: "Invalid Identity", Detail: problem}}}, nil
	case identity != cty.NilVal:
		request.Id = ""
		if request.Identity, err = k.encodeIdentity(identity); err != nil {
			return providerapi.ImportAnswer{}, err
		}
	}
	answer := &tfplugin6.ImportResourceState_Response{}
	err = i.call(ctx, i.remoteCall("ImportResourceState", typeName), request, answer)
	a := providerapi.ImportAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err == nil {
		err = i.notDeferred("ImportResourceState", typeName, answer.Deferred)
	}
	if err != nil {
		return a, err
	}
	for _, found := range answer.ImportedResources {
		imported, err := i.imported(found, &a.Diagnostics)
		if err != nil {
			return a, err
		}
		a.Found = append(a.Found, imported)
	}
	return a, nil
}

func (i *Instance) imported(found *tfplugin6.ImportResourceState_ImportedResource, diagnostics *providerapi.Diagnostics) (providerapi.Imported, error) {
	is := providerapi.Imported{Type: found.TypeName, State: providerapi.State{Private: found.Private}}
	k, err := i.catalog.resource(found.TypeName)
	if err != nil {
		return is, err
	}
	if is.State.Value, err = i.decodeState(k, "ImportResourceState", found.State, diagnostics); err != nil {
		return is, err
	}
	is.State.Identity, err = i.decodeIdentity(k, "ImportResourceState", found.Identity)
	return is, err
}

// Move converts the state of another type. A provider that does not know the call cannot convert any.
func (i *Instance) Move(ctx context.Context, r providerapi.MoveRequest) (providerapi.MoveAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return providerapi.MoveAnswer{}, err
	}
	if !i.catalog.moves {
		return providerapi.MoveAnswer{Diagnostics: providerapi.Diagnostics{{
			Summary: "Move Not Supported", Detail: "The provider cannot convert the state of another type.",
		}}}, nil
	}
	request := &tfplugin6.MoveResourceState_Request{
		TargetTypeName: r.Type, SourceProviderAddress: r.SourceProvider, SourceTypeName: r.SourceType, SourceSchemaVersion: r.SourceState.Version,
		SourceState: &tfplugin6.RawState{Json: r.SourceState.JSON, Flatmap: r.SourceState.Flat}, SourcePrivate: r.SourcePrivate,
	}
	if len(r.SourceIdentity) > 0 {
		request.SourceIdentity = &tfplugin6.RawState{Json: r.SourceIdentity}
	}
	answer := &tfplugin6.MoveResourceState_Response{}
	err = i.call(ctx, i.localCall("MoveResourceState", r.Type), request, answer)
	a := providerapi.MoveAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err != nil {
		return a, err
	}
	a.State.Private = answer.TargetPrivate
	if a.State.Value, err = i.decodeState(k, "MoveResourceState", answer.TargetState, &a.Diagnostics); err != nil {
		return a, err
	}
	a.State.Identity, err = i.decodeIdentity(k, "MoveResourceState", answer.TargetIdentity)
	return a, err
}

// ReadData reads a data source.
func (i *Instance) ReadData(ctx context.Context, typeName string, config cty.Value) (providerapi.DataAnswer, error) {
	k, err := i.catalog.dataSource(typeName)
	if err != nil {
		return providerapi.DataAnswer{}, err
	}
	encoded, err := k.encode("configuration", config)
	if err != nil {
		return providerapi.DataAnswer{}, err
	}
	request := &tfplugin6.ReadDataSource_Request{TypeName: typeName, Config: encoded, ClientCapabilities: clientCapabilities()}
	answer := &tfplugin6.ReadDataSource_Response{}
	err = i.call(ctx, i.remoteCall("ReadDataSource", typeName), request, answer)
	a := providerapi.DataAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err == nil {
		err = i.notDeferred("ReadDataSource", typeName, answer.Deferred)
	}
	if err != nil {
		return a, err
	}
	a.Value, err = i.decodeState(k, "ReadDataSource", answer.State, &a.Diagnostics)
	return a, err
}

// localCall describes a call that a provider answers without leaving its process, remoteCall one
// that can reach the infrastructure that it manages.
func (i *Instance) localCall(method, about string) callSpec {
	return callSpec{method: method, about: about, timeout: i.settings.Limits.CallTimeout}
}

func (i *Instance) remoteCall(method, about string) callSpec {
	spec := i.localCall(method, about)
	spec.remote = true
	return spec
}

// notDeferred rejects deferred answers, which we announced that we do not support.
func (i *Instance) notDeferred(method, about string, deferred *tfplugin6.Deferred) error {
	if deferred == nil {
		return nil
	}
	return fmt.Errorf("provider %s: %s of %s: the provider deferred its answer (%s), although Atoll does not support deferred answers; update the provider",
		i.binary.Name, method, about, deferred.Reason)
}

// optional ignores the error of a call that the provider does not implement.
func optional(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// errNoSchema reports a GetProviderSchema answer without a schema for the provider's configuration.
var errNoSchema = errors.New("it has no schema for the provider configuration")
