package decide

import (
	"context"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// plannedChange is the provider's plan for a resource that is to exist.
type plannedChange struct {
	action   change.Action
	reason   change.Reason
	detail   string
	after    cty.Value
	encoded  []byte // after in msgpack, or nil
	private  []byte
	identity cty.Value
	replace  []cty.Path
	// sensitive are the sensitive paths of after; declared are those of them that do not just contain a
	// secret.
	sensitive, declared []cty.Path
}

// changesSensitivity reports whether other values are sensitive than before. That a value contains a
// secret is no change: it is recorded with the next one.
func (p *plannedChange) changesSensitivity(before []cty.Path) bool {
	for _, path := range p.declared {
		if !hasPath(before, path) {
			return true
		}
	}
	for _, path := range before {
		if !hasPath(p.sensitive, path) {
			return true
		}
	}
	return false
}

// planChange asks the provider for a plan from the prior state to the configuration. A resource
// that is tainted or has to be replaced is planned as if it did not exist.
func (d *decider) planChange(ctx context.Context) (*plannedChange, error) {
	from := d.out.Before
	if d.out.Tainted {
		from = providerapi.State{Value: Null(d.Schema)}
	}
	p, err := d.callPlan(ctx, from, &d.Lifecycle)
	if err != nil {
		return nil, err
	}
	switch {
	case d.out.Tainted:
		p.action, p.reason = change.Replace, change.Tainted
		return p, nil
	case from.Value.IsNull():
		p.action = change.Create
		return p, nil
	}
	p.action = d.action(p, from.Value)
	switch p.action {
	case change.NoOp:
		// The sensitive paths of an imported resource are not recorded yet.
		if d.out.Importing == "" && p.changesSensitivity(d.declared(d.Prior.Sensitive, from.Value)) {
			p.action, p.reason = change.Update, change.Sensitivity
		}
		return p, nil
	case change.Replace:
		return d.planReplacement(ctx, p)
	}
	return p, nil
}

func (d *decider) action(p *plannedChange, before cty.Value) change.Action {
	forced := d.Replace || d.Lifecycle.Trigger != ""
	switch {
	case d.writeOnlyIn(p.replace):
		return change.Replace // nothing else shows that a write-only value changed
	case !forced && isUnchanged(p.after, before):
		return change.NoOp
	case forced || len(p.replace) > 0:
		return change.Replace
	}
	return change.Update
}

func (d *decider) writeOnlyIn(paths []cty.Path) bool {
	for _, p := range paths {
		if a := attributeAt(&d.Schema.Block, p); a != nil && a.WriteOnly {
			return true
		}
	}
	return false
}

// planReplacement plans the new resource. It does not exist yet, so no changes are ignored.
func (d *decider) planReplacement(ctx context.Context, p *plannedChange) (*plannedChange, error) {
	warned, tolerated := len(d.out.Warnings), len(d.out.Tolerated)
	fresh, err := d.callPlan(ctx, providerapi.State{Value: Null(d.Schema), Private: p.private}, &Lifecycle{})
	if err != nil {
		return nil, err
	}
	// The first plan returned the same warnings.
	d.out.Warnings, d.out.Tolerated = d.out.Warnings[:warned], d.out.Tolerated[:tolerated]
	fresh.action, fresh.replace = change.Replace, p.replace
	switch {
	case d.Lifecycle.Trigger != "":
		fresh.reason, fresh.detail = change.Triggered, d.Lifecycle.Trigger
	case d.Replace:
		fresh.reason = change.Requested
	default:
		fresh.reason = change.CannotUpdate
	}
	return fresh, nil
}

// callPlan calls the provider's Plan with the proposed state and checks the answer.
func (d *decider) callPlan(ctx context.Context, from providerapi.State, lifecycle *Lifecycle) (*plannedChange, error) {
	block := &d.Schema.Block
	config, sent := d.config, d.wireConfig
	if lifecycle.ignores() {
		config = lifecycle.withIgnored(block, from.Value, d.config)
		sent = &providerapi.Configuration{Value: config}
	}
	answer, err := d.Provider.Plan(ctx, providerapi.PlanRequest{
		Type: d.Address.Type, Prior: from.Value, Proposed: ProposedNew(block, from.Value, config), Config: sent,
		AsWritten: isConfig(block, from.Value, config), Private: from.Private, Identity: from.Identity,
	})
	if err := d.wrapError("plan", err); err != nil {
		return nil, err
	}
	if err := d.checkDiagnostics(ErrInvalid, "change its spec", answer.Diagnostics); err != nil {
		return nil, err
	}
	if err := d.checkPlan(from.Value, config, answer); err != nil {
		return nil, err
	}
	after, encoded := answer.Planned, answer.Encoded
	if answer.Lenient && lifecycle.ignores() {
		// A lenient provider can plan changes to ignored attributes.
		after, encoded = lifecycle.withIgnored(nil, from.Value, after), nil
	}
	replace, err := d.replacePaths(from.Value, after, answer.Replace)
	if err != nil {
		return nil, err
	}
	marks := lifecycle.sensitiveAfterIgnore(from.Value.IsNull(), d.secret, d.Prior.Sensitive)
	declared := d.declared(marks, after)
	return &plannedChange{
		after: after, encoded: encoded, private: answer.Private, identity: answer.Identity, replace: replace,
		declared: declared, sensitive: slices.Concat(declared, d.leaks(declared, after)),
	}, nil
}

// checkPlan rejects a plan that breaks the plugin protocol. Violations of a lenient provider are
// recorded.
func (d *decider) checkPlan(prior, config cty.Value, answer providerapi.PlanAnswer) error {
	if answer.Planned == cty.NilVal {
		return d.fail(ErrProvider, reportBug, Problem{Text: "the provider returned no plan"})
	}
	problems := conformanceProblems(d.Schema, answer.Planned)
	if len(problems) == 0 {
		problems = writeOnlyReturned(&d.Schema.Block, answer.Planned)
	}
	if len(problems) > 0 {
		return d.fail(ErrProvider, reportBug, problems...)
	}
	problems = assertPlanValid(&d.Schema.Block, prior, config, answer.Planned)
	if len(problems) > 0 && !answer.Lenient {
		return d.fail(ErrProvider, reportBug, problems...)
	}
	d.out.Tolerated = append(d.out.Tolerated, problems...)
	return nil
}

// replacePaths returns the attributes that force a replacement and do change.
func (d *decider) replacePaths(prior, after cty.Value, paths []cty.Path) ([]cty.Path, error) {
	if prior.IsNull() {
		return nil, nil
	}
	var out []cty.Path
	for _, path := range paths {
		was, errWas := path.Apply(prior)
		is, errIs := path.Apply(after)
		switch {
		case errWas != nil && errIs != nil:
			return nil, d.fail(ErrProvider, reportBug, Problem{Path: path, Text: "is reported to force a replacement, but does not exist"})
		case errWas != nil:
			was = cty.NullVal(is.Type())
		case errIs != nil:
			is = cty.NullVal(was.Type())
		}
		if !isUnchanged(is, was) || d.writeOnlyIn([]cty.Path{path}) {
			if !hasPath(out, path) {
				out = append(out, path)
			}
		}
	}
	return out, nil
}
