package decide

import (
	"context"
	"fmt"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Decide decides what to do about one resource. It changes nothing, so it can be repeated: with the
// same answers from the provider, the decision is the same.
//
// An error is an *Error of one of its kinds, or wraps providerapi.ErrUnavailable.
func Decide(ctx context.Context, in Input) (*Decision, error) {
	d := newDecider(in)
	if in.Address.Data {
		return d.decideData(ctx)
	}
	return d.decideResource(ctx)
}

// decider holds the state of one decision.
type decider struct {
	Input
	config     cty.Value                  // without marks
	secret     []cty.Path                 // the paths that were marked
	wireConfig *providerapi.Configuration // config in the form that is sent to the provider
	out        Decision
}

func newDecider(in Input) *decider {
	d := &decider{Input: in}
	if isAbsent(d.Config) {
		d.Config = Null(in.Schema)
	}
	d.config, d.secret = withoutMarks(&d.Schema.Block, d.Config)
	d.wireConfig = &providerapi.Configuration{Value: d.config}
	return d
}

func (d *decider) fail(kind error, remedy string, problems ...Problem) error {
	return &Error{Address: d.Address, Kind: kind, Remedy: remedy, Problems: problems}
}

// checkDiagnostics returns an error if the diagnostics have one, and else keeps the warnings.
func (d *decider) checkDiagnostics(kind error, remedy string, diagnostics providerapi.Diagnostics) error {
	if diagnostics.Failed() {
		return &Error{Address: d.Address, Kind: kind, Remedy: remedy, Diagnostics: diagnostics}
	}
	d.out.Warnings = append(d.out.Warnings, diagnostics...)
	return nil
}

func (d *decider) wrapError(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", d.Address, what, err)
}

const reportBug = "this is a bug in the provider: report it to its developers"

func (d *decider) decideResource(ctx context.Context) (*Decision, error) {
	d.out = Decision{Address: d.Address, Action: change.NoOp, MovedFrom: d.MovedFrom}
	if d.Deferred != "" {
		return d.decideDeferred(ctx)
	}
	before, err := d.priorState(ctx)
	if err != nil {
		return nil, err
	}
	if before, err = d.refresh(ctx, before); err != nil {
		return nil, err
	}
	d.out.Before = before
	d.out.After = before.Value
	d.out.Tainted = d.Prior.Tainted && !before.Value.IsNull()
	d.out.Sensitive, d.out.BeforeSensitive = d.Prior.Sensitive, d.Prior.Sensitive
	d.out.leaks = d.leaks(d.Prior.Sensitive, before.Value)
	d.out.Sensitive = slices.Concat(d.out.Sensitive, d.out.leaks)
	if d.out.Drift != nil {
		d.out.leaks = append(d.out.leaks, d.leaks(d.Prior.Sensitive, d.out.Drift.Before)...)
	}
	switch {
	case d.Mode == change.RefreshOnly:
	case d.Mode == change.Destroy || d.Delete || d.Forget || d.config.IsNull():
		err = d.decideRemoval(ctx)
	default:
		err = d.decideChange(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &d.out, nil
}

// decideDeferred does not ask the provider for a plan. References to the resource see its stored
// state.
func (d *decider) decideDeferred(ctx context.Context) (*Decision, error) {
	before, err := d.upgradedState(ctx)
	if err != nil {
		return nil, err
	}
	d.out.Deferred = d.Deferred
	d.out.Before, d.out.After = before, before.Value
	d.out.Tainted = d.Prior.Tainted
	d.out.Sensitive, d.out.BeforeSensitive = d.Prior.Sensitive, d.Prior.Sensitive
	if before.Value.IsNull() && !d.config.IsNull() {
		d.out.After = PlannedDataSource(&d.Schema.Block, d.config)
		d.out.Sensitive = d.sensitive(d.secret, d.out.After)
	}
	return &d.out, nil
}

// priorState returns the stored state, or the state of the resource that is imported.
func (d *decider) priorState(ctx context.Context) (providerapi.State, error) {
	state, err := d.upgradedState(ctx)
	importing := d.ImportID != "" && d.Mode != change.Destroy && d.Mode != change.RefreshOnly && !d.Delete && !d.Forget
	if err != nil || !importing || !state.Value.IsNull() {
		return state, err
	}
	if d.config.IsNull() {
		return state, d.fail(ErrImport, "create the object first", Problem{Text: "no object exists to import it into"})
	}
	d.out.Importing = d.ImportID
	return d.importState(ctx)
}

func (d *decider) upgradedState(ctx context.Context) (providerapi.State, error) {
	state := d.Prior.State
	if d.MoveSource != nil {
		return d.convertState(ctx)
	}
	if d.Prior.Stored == nil {
		if isAbsent(state.Value) {
			state.Value = Null(d.Schema)
		}
		return state, nil
	}
	if d.Prior.Stored.Version > d.Schema.Version {
		return state, d.fail(ErrState, "install the newer provider version again", Problem{
			Text: fmt.Sprintf("it was written by a newer provider version (schema version %d, this provider has %d)", d.Prior.Stored.Version, d.Schema.Version)})
	}
	stored := *d.Prior.Stored
	if stored.Version == d.Schema.Version && len(stored.JSON) > 0 {
		// A provider may remove an attribute without a new schema version.
		var err error
		if stored.JSON, err = onlyKnownAttributes(stored.JSON, d.Schema.Block.ImpliedType()); err != nil {
			return state, d.fail(ErrState, "restore it from a backup, or import the resource again", Problem{Text: "it is not valid JSON"})
		}
	}
	answer, err := d.Provider.Upgrade(ctx, d.Address.Type, stored)
	if err := d.wrapError("upgrade of the stored state", err); err != nil {
		return state, err
	}
	if err := d.checkDiagnostics(ErrState, "", answer.Diagnostics); err != nil {
		return state, err
	}
	state.Value = answer.Value
	return state, d.checkState("the upgraded state", state.Value)
}

// convertState has the provider convert the state of another type.
func (d *decider) convertState(ctx context.Context) (providerapi.State, error) {
	remedy := "name an object whose type this one can continue, or remove spec.movedFrom and import the resource"
	answer, err := d.Provider.Move(ctx, *d.MoveSource)
	if err := d.wrapError("move of the stored state", err); err != nil {
		return providerapi.State{}, err
	}
	if err := d.checkDiagnostics(ErrMove, remedy, answer.Diagnostics); err != nil {
		return providerapi.State{}, err
	}
	if isAbsent(answer.State.Value) {
		return providerapi.State{}, d.fail(ErrMove, remedy, Problem{Text: "the provider returned no state for it"})
	}
	return answer.State, d.checkState("the moved state", answer.State.Value)
}

// checkState rejects a value that cannot be stored as state.
func (d *decider) checkState(what string, v cty.Value) error {
	if v == cty.NilVal {
		return d.fail(ErrProvider, reportBug, Problem{Text: "the provider returned no value for " + what})
	}
	problems := conformanceProblems(d.Schema, v)
	if len(problems) == 0 {
		problems = append(unknownProblems(v, "is unknown in "+what), writeOnlyReturned(&d.Schema.Block, v)...)
	}
	if len(problems) > 0 {
		return d.fail(ErrProvider, reportBug, problems...)
	}
	return nil
}

func (d *decider) importState(ctx context.Context) (providerapi.State, error) {
	var none providerapi.State
	answer, err := d.Provider.Import(ctx, d.Address.Type, d.ImportID)
	if err := d.wrapError("import", err); err != nil {
		return none, err
	}
	if err := d.checkDiagnostics(ErrImport, "", answer.Diagnostics); err != nil {
		return none, err
	}
	remedy := "check the ID and the account and region of the ProviderConfig, or remove the ID to create a new resource"
	switch {
	case len(answer.Found) == 0:
		return none, d.fail(ErrImport, remedy, Problem{Text: "the provider found no resource with this ID"})
	case len(answer.Found) > 1:
		return none, d.fail(ErrImport, "use an ID that identifies one resource", Problem{Text: fmt.Sprintf("the ID identifies %d resources", len(answer.Found))})
	case answer.Found[0].Type != d.Address.Type:
		return none, d.fail(ErrImport, remedy, Problem{Text: fmt.Sprintf("the ID identifies a %s", answer.Found[0].Type)})
	case isAbsent(answer.Found[0].State.Value):
		return none, d.fail(ErrImport, remedy, Problem{Text: "the provider returned no state"})
	}
	state, err := d.read(ctx, answer.Found[0].State)
	if err == nil && state.Value.IsNull() {
		err = d.fail(ErrImport, remedy, Problem{Text: "the resource does not exist"})
	}
	return state, err
}

// refresh reads the current state from the provider and records drift.
func (d *decider) refresh(ctx context.Context, state providerapi.State) (providerapi.State, error) {
	if !d.Refresh || d.out.Importing != "" || state.Value.IsNull() {
		return state, nil
	}
	now, err := d.read(ctx, state)
	if err != nil {
		return state, err
	}
	d.out.Drift, err = d.drift(ctx, state.Value, now)
	return now, err
}

func (d *decider) read(ctx context.Context, state providerapi.State) (providerapi.State, error) {
	answer, err := d.Provider.Read(ctx, providerapi.ReadRequest{Type: d.Address.Type, State: state})
	if err := d.wrapError("read", err); err != nil {
		return state, err
	}
	if err := d.checkDiagnostics(ErrFailed, "", answer.Diagnostics); err != nil {
		return state, err
	}
	if err := d.checkState("the state that was read", answer.State.Value); err != nil {
		return state, err
	}
	answer.State.Value = normalizeBlocks(&d.Schema.Block, answer.State.Value)
	return answer.State, nil
}

// decideRemoval decides for a resource that is to be removed.
func (d *decider) decideRemoval(ctx context.Context) error {
	before := d.out.Before
	switch {
	case d.Forget && d.MovedTo != nil:
		d.out.Action, d.out.Reason, d.out.MovedTo = change.Forget, change.MovedAway, d.MovedTo
		return nil
	case d.Forget && d.ReleaseTo != nil:
		d.out.Action, d.out.Reason, d.out.MovedTo = change.Forget, change.Released, d.ReleaseTo
		return nil
	case before.Value.IsNull():
		return nil
	}
	d.out.After, d.out.Sensitive = Null(d.Schema), nil
	if d.Forget {
		d.out.Action = change.Forget
		return nil
	}
	if err := d.checkPreventDestroy(); err != nil {
		return err
	}
	answer, err := callPlanDestroy(ctx, d.Provider, d.Schema, d.Address, before)
	if err := d.wrapError("plan", err); err != nil {
		return err
	}
	if err := d.checkDiagnostics(ErrFailed, "", answer.Diagnostics); err != nil {
		return err
	}
	if !isAbsent(answer.Planned) {
		return d.fail(ErrProvider, reportBug, Problem{Text: "the planned value of a deletion is not null"})
	}
	d.out.Action, d.out.Reason = change.Delete, d.deleteReason()
	d.out.Private, d.out.Identity = answer.Private, answer.Identity
	return nil
}

func (d *decider) deleteReason() change.Reason {
	switch {
	case d.Address.Deposed != "":
		return change.LeftOver
	case d.Mode == change.Destroy:
		return change.DestroyAll
	case d.Delete:
		return change.ObjectDeleted
	}
	return change.NotWritten
}

func callPlanDestroy(ctx context.Context, provider providerapi.Provider, schema *providerapi.Schema, address change.Address, before providerapi.State) (providerapi.PlanAnswer, error) {
	return provider.Plan(ctx, providerapi.PlanRequest{
		Type: address.Type, Prior: before.Value, Proposed: Null(schema), Config: &providerapi.Configuration{Value: Null(schema)},
		Private: before.Private, Identity: before.Identity,
	})
}

// checkPreventDestroy rejects the destruction of a resource with prevent_destroy. A deposed
// resource may be destroyed.
func (d *decider) checkPreventDestroy() error {
	if !d.Lifecycle.PreventDestroy || d.Address.Deposed != "" {
		return nil
	}
	return d.fail(ErrPrevented, "set lifecycle.prevent_destroy to false, or exclude the object from the plan")
}

// decideChange decides for a resource that is to exist.
func (d *decider) decideChange(ctx context.Context) error {
	diagnostics, err := d.Provider.ValidateResource(ctx, d.Address.Type, d.wireConfig)
	if err := d.wrapError("validation", err); err != nil {
		return err
	}
	if err := d.checkDiagnostics(ErrInvalid, "change its spec", diagnostics); err != nil {
		return err
	}
	p, err := d.planChange(ctx)
	if err != nil {
		return err
	}
	d.out.Action, d.out.Reason, d.out.Detail = p.action, p.reason, p.detail
	d.out.After, d.out.encoded, d.out.Private, d.out.Identity = p.after, p.encoded, p.private, p.identity
	d.out.Replace, d.out.Sensitive = p.replace, p.sensitive
	if p.action == change.Replace {
		d.out.CreateFirst, d.out.KeepOld = d.Lifecycle.CreateBeforeDestroy, d.KeepOld
		if d.KeepOld {
			return nil
		}
		return d.checkPreventDestroy()
	}
	switch {
	case p.action == change.NoOp && d.out.Importing != "":
		d.out.Action = change.Import
	case p.action == change.NoOp && d.out.MovedFrom != nil:
		d.out.Action = change.Move
	}
	return nil
}

// sensitive returns the paths that exist in v and that the schema does not declare sensitive, and those
// of values that contain a secret.
func (d *decider) sensitive(paths []cty.Path, v cty.Value) []cty.Path {
	out := d.declared(paths, v)
	return append(out, d.leaks(out, v)...)
}

// declared returns the paths that exist in v and that the schema does not declare sensitive.
func (d *decider) declared(paths []cty.Path, v cty.Value) []cty.Path {
	var out []cty.Path
	for _, p := range paths {
		if sensitiveBySchema(&d.Schema.Block, p) || hasPath(out, p) {
			continue
		}
		if _, err := p.Apply(v); err == nil {
			out = append(out, p)
		}
	}
	return out
}
