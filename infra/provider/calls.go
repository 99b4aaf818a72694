package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/tfplugin6"
)

// likeVersion is the version of OpenTofu that providers are told to work for. Some change
// their ways with it.
const likeVersion = "1.12.6"

// able is what providers may count on. Putting answers off is not among it.
func able() *tfplugin6.ClientCapabilities {
	return &tfplugin6.ClientCapabilities{WriteOnlyAttributesAllowed: true}
}

// A refusal is of a provider that does not want its configuration.
type refusal struct {
	name        string
	diagnostics contract.Diagnostics
}

func (r *refusal) Error() string {
	var said []string
	for _, d := range r.diagnostics {
		if !d.Warning {
			said = append(said, d.Summary)
		}
	}
	return fmt.Sprintf("provider %s: %v: it refuses its configuration: %s", r.name, contract.ErrNotAsked, strings.Join(said, "; "))
}

func (r *refusal) Unwrap() error { return contract.ErrNotAsked }

// prepare gets a process ready for calls: its schema first, which some providers need
// to have been asked for, then its configuration.
func (i *Instance) prepare(ctx context.Context, p *process) (contract.Diagnostics, error) {
	switch {
	case i.catalog == nil:
		catalog, err := p.loadCatalog(ctx)
		if err != nil {
			return nil, err
		}
		i.know(catalog)
		p.mask = i.mask
	case i.catalog.protocol != p.protocol:
		return nil, fmt.Errorf("provider %s: %w: it speaks version %d of the protocol and its catalog is of version %d: load its catalog anew",
			p.name, contract.ErrNotAsked, p.protocol, i.catalog.protocol)
	case !i.catalog.schemaOptional:
		if _, err := p.rawSchema(ctx); err != nil {
			return nil, p.unready("GetProviderSchema", err)
		}
	}
	if i.schemaOnly {
		return nil, nil
	}
	return i.configure(ctx, p)
}

func (p *process) unready(method string, err error) error {
	return fmt.Errorf("provider %s: %s: %w: %w", p.name, method, contract.ErrNotAsked, p.explain(err))
}

func (i *Instance) configure(ctx context.Context, p *process) (contract.Diagnostics, error) {
	schema := i.catalog.Config()
	config, err := encode(i.settings.Config, schema.Block.ImpliedType())
	if err != nil {
		return nil, fmt.Errorf("configuration of provider %s: %w", p.name, err)
	}
	valid := &tfplugin6.ValidateProviderConfig_Response{}
	if err := p.invoke(ctx, "ValidateProviderConfig", &tfplugin6.ValidateProviderConfig_Request{Config: config}, valid); err != nil {
		return nil, p.unready("ValidateProviderConfig", err)
	}
	diagnostics := i.diagnostics(valid.Diagnostics)
	if diagnostics.Failed() {
		return nil, &refusal{p.name, diagnostics}
	}
	done := &tfplugin6.ConfigureProvider_Response{}
	request := &tfplugin6.ConfigureProvider_Request{TerraformVersion: likeVersion, Config: config, ClientCapabilities: able()}
	if err := p.invoke(ctx, "ConfigureProvider", request, done); err != nil {
		return nil, p.unready("ConfigureProvider", err)
	}
	diagnostics = append(diagnostics, i.diagnostics(done.Diagnostics)...)
	if diagnostics.Failed() {
		return nil, &refusal{p.name, diagnostics}
	}
	return diagnostics, nil
}

// ValidateResource judges the configuration of a resource.
func (i *Instance) ValidateResource(ctx context.Context, typeName string, config *contract.Configuration) (contract.Diagnostics, error) {
	k, err := i.catalog.resource(typeName)
	if err != nil {
		return nil, err
	}
	encoded, err := k.encodeConfig(config)
	if err != nil {
		return nil, err
	}
	request := &tfplugin6.ValidateResourceConfig_Request{TypeName: typeName, Config: encoded, ClientCapabilities: able()}
	answer := &tfplugin6.ValidateResourceConfig_Response{}
	err = i.ask(ctx, i.locally("ValidateResourceConfig", typeName), request, answer)
	return i.diagnostics(answer.Diagnostics), err
}

// ValidateData judges the configuration of a data source.
func (i *Instance) ValidateData(ctx context.Context, typeName string, config cty.Value) (contract.Diagnostics, error) {
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
	err = i.ask(ctx, i.locally("ValidateDataResourceConfig", typeName), request, answer)
	return i.diagnostics(answer.Diagnostics), err
}

// Upgrade brings stored state into the form of this version of the provider.
func (i *Instance) Upgrade(ctx context.Context, typeName string, stored contract.StoredState) (contract.UpgradeAnswer, error) {
	k, err := i.catalog.resource(typeName)
	if err != nil {
		return contract.UpgradeAnswer{}, err
	}
	request := &tfplugin6.UpgradeResourceState_Request{
		TypeName: typeName, Version: stored.Version,
		RawState: &tfplugin6.RawState{Json: stored.JSON, Flatmap: stored.Flat},
	}
	answer := &tfplugin6.UpgradeResourceState_Response{}
	err = i.ask(ctx, i.locally("UpgradeResourceState", typeName), request, answer)
	a := contract.UpgradeAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err != nil {
		return a, err
	}
	a.Value, err = i.decodeState(k, "UpgradeResourceState", answer.UpgradedState, &a.Diagnostics)
	return a, err
}

// Read looks what became of a resource.
func (i *Instance) Read(ctx context.Context, r contract.ReadRequest) (contract.ReadAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return contract.ReadAnswer{}, err
	}
	request := &tfplugin6.ReadResource_Request{TypeName: r.Type, Private: r.State.Private, ClientCapabilities: able()}
	if request.CurrentState, err = k.encode("state", r.State.Value); err != nil {
		return contract.ReadAnswer{}, err
	}
	if request.CurrentIdentity, err = k.encodeIdentity(r.State.Identity); err != nil {
		return contract.ReadAnswer{}, err
	}
	answer := &tfplugin6.ReadResource_Response{}
	err = i.ask(ctx, i.remotely("ReadResource", r.Type), request, answer)
	a := contract.ReadAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
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

// Plan says what would become of a resource.
func (i *Instance) Plan(ctx context.Context, r contract.PlanRequest) (contract.PlanAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return contract.PlanAnswer{}, err
	}
	if isNull(r.Proposed) && !i.catalog.planDestroy {
		// Such a provider has nothing to say to it, and may not expect to be asked.
		return contract.PlanAnswer{Planned: cty.NullVal(k.implied), Private: r.Private, Identity: r.Identity}, nil
	}
	request := &tfplugin6.PlanResourceChange_Request{TypeName: r.Type, PriorPrivate: r.Private, ClientCapabilities: able()}
	if request.PriorState, err = k.encode("state", r.Prior); err != nil {
		return contract.PlanAnswer{}, err
	}
	if request.Config, err = k.encodeConfig(r.Config); err != nil {
		return contract.PlanAnswer{}, err
	}
	if request.ProposedNewState = request.Config; !r.AsWritten {
		if request.ProposedNewState, err = k.encode("proposed state", r.Proposed); err != nil {
			return contract.PlanAnswer{}, err
		}
	}
	if request.PriorIdentity, err = k.encodeIdentity(r.Identity); err != nil {
		return contract.PlanAnswer{}, err
	}
	answer := &tfplugin6.PlanResourceChange_Response{}
	err = i.ask(ctx, i.remotely("PlanResourceChange", r.Type), request, answer)
	if err == nil {
		err = i.notDeferred("PlanResourceChange", r.Type, answer.Deferred)
	}
	if err != nil {
		return contract.PlanAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}, err
	}
	return i.planned(k, answer)
}

func (i *Instance) planned(k *kind, answer *tfplugin6.PlanResourceChange_Response) (contract.PlanAnswer, error) {
	a := contract.PlanAnswer{
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

// Apply does it. Once the provider is asked, the end of ctx does not break the call off:
// what was made would be forgotten. It ends with its own timeout, or with Close, which has
// the provider asked to stop.
func (i *Instance) Apply(ctx context.Context, r contract.ApplyRequest) (contract.ApplyAnswer, error) {
	k, err := i.catalog.resource(r.Type)
	if err != nil {
		return contract.ApplyAnswer{}, err
	}
	request := &tfplugin6.ApplyResourceChange_Request{TypeName: r.Type, PlannedPrivate: r.Private}
	if request.PriorState, err = k.encode("state", r.Prior); err != nil {
		return contract.ApplyAnswer{}, err
	}
	if request.PlannedState, err = k.encode("planned state", r.Planned); err != nil {
		return contract.ApplyAnswer{}, err
	}
	if request.Config, err = k.encode("configuration", r.Config); err != nil {
		return contract.ApplyAnswer{}, err
	}
	if request.PlannedIdentity, err = k.encodeIdentity(r.Identity); err != nil {
		return contract.ApplyAnswer{}, err
	}
	q := i.remotely("ApplyResourceChange", r.Type)
	q.timeout, q.finish = i.settings.Limits.ApplyTimeout, true
	q.name = nameOf(r, k)
	answer := &tfplugin6.ApplyResourceChange_Response{}
	err = i.askOnce(ctx, q, request, answer)
	a := contract.ApplyAnswer{Lenient: answer.LegacyTypeSystem, Diagnostics: i.diagnostics(answer.Diagnostics)}
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

// Import finds a resource by its ID.
func (i *Instance) Import(ctx context.Context, typeName, id string) (contract.ImportAnswer, error) {
	if _, err := i.catalog.resource(typeName); err != nil {
		return contract.ImportAnswer{}, err
	}
	request := &tfplugin6.ImportResourceState_Request{TypeName: typeName, Id: id, ClientCapabilities: able()}
	answer := &tfplugin6.ImportResourceState_Response{}
	err := i.ask(ctx, i.remotely("ImportResourceState", typeName), request, answer)
	a := contract.ImportAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
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

func (i *Instance) imported(found *tfplugin6.ImportResourceState_ImportedResource, said *contract.Diagnostics) (contract.Imported, error) {
	is := contract.Imported{Type: found.TypeName, State: contract.State{Private: found.Private}}
	k, err := i.catalog.resource(found.TypeName)
	if err != nil {
		return is, err
	}
	if is.State.Value, err = i.decodeState(k, "ImportResourceState", found.State, said); err != nil {
		return is, err
	}
	is.State.Identity, err = i.decodeIdentity(k, "ImportResourceState", found.Identity)
	return is, err
}

// ReadData reads a data source.
func (i *Instance) ReadData(ctx context.Context, typeName string, config cty.Value) (contract.DataAnswer, error) {
	k, err := i.catalog.dataSource(typeName)
	if err != nil {
		return contract.DataAnswer{}, err
	}
	encoded, err := k.encode("configuration", config)
	if err != nil {
		return contract.DataAnswer{}, err
	}
	request := &tfplugin6.ReadDataSource_Request{TypeName: typeName, Config: encoded, ClientCapabilities: able()}
	answer := &tfplugin6.ReadDataSource_Response{}
	err = i.ask(ctx, i.remotely("ReadDataSource", typeName), request, answer)
	a := contract.DataAnswer{Diagnostics: i.diagnostics(answer.Diagnostics)}
	if err == nil {
		err = i.notDeferred("ReadDataSource", typeName, answer.Deferred)
	}
	if err != nil {
		return a, err
	}
	a.Value, err = i.decodeState(k, "ReadDataSource", answer.State, &a.Diagnostics)
	return a, err
}

// locally is of a call that a provider answers by itself, remotely of one that can reach
// what it manages.
func (i *Instance) locally(method, about string) question {
	return question{method: method, about: about, timeout: i.settings.Limits.CallTimeout}
}

func (i *Instance) remotely(method, about string) question {
	q := i.locally(method, about)
	q.remote = true
	return q
}

// notDeferred: an answer that is put off is no answer, and we said that we do not take them.
func (i *Instance) notDeferred(method, about string, deferred *tfplugin6.Deferred) error {
	if deferred == nil {
		return nil
	}
	return fmt.Errorf("provider %s: %s of %s: it puts its answer off (%s) although it was told that it must not: update the provider",
		i.binary.Name, method, about, deferred.Reason)
}

// optional makes nothing of a call that the provider does not know.
func optional(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// errNoSchema is of an answer to GetProviderSchema that has none.
var errNoSchema = errors.New("it gives no schema of its configuration")
