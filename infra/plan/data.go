package plan

import (
	"context"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// data decides for a data source: it is read now if all of its arguments are known, and
// else when the plan is carried out. Nothing of it is ever changed, so that there is
// nothing to approve about one that is read now, or is no longer written.
func (d *decider) data(ctx context.Context) (*Decision, error) {
	null := Null(d.Schema)
	d.out = Decision{Address: d.Address, Action: NoOp, Before: contract.State{Value: null}, After: null}
	known := d.config.IsWhollyKnown()
	switch {
	case d.config.IsNull() || d.Delete || d.Forget || d.Mode == Destroy:
		return &d.out, nil
	case d.Deferred == "" && known && !d.Pending:
		value, err := d.readData(ctx)
		if err != nil {
			return nil, err
		}
		d.out.Before.Value, d.out.After = value, value
		d.out.Sensitive = d.sensitive(d.secret, value)
		return &d.out, nil
	case d.Mode == RefreshOnly:
		return &d.out, nil
	}
	d.out.After = AllUnknown(&d.Schema.Block, d.config)
	d.out.Sensitive = d.sensitive(d.secret, d.out.After)
	switch {
	case d.Deferred != "":
		d.out.Deferred = d.Deferred
	case !known:
		d.out.Action, d.out.Reason = Read, ConfigUnknown
	default:
		d.out.Action, d.out.Reason = Read, DependencyPending
	}
	return &d.out, nil
}

// readData reads with a configuration that is wholly known.
func (d *decider) readData(ctx context.Context) (cty.Value, error) {
	said, err := d.Provider.ValidateData(ctx, d.Address.Type, d.config)
	if err := d.asked("validation", err); err != nil {
		return cty.NilVal, err
	}
	if err := d.refused(ErrInvalid, "change its spec", said); err != nil {
		return cty.NilVal, err
	}
	answer, err := d.Provider.ReadData(ctx, d.Address.Type, d.config)
	if err := d.asked("read", err); err != nil {
		return cty.NilVal, err
	}
	if err := d.refused(ErrFailed, "", answer.Diagnostics); err != nil {
		return cty.NilVal, err
	}
	if err := d.sound("what was read", answer.Value); err != nil {
		return cty.NilVal, err
	}
	if answer.Value.IsNull() {
		return cty.NilVal, d.fail(ErrProvider, reportIt, Problem{Text: "it answers with nothing"})
	}
	return answer.Value, nil
}
