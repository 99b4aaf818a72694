package decide

import (
	"context"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// decideData decides for a data source. If all arguments are known, the data source is read now,
// and else when the plan is applied. A data source is never changed, so a read that is done now, or
// a data source without an object, needs no approval.
func (d *decider) decideData(ctx context.Context) (*Decision, error) {
	null := Null(d.Schema)
	d.out = Decision{Address: d.Address, Action: change.NoOp, Before: providerapi.State{Value: null}, After: null}
	known := d.config.IsWhollyKnown()
	switch {
	case d.config.IsNull() || d.Delete || d.Forget || d.Mode == change.Destroy:
		return &d.out, nil
	case d.Deferred == "" && known && !d.Pending:
		value, err := d.readData(ctx)
		if err != nil {
			return nil, err
		}
		d.out.Before.Value, d.out.After = value, value
		d.out.Sensitive = d.sensitive(d.secret, value)
		return &d.out, nil
	case d.Mode == change.RefreshOnly:
		return &d.out, nil
	}
	d.out.After = PlannedDataSource(&d.Schema.Block, d.config)
	d.out.Sensitive = d.sensitive(d.secret, d.out.After)
	switch {
	case d.Deferred != "":
		d.out.Deferred = d.Deferred
	case !known:
		d.out.Action, d.out.Reason = change.Read, change.ConfigUnknown
	default:
		d.out.Action, d.out.Reason = change.Read, change.DependencyPending
	}
	return &d.out, nil
}

// readData reads with a wholly known configuration.
func (d *decider) readData(ctx context.Context) (cty.Value, error) {
	diagnostics, err := d.Provider.ValidateData(ctx, d.Address.Type, d.config)
	if err := d.wrapError("validation", err); err != nil {
		return cty.NilVal, err
	}
	if err := d.checkDiagnostics(ErrInvalid, "change its spec", diagnostics); err != nil {
		return cty.NilVal, err
	}
	answer, err := d.Provider.ReadData(ctx, d.Address.Type, d.config)
	if err := d.wrapError("read", err); err != nil {
		return cty.NilVal, err
	}
	if err := d.checkDiagnostics(ErrFailed, "", answer.Diagnostics); err != nil {
		return cty.NilVal, err
	}
	if err := d.checkState("the data source that was read", answer.Value); err != nil {
		return cty.NilVal, err
	}
	if answer.Value.IsNull() {
		return cty.NilVal, d.fail(ErrProvider, reportBug, Problem{Text: "the provider returned no data"})
	}
	return answer.Value, nil
}
