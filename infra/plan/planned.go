package plan

import (
	"context"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// proposal is what came of planning for a resource that shall be.
type proposal struct {
	action    Action
	reason    Reason
	detail    string
	after     cty.Value
	encoded   []byte // after in msgpack, or nil
	private   []byte
	identity  cty.Value
	replace   []cty.Path
	sensitive []cty.Path
}

// planned asks the provider to plan from what is there to what is written. A resource that is tainted
// or has to be replaced is planned as if there were nothing.
func (d *decider) planned(ctx context.Context) (*proposal, error) {
	from := d.out.Before
	if d.out.Tainted {
		from = contract.State{Value: Null(d.Schema)}
	}
	p, err := d.ask(ctx, from, &d.Lifecycle)
	if err != nil {
		return nil, err
	}
	switch {
	case d.out.Tainted:
		p.action, p.reason = Replace, Tainted
		return p, nil
	case from.Value.IsNull():
		p.action = Create
		return p, nil
	}
	p.action = d.action(p, from.Value)
	switch p.action {
	case NoOp:
		// Of what is imported nobody has noted yet what is secret.
		if d.out.Importing == "" && !samePaths(p.sensitive, d.sensitive(d.Prior.Sensitive, from.Value)) {
			p.action, p.reason = Update, Sensitivity
		}
		return p, nil
	case Replace:
		return d.replacement(ctx, p)
	}
	return p, nil
}

func (d *decider) action(p *proposal, before cty.Value) Action {
	forced := d.Replace || d.Lifecycle.Trigger != ""
	switch {
	case d.writeOnlyIn(p.replace):
		return Replace // of such a value nothing else shows that it changed
	case !forced && equal(p.after, before):
		return NoOp
	case forced || len(p.replace) > 0:
		return Replace
	}
	return Update
}

func (d *decider) writeOnlyIn(paths []cty.Path) bool {
	for _, p := range paths {
		if a := attributeAt(&d.Schema.Block, p); a != nil && a.WriteOnly {
			return true
		}
	}
	return false
}

// replacement plans the new resource, of which nothing is there yet, so that nothing of it is ignored.
func (d *decider) replacement(ctx context.Context, p *proposal) (*proposal, error) {
	warned, tolerated := len(d.out.Warnings), len(d.out.Tolerated)
	fresh, err := d.ask(ctx, contract.State{Value: Null(d.Schema), Private: p.private}, &Lifecycle{})
	if err != nil {
		return nil, err
	}
	// It has warned of all that before.
	d.out.Warnings, d.out.Tolerated = d.out.Warnings[:warned], d.out.Tolerated[:tolerated]
	fresh.action, fresh.replace = Replace, p.replace
	switch {
	case d.Lifecycle.Trigger != "":
		fresh.reason, fresh.detail = Triggered, d.Lifecycle.Trigger
	case d.Replace:
		fresh.reason = Requested
	default:
		fresh.reason = CannotUpdate
	}
	return fresh, nil
}

// ask is one call to plan, from its proposed state to an answer that holds.
func (d *decider) ask(ctx context.Context, from contract.State, lifecycle *Lifecycle) (*proposal, error) {
	block := &d.Schema.Block
	config, sent := d.config, d.sent
	if lifecycle.ignores() {
		config = lifecycle.ignoring(block, from.Value, d.config)
		sent = &contract.Configuration{Value: config}
	}
	answer, err := d.Provider.Plan(ctx, contract.PlanRequest{
		Type: d.Address.Type, Prior: from.Value, Proposed: Proposed(block, from.Value, config), Config: sent,
		AsWritten: asWritten(block, from.Value, config), Private: from.Private, Identity: from.Identity,
	})
	if err := d.asked("plan", err); err != nil {
		return nil, err
	}
	if err := d.refused(ErrInvalid, "change its spec", answer.Diagnostics); err != nil {
		return nil, err
	}
	if err := d.honest(from.Value, config, answer); err != nil {
		return nil, err
	}
	after, encoded := answer.Planned, answer.Encoded
	if answer.Lenient && lifecycle.ignores() {
		// Such a provider can plan changes to what was to be ignored.
		after, encoded = lifecycle.ignoring(nil, from.Value, after), nil
	}
	replace, err := d.replacing(from.Value, after, answer.Replace)
	if err != nil {
		return nil, err
	}
	marks := lifecycle.ignoredMarks(from.Value.IsNull(), d.secret, d.Prior.Sensitive)
	return &proposal{
		after: after, encoded: encoded, private: answer.Private, identity: answer.Identity,
		replace: replace, sensitive: d.sensitive(marks, after),
	}, nil
}

// honest refuses a plan that a provider must not make. Of a lenient one what is wrong is noted.
func (d *decider) honest(prior, config cty.Value, answer contract.PlanAnswer) error {
	if answer.Planned == cty.NilVal {
		return d.fail(ErrProvider, reportIt, Problem{Text: "it answers without a plan"})
	}
	problems := misfit(d.Schema, answer.Planned)
	if len(problems) == 0 {
		problems = writeOnlyKept(&d.Schema.Block, answer.Planned)
	}
	if len(problems) > 0 {
		return d.fail(ErrProvider, reportIt, problems...)
	}
	problems = forbidden(&d.Schema.Block, prior, config, answer.Planned)
	if len(problems) > 0 && !answer.Lenient {
		return d.fail(ErrProvider, reportIt, problems...)
	}
	d.out.Tolerated = append(d.out.Tolerated, problems...)
	return nil
}

// replacing keeps those attributes of which a change forces a replacement, that do change.
func (d *decider) replacing(prior, after cty.Value, paths []cty.Path) ([]cty.Path, error) {
	if prior.IsNull() {
		return nil, nil
	}
	var out []cty.Path
	for _, path := range paths {
		was, errWas := path.Apply(prior)
		is, errIs := path.Apply(after)
		switch {
		case errWas != nil && errIs != nil:
			return nil, d.fail(ErrProvider, reportIt, Problem{Path: path, Text: "is said to force a replacement, and does not exist"})
		case errWas != nil:
			was = cty.NullVal(is.Type())
		case errIs != nil:
			is = cty.NullVal(was.Type())
		}
		if !equal(is, was) || d.writeOnlyIn([]cty.Path{path}) {
			if !hasPath(out, path) {
				out = append(out, path)
			}
		}
	}
	return out, nil
}
