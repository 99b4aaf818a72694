package plan

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Decide says what is to be done to one resource. It changes nothing, so that it can be asked again;
// where the provider answers the same, the decision is the same.
//
// An error is an *Error, and of one of its kinds, or wraps contract.ErrUnavailable.
func Decide(ctx context.Context, in Input) (*Decision, error) {
	d := decide(in)
	if in.Address.Data {
		return d.data(ctx)
	}
	return d.resource(ctx)
}

// decider is one decision on its way.
type decider struct {
	Input
	config cty.Value               // without marks
	secret []cty.Path              // where the marks were
	sent   *contract.Configuration // config, as providers are told it
	out    Decision
}

func decide(in Input) *decider {
	d := &decider{Input: in}
	if absent(d.Config) {
		d.Config = Null(in.Schema)
	}
	d.config, d.secret = withoutMarks(&d.Schema.Block, d.Config)
	d.sent = &contract.Configuration{Value: d.config}
	return d
}

func (d *decider) fail(kind error, remedy string, problems ...Problem) error {
	return &Error{Address: d.Address, Kind: kind, Remedy: remedy, Problems: problems}
}

// refused is what the provider has against it. If it only warns, that is kept.
func (d *decider) refused(kind error, remedy string, said contract.Diagnostics) error {
	if said.Failed() {
		return &Error{Address: d.Address, Kind: kind, Remedy: remedy, Diagnostics: said}
	}
	d.out.Warnings = append(d.out.Warnings, said...)
	return nil
}

func (d *decider) asked(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", d.Address, what, err)
}

const reportIt = "report it to the provider's developers"

func (d *decider) resource(ctx context.Context) (*Decision, error) {
	d.out = Decision{Address: d.Address, Action: NoOp}
	if d.Deferred != "" {
		return d.deferred(ctx)
	}
	before, err := d.current(ctx)
	if err != nil {
		return nil, err
	}
	if before, err = d.refreshed(ctx, before); err != nil {
		return nil, err
	}
	d.out.Before = before
	d.out.After = before.Value
	d.out.Tainted = d.Prior.Tainted && !before.Value.IsNull()
	d.out.Sensitive, d.out.BeforeSensitive = d.Prior.Sensitive, d.Prior.Sensitive
	switch {
	case d.Mode == RefreshOnly:
	case d.Mode == Destroy || d.Delete || d.Forget || d.config.IsNull():
		err = d.remove(ctx)
	default:
		err = d.change(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &d.out, nil
}

// deferred asks the provider nothing about a change. What refers to the resource sees what there is.
func (d *decider) deferred(ctx context.Context) (*Decision, error) {
	before, err := d.stored(ctx)
	if err != nil {
		return nil, err
	}
	d.out.Deferred = d.Deferred
	d.out.Before, d.out.After = before, before.Value
	d.out.Tainted = d.Prior.Tainted
	d.out.Sensitive, d.out.BeforeSensitive = d.Prior.Sensitive, d.Prior.Sensitive
	if before.Value.IsNull() && !d.config.IsNull() {
		d.out.After = AllUnknown(&d.Schema.Block, d.config)
		d.out.Sensitive = d.sensitive(d.secret, d.out.After)
	}
	return &d.out, nil
}

// current is the stored state, or what is imported.
func (d *decider) current(ctx context.Context) (contract.State, error) {
	state, err := d.stored(ctx)
	importing := d.ImportID != "" && d.Mode != Destroy && d.Mode != RefreshOnly && !d.Delete && !d.Forget
	if err != nil || !importing || !state.Value.IsNull() {
		return state, err
	}
	if d.config.IsNull() {
		return state, d.fail(ErrImport, "write its object first", Problem{Text: "there is no object to import it into"})
	}
	d.out.Importing = d.ImportID
	return d.imported(ctx)
}

func (d *decider) stored(ctx context.Context) (contract.State, error) {
	state := d.Prior.State
	if d.Prior.Stored == nil {
		if absent(state.Value) {
			state.Value = Null(d.Schema)
		}
		return state, nil
	}
	if d.Prior.Stored.Version > d.Schema.Version {
		return state, d.fail(ErrState, "install the newer provider again", Problem{
			Text: fmt.Sprintf("it was written by a newer provider (version %d of the schema, this one has %d)", d.Prior.Stored.Version, d.Schema.Version)})
	}
	stored := *d.Prior.Stored
	if stored.Version == d.Schema.Version && len(stored.JSON) > 0 {
		// A provider that took an attribute away need not give the schema a new version.
		var err error
		if stored.JSON, err = onlyKnownAttributes(stored.JSON, d.Schema.Block.ImpliedType()); err != nil {
			return state, d.fail(ErrState, "restore it from a backup, or import the resource again", Problem{Text: "it is not JSON"})
		}
	}
	answer, err := d.Provider.Upgrade(ctx, d.Address.Type, stored)
	if err := d.asked("upgrade of the stored state", err); err != nil {
		return state, err
	}
	if err := d.refused(ErrState, "", answer.Diagnostics); err != nil {
		return state, err
	}
	state.Value = answer.Value
	return state, d.sound("the upgraded state", state.Value)
}

// sound refuses a value that can be no state.
func (d *decider) sound(what string, v cty.Value) error {
	if v == cty.NilVal {
		return d.fail(ErrProvider, reportIt, Problem{Text: what + " is missing"})
	}
	problems := misfit(d.Schema, v)
	if len(problems) == 0 {
		problems = append(unknownsIn(v, "is unknown in "+what), writeOnlyKept(&d.Schema.Block, v)...)
	}
	if len(problems) > 0 {
		return d.fail(ErrProvider, reportIt, problems...)
	}
	return nil
}

func (d *decider) imported(ctx context.Context) (contract.State, error) {
	var none contract.State
	answer, err := d.Provider.Import(ctx, d.Address.Type, d.ImportID)
	if err := d.asked("import", err); err != nil {
		return none, err
	}
	if err := d.refused(ErrImport, "", answer.Diagnostics); err != nil {
		return none, err
	}
	remedy := "check the ID, and that the ProviderConfig is of the account and region in which it is; or leave the ID out to create it"
	switch {
	case len(answer.Found) == 0:
		return none, d.fail(ErrImport, remedy, Problem{Text: "nothing was found"})
	case len(answer.Found) > 1:
		return none, d.fail(ErrImport, "give an ID of one resource", Problem{Text: fmt.Sprintf("the ID stands for %d resources", len(answer.Found))})
	case answer.Found[0].Type != d.Address.Type:
		return none, d.fail(ErrImport, remedy, Problem{Text: fmt.Sprintf("the ID is of a %s", answer.Found[0].Type)})
	case absent(answer.Found[0].State.Value):
		return none, d.fail(ErrImport, remedy, Problem{Text: "what was found has no state"})
	}
	state, err := d.read(ctx, answer.Found[0].State)
	if err == nil && state.Value.IsNull() {
		err = d.fail(ErrImport, remedy, Problem{Text: "there is no such resource"})
	}
	return state, err
}

// refreshed is the state as it is now, and notes what is not as it was.
func (d *decider) refreshed(ctx context.Context, state contract.State) (contract.State, error) {
	if !d.Refresh || d.out.Importing != "" || state.Value.IsNull() {
		return state, nil
	}
	now, err := d.read(ctx, state)
	if err != nil {
		return state, err
	}
	if !now.Value.RawEquals(state.Value) {
		d.out.Drift = &Drift{Before: state.Value, After: now.Value}
	}
	return now, nil
}

func (d *decider) read(ctx context.Context, state contract.State) (contract.State, error) {
	answer, err := d.Provider.Read(ctx, contract.ReadRequest{Type: d.Address.Type, State: state})
	if err := d.asked("read", err); err != nil {
		return state, err
	}
	if err := d.refused(ErrFailed, "", answer.Diagnostics); err != nil {
		return state, err
	}
	if err := d.sound("what was read", answer.State.Value); err != nil {
		return state, err
	}
	answer.State.Value = normal(&d.Schema.Block, answer.State.Value)
	return answer.State, nil
}

// remove decides for a resource that shall not be.
func (d *decider) remove(ctx context.Context) error {
	before := d.out.Before
	if before.Value.IsNull() {
		return nil
	}
	d.out.After, d.out.Sensitive = Null(d.Schema), nil
	if d.Forget {
		d.out.Action = Forget
		return nil
	}
	if err := d.prevented(); err != nil {
		return err
	}
	answer, err := planRemoval(ctx, d.Provider, d.Schema, d.Address, before)
	if err := d.asked("plan", err); err != nil {
		return err
	}
	if err := d.refused(ErrFailed, "", answer.Diagnostics); err != nil {
		return err
	}
	if !absent(answer.Planned) {
		return d.fail(ErrProvider, reportIt, Problem{Text: "it was asked to plan a deletion, and plans for something to be left"})
	}
	d.out.Action, d.out.Reason = Delete, d.whyDelete()
	d.out.Private, d.out.Identity = answer.Private, answer.Identity
	return nil
}

func (d *decider) whyDelete() Reason {
	switch {
	case d.Address.Deposed != "":
		return LeftOver
	case d.Mode == Destroy:
		return DestroyAll
	case d.Delete:
		return ObjectDeleted
	}
	return NotWritten
}

func planRemoval(ctx context.Context, provider contract.Provider, schema *contract.Schema, address Address, before contract.State) (contract.PlanAnswer, error) {
	return provider.Plan(ctx, contract.PlanRequest{
		Type: address.Type, Prior: before.Value, Proposed: Null(schema), Config: &contract.Configuration{Value: Null(schema)},
		Private: before.Private, Identity: before.Identity,
	})
}

// prevented refuses to destroy what the user said must stay. What a replacement left behind is not that.
func (d *decider) prevented() error {
	if !d.Lifecycle.PreventDestroy || d.Address.Deposed != "" {
		return nil
	}
	return d.fail(ErrPrevented, "set lifecycle.prevent_destroy to false, or leave the object out of the plan")
}

// change decides for a resource that shall be.
func (d *decider) change(ctx context.Context) error {
	said, err := d.Provider.ValidateResource(ctx, d.Address.Type, d.sent)
	if err := d.asked("validation", err); err != nil {
		return err
	}
	if err := d.refused(ErrInvalid, "change its spec", said); err != nil {
		return err
	}
	p, err := d.planned(ctx)
	if err != nil {
		return err
	}
	d.out.Action, d.out.Reason, d.out.Detail = p.action, p.reason, p.detail
	d.out.After, d.out.encoded, d.out.Private, d.out.Identity = p.after, p.encoded, p.private, p.identity
	d.out.Replace, d.out.Sensitive = p.replace, p.sensitive
	if p.action == Replace {
		d.out.CreateFirst = d.Lifecycle.CreateBeforeDestroy
		return d.prevented()
	}
	if p.action == NoOp && d.out.Importing != "" {
		d.out.Action = Import
	}
	return nil
}

// sensitive keeps those paths that lead to something, and of which the schema does not know.
func (d *decider) sensitive(paths []cty.Path, v cty.Value) []cty.Path {
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
