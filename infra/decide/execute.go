package decide

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Step is one step of a replacement. All other actions have a single step.
type Step string

const (
	// OnlyStep is the step of every action but Replace.
	OnlyStep Step = ""
	// DestroyOld and CreateNew are the two steps of a replacement. With create_before_destroy, the
	// caller deposes the old state between them, and restores it if CreateNew leaves no state.
	DestroyOld Step = "DestroyOld"
	CreateNew  Step = "CreateNew"
)

// Execution describes one step of a planned change to apply.
type Execution struct {
	// Call identifies the provider call that changes something, see providerapi.ApplyRequest. There is
	// at most one.
	Call string
	// Planned is the approved decision, as Open returned it. The caller has checked that the stored
	// state is still the one that was planned from.
	Planned  *Decision
	Step     Step
	Schema   *providerapi.Schema
	Provider providerapi.Provider
	// Config is the configuration, which is wholly known by now. Marked values are secret.
	Config    cty.Value
	Lifecycle Lifecycle
}

// Outcome is the result of an execution, with or without an error. The caller must store it before
// it does anything else.
type Outcome struct {
	// Action is the performed action: Create, Update, Delete, Read, Import, Move, Forget or NoOp.
	Action change.Action
	// State is the state to store, null if the resource no longer exists. It is also the value of a
	// data source that was read. For DestroyOld it is the state of the old resource.
	State providerapi.State
	// Tainted reports whether the resource is in an unknown condition and must be replaced.
	Tainted bool
	// Sensitive are the sensitive paths of State.
	Sensitive []cty.Path
	// Uncertain reports that the provider may have made the change without confirming it. State is
	// the prior state then, and the actual state must be read.
	Uncertain bool
	// Warnings are the provider's and can quote secrets.
	Warnings providerapi.Diagnostics
	// Tolerated lists deviations from the plan that are accepted from a Lenient provider.
	Tolerated []Problem
}

// Execute applies exactly the planned change. It plans again with the values that are known by now.
// If the result contradicts the approved plan, it changes nothing and returns ErrStale.
//
// The outcome is never nil. It describes the resource even if an error is returned, because a
// resource may have been partly created. An error that wraps providerapi.ErrUnavailable can be
// retried, unless the outcome is uncertain.
func Execute(ctx context.Context, run Execution) (*Outcome, error) {
	p := run.Planned
	d := newDecider(Input{
		Address: p.Address, Schema: run.Schema, Provider: run.Provider, Config: run.Config, Lifecycle: run.Lifecycle,
		Prior: Prior{State: p.Before, Tainted: p.Tainted, Sensitive: p.BeforeSensitive},
	})
	x := &execution{decider: d, plan: p, call: run.Call, out: Outcome{
		Action: change.NoOp, State: p.Before, Tainted: p.Tainted, Sensitive: p.BeforeSensitive,
	}}
	err := x.run(ctx, run.Step)
	x.out.Warnings = append(d.out.Warnings, x.out.Warnings...)
	return &x.out, err
}

type execution struct {
	*decider
	plan *Decision
	call string
	out  Outcome
}

func (x *execution) run(ctx context.Context, step Step) error {
	if replace := x.plan.Action == change.Replace; replace != (step != OnlyStep) {
		return x.fail(ErrStale, "", Problem{Text: fmt.Sprintf("action %s has no step %q", x.plan.Action, step)})
	}
	switch x.plan.Action {
	case change.NoOp, change.Import, change.Move:
		x.out.Action, x.out.Sensitive = x.plan.Action, x.plan.Sensitive
		return nil
	case change.Forget:
		x.forget()
		return nil
	case change.Delete:
		return x.destroy(ctx, x.plan.Private, x.plan.Identity)
	case change.Replace:
		if step == DestroyOld {
			return x.destroyOld(ctx)
		}
	}
	if unknown := unknownProblems(x.config, "is still unknown"); len(unknown) > 0 {
		return x.fail(ErrStale, "apply the resources that it refers to first", unknown...)
	}
	if x.plan.Action == change.Read {
		return x.read(ctx)
	}
	return x.createOrUpdate(ctx)
}

// forget leaves the resource in place, and without state.
func (x *execution) forget() {
	x.out.Action, x.out.Sensitive, x.out.Tainted = change.Forget, nil, false
	x.out.State = providerapi.State{Value: Null(x.Schema)}
}

func (x *execution) read(ctx context.Context) error {
	value, err := x.readData(ctx)
	if err != nil {
		return err
	}
	x.out.Action, x.out.State = change.Read, providerapi.State{Value: value}
	x.out.Sensitive = x.sensitive(x.secret, value)
	return nil
}

// destroyOld destroys the resource that is replaced. If the configuration is wholly known, it first
// checks that the new resource can still be created as approved; otherwise the old one would be
// lost for nothing. The destruction of a deposed resource gets its own plan, because the private
// bytes of the approved plan belong to the new resource.
func (x *execution) destroyOld(ctx context.Context) error {
	if !x.plan.CreateFirst && !x.config.IsNull() && x.config.IsWhollyKnown() {
		if _, err := x.replan(ctx, providerapi.State{Value: Null(x.Schema)}, &Lifecycle{}); err != nil {
			return err
		}
	}
	if x.plan.KeepOld {
		x.forget()
		return nil
	}
	private, identity := x.plan.Private, x.plan.Before.Identity
	if x.plan.CreateFirst {
		answer, err := callPlanDestroy(ctx, x.Provider, x.Schema, x.Address, x.plan.Before)
		if err := x.wrapError("plan", err); err != nil {
			return err
		}
		if err := x.checkDiagnostics(ErrFailed, "", answer.Diagnostics); err != nil {
			return err
		}
		private, identity = answer.Private, answer.Identity
	}
	return x.destroy(ctx, private, identity)
}

func (x *execution) destroy(ctx context.Context, private []byte, identity cty.Value) error {
	x.out.Action = change.Delete
	return x.apply(ctx, x.plan.Before, providerapi.ApplyRequest{
		Type: x.Address.Type, Prior: x.plan.Before.Value, Planned: Null(x.Schema), Config: Null(x.Schema),
		Private: private, Identity: identity,
	})
}

// createOrUpdate creates or updates the resource.
func (x *execution) createOrUpdate(ctx context.Context) error {
	from, lifecycle := x.plan.Before, &x.Lifecycle
	if x.plan.Action != change.Update {
		from, lifecycle = providerapi.State{Value: Null(x.Schema)}, &Lifecycle{}
	}
	now, err := x.replan(ctx, from, lifecycle)
	if err != nil {
		return err
	}
	x.out.Sensitive = now.sensitive
	if !from.Value.IsNull() && isUnchanged(now.after, from.Value) {
		// Unknown values turned out to be the current ones, or only the sensitivity of values changes.
		if now.changesSensitivity(x.plan.BeforeSensitive) {
			x.out.Action = change.Update
		}
		return nil
	}
	x.out.Action = change.Update
	if from.Value.IsNull() {
		x.out.Action, x.out.Tainted = change.Create, false
		x.out.State = from
	}
	return x.apply(ctx, from, providerapi.ApplyRequest{
		Type: x.Address.Type, Prior: from.Value, Planned: now.after, Config: lifecycle.withIgnored(&x.Schema.Block, from.Value, x.config),
		Private: now.private, Identity: now.identity,
	})
}

// replan plans with the values that are known by now.
func (x *execution) replan(ctx context.Context, from providerapi.State, lifecycle *Lifecycle) (*plannedChange, error) {
	now, err := x.callPlan(ctx, from, lifecycle)
	if err == nil {
		err = x.checkApproved(now, from.Value)
	}
	return now, err
}

// checkApproved rejects a new plan that contradicts the approved one: known values must be equal,
// and an update must not have become a replacement.
func (x *execution) checkApproved(now *plannedChange, before cty.Value) error {
	var problems []Problem
	if x.plan.Action == change.Update && len(now.replace) > 0 && x.action(now, before) == change.Replace {
		for _, path := range now.replace {
			problems = append(problems, Problem{Path: path, Text: "now forces a replacement, but an update was approved"})
		}
	}
	problems = append(problems, assertCompatible(&x.Schema.Block, x.plan.After, now.after)...)
	if len(problems) == 0 {
		return nil
	}
	return x.fail(ErrStale, "create a new plan", problems...)
}

// apply calls the provider and turns its answer into the state to store.
func (x *execution) apply(ctx context.Context, from providerapi.State, request providerapi.ApplyRequest) error {
	creating, deleting := request.Prior.IsNull(), request.Planned.IsNull()
	request.Call = x.call
	answer, err := x.Provider.Apply(ctx, request)
	if err != nil {
		// The change may have been made, whatever the error is.
		x.out.Uncertain, x.out.State = true, from
		return x.wrapError("apply", err)
	}
	value := answer.State.Value
	failed := answer.Diagnostics.Failed()
	if value == cty.NilVal {
		value = request.Prior
		if deleting {
			value = Null(x.Schema)
		}
		if !failed {
			return x.failUncertain(from, Problem{Text: "the provider returned no state"})
		}
	}
	if problems := conformanceProblems(x.Schema, value); len(problems) > 0 {
		return x.failUncertain(from, problems...)
	}
	problems := unknownProblems(value, "is unknown after apply")
	value = cty.UnknownAsNull(value)
	problems = append(problems, writeOnlyReturned(&x.Schema.Block, value)...)
	if !failed && len(problems) == 0 {
		problems = x.checkApplied(request.Planned, value, answer.Lenient)
	}
	return x.recordState(ctx, from, answer, value, problems, creating)
}

// failUncertain handles an answer that cannot be stored: the provider may have changed something,
// but its result is lost.
func (x *execution) failUncertain(from providerapi.State, problems ...Problem) error {
	x.out.Uncertain, x.out.State = true, from
	return x.fail(ErrProvider, reportBug, problems...)
}

func (x *execution) checkApplied(planned, value cty.Value, lenient bool) []Problem {
	switch {
	case planned.IsNull() && value.IsNull():
		return nil
	case planned.IsNull():
		return []Problem{{Text: "the provider returned a state for a deleted resource"}}
	case value.IsNull():
		return []Problem{{Text: "the provider returned no state for an existing resource"}}
	}
	problems := assertCompatible(&x.Schema.Block, planned, value)
	if lenient {
		x.out.Tolerated, problems = problems, nil
	}
	return problems
}

// recordState decides which state is stored. After a failure it is the state that the provider
// returned, or the prior state if it returned none. A resource whose creation failed half-way is
// tainted. A failed update does not taint, because the provider reports the resulting state.
func (x *execution) recordState(ctx context.Context, from providerapi.State, answer providerapi.ApplyAnswer, value cty.Value, problems []Problem, creating bool) error {
	failed := answer.Diagnostics.Failed() || len(problems) > 0
	switch {
	case !failed:
		x.out.Warnings = answer.Diagnostics
		x.out.State = answer.State
		x.out.State.Value = value
		x.out.Tainted = false
		if value.IsNull() {
			x.out.State, x.out.Sensitive = providerapi.State{Value: value}, nil
			return nil
		}
		if answer.Lenient {
			x.out.State = x.readBaseline(ctx, x.out.State)
		}
		x.out.Sensitive = x.sensitive(x.out.Sensitive, x.out.State.Value)
		return nil
	case value.IsNull():
		x.out.State = from
	default:
		x.out.State = answer.State
		x.out.State.Value = withoutWriteOnly(&x.Schema.Block, value)
		x.out.Tainted = creating || x.plan.Tainted
		x.out.Sensitive = x.sensitive(x.out.Sensitive, value)
	}
	if len(problems) > 0 {
		return &Error{Address: x.Address, Kind: ErrProvider, Remedy: reportBug, Problems: problems, Diagnostics: answer.Diagnostics}
	}
	return &Error{Address: x.Address, Kind: ErrFailed, Remedy: "fix the cause, then create a new plan", Diagnostics: answer.Diagnostics}
}

// withoutWriteOnly removes write-only values, so that a provider's bug does not store a secret.
func withoutWriteOnly(block *providerapi.Block, v cty.Value) cty.Value {
	if !hasWriteOnly(providerapi.BlockLevel(block)) {
		return v
	}
	out, err := cty.Transform(v, func(path cty.Path, v cty.Value) (cty.Value, error) {
		if a := attributeAt(block, path); a != nil && a.WriteOnly {
			if _, named := path[len(path)-1].(cty.GetAttrStep); named {
				return cty.NullVal(v.Type()), nil
			}
		}
		return v, nil
	})
	if err != nil {
		return v // the function above returns no errors
	}
	return out
}
