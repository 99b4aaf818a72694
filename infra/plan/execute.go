package plan

import (
	"context"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Step is a part of a replacement. Other things need only one.
type Step string

const (
	// Whole is all of what is not a replacement.
	Whole Step = ""
	// DestroyOld and CreateNew are the two steps of a replacement. If the new resource comes first, the old
	// state is to be kept as deposed in between, and back in its place if CreateNew leaves no state.
	DestroyOld Step = "DestroyOld"
	CreateNew  Step = "CreateNew"
)

// Execution is what is to be carried out.
type Execution struct {
	// Call names the call of the provider that changes something, of which there is at most one, as
	// contract.ApplyRequest has it.
	Call string
	// Planned is the decision that was approved, as Open gave it back. Whoever calls has seen
	// to it that the stored state is the one that was planned from.
	Planned  *Decision
	Step     Step
	Schema   *contract.Schema
	Provider contract.Provider
	// Config is what was written, by now wholly known. Marked values are secret.
	Config    cty.Value
	Lifecycle Lifecycle
}

// Outcome is what came of it, with an error or without. It is to be stored before anything else happens.
type Outcome struct {
	// Done is what was done: Create, Update, Delete, Read, Import, Forget or NoOp.
	Done Action
	// State is what is to be stored; null if there is nothing any more. It is also the value of
	// a data source that was read. Of the step DestroyOld it is the old resource's.
	State contract.State
	// Tainted says that the resource is not as it should be and will be replaced.
	Tainted bool
	// Sensitive goes with the state.
	Sensitive []cty.Path
	// Uncertain says that the provider may have done it, and did not say so. The state is what it
	// was before; what is there has to be looked for.
	Uncertain bool
	// Warnings are the provider's, and can quote secrets.
	Warnings contract.Diagnostics
	// Tolerated is what a Lenient provider did other than it planned.
	Tolerated []Problem
}

// Execute does what was planned, and nothing else. With what is known by now it is planned
// again; if that comes out other than approved, nothing is done and the error is ErrStale.
//
// The outcome is never nil. With an error it says what there is all the same: a resource may
// exist half-made. An error that wraps contract.ErrUnavailable can be
// retried, unless the outcome is uncertain.
func Execute(ctx context.Context, run Execution) (*Outcome, error) {
	p := run.Planned
	d := decide(Input{
		Address: p.Address, Schema: run.Schema, Provider: run.Provider, Config: run.Config, Lifecycle: run.Lifecycle,
		Prior: Prior{State: p.Before, Tainted: p.Tainted, Sensitive: p.BeforeSensitive},
	})
	x := &execution{decider: d, plan: p, call: run.Call, out: Outcome{
		Done: NoOp, State: p.Before, Tainted: p.Tainted, Sensitive: p.BeforeSensitive,
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
	if replace := x.plan.Action == Replace; replace != (step != Whole) {
		return x.fail(ErrStale, "", Problem{Text: fmt.Sprintf("a %s has no step %q", x.plan.Action, step)})
	}
	switch x.plan.Action {
	case NoOp, Import:
		x.out.Done, x.out.Sensitive = x.plan.Action, x.plan.Sensitive
		return nil
	case Forget:
		x.out.Done, x.out.Sensitive, x.out.Tainted = Forget, nil, false
		x.out.State = contract.State{Value: Null(x.Schema)}
		return nil
	case Delete:
		return x.destroy(ctx, x.plan.Private, x.plan.Identity)
	case Replace:
		if step == DestroyOld {
			return x.destroyOld(ctx)
		}
	}
	if unknown := unknownsIn(x.config, "is still unknown"); len(unknown) > 0 {
		return x.fail(ErrStale, "what it refers to has to be applied first", unknown...)
	}
	if x.plan.Action == Read {
		return x.read(ctx)
	}
	return x.make(ctx)
}

func (x *execution) read(ctx context.Context) error {
	value, err := x.readData(ctx)
	if err != nil {
		return err
	}
	x.out.Done, x.out.State = Read, contract.State{Value: value}
	x.out.Sensitive = x.sensitive(x.secret, value)
	return nil
}

// destroyOld destroys what is replaced. If enough is known by then, it first sees whether the new resource can still
// be made as approved: else the old one would be gone for nothing. What has been deposed is
// planned to be destroyed on its own, because the plan's private bytes are the new resource's by then.
func (x *execution) destroyOld(ctx context.Context) error {
	if !x.plan.CreateFirst && !x.config.IsNull() && x.config.IsWhollyKnown() {
		if _, err := x.again(ctx, contract.State{Value: Null(x.Schema)}, &Lifecycle{}); err != nil {
			return err
		}
	}
	private, identity := x.plan.Private, x.plan.Before.Identity
	if x.plan.CreateFirst {
		answer, err := planRemoval(ctx, x.Provider, x.Schema, x.Address, x.plan.Before)
		if err := x.asked("plan", err); err != nil {
			return err
		}
		if err := x.refused(ErrFailed, "", answer.Diagnostics); err != nil {
			return err
		}
		private, identity = answer.Private, answer.Identity
	}
	return x.destroy(ctx, private, identity)
}

func (x *execution) destroy(ctx context.Context, private []byte, identity cty.Value) error {
	x.out.Done = Delete
	return x.apply(ctx, x.plan.Before, contract.ApplyRequest{
		Type: x.Address.Type, Prior: x.plan.Before.Value, Planned: Null(x.Schema), Config: Null(x.Schema),
		Private: private, Identity: identity,
	})
}

// make creates or changes.
func (x *execution) make(ctx context.Context) error {
	from, lifecycle := x.plan.Before, &x.Lifecycle
	if x.plan.Action != Update {
		from, lifecycle = contract.State{Value: Null(x.Schema)}, &Lifecycle{}
	}
	now, err := x.again(ctx, from, lifecycle)
	if err != nil {
		return err
	}
	x.out.Sensitive = now.sensitive
	if !from.Value.IsNull() && equal(now.after, from.Value) {
		// What was unknown turned out to be what is there; or only what is secret changes.
		if !samePaths(now.sensitive, x.plan.BeforeSensitive) {
			x.out.Done = Update
		}
		return nil
	}
	x.out.Done = Update
	if from.Value.IsNull() {
		x.out.Done, x.out.Tainted = Create, false
		x.out.State = from
	}
	return x.apply(ctx, from, contract.ApplyRequest{
		Type: x.Address.Type, Prior: from.Value, Planned: now.after, Config: lifecycle.ignoring(&x.Schema.Block, from.Value, x.config),
		Private: now.private, Identity: now.identity,
	})
}

// again plans with what is known by now.
func (x *execution) again(ctx context.Context, from contract.State, lifecycle *Lifecycle) (*proposal, error) {
	now, err := x.ask(ctx, from, lifecycle)
	if err == nil {
		err = x.held(now, from.Value)
	}
	return now, err
}

// held refuses what is no longer what was approved: what was known must be the same, and an update
// must not have become a replacement.
func (x *execution) held(now *proposal, before cty.Value) error {
	var problems []Problem
	if x.plan.Action == Update && len(now.replace) > 0 && x.action(now, before) == Replace {
		for _, path := range now.replace {
			problems = append(problems, Problem{Path: path, Text: "would force a replacement now, and an update was approved"})
		}
	}
	problems = append(problems, departures(&x.Schema.Block, x.plan.After, now.after)...)
	if len(problems) == 0 {
		return nil
	}
	return x.fail(ErrStale, "plan it again", problems...)
}

// apply does it, and makes of the answer what is to be stored.
func (x *execution) apply(ctx context.Context, from contract.State, request contract.ApplyRequest) error {
	creating, deleting := request.Prior.IsNull(), request.Planned.IsNull()
	request.Call = x.call
	answer, err := x.Provider.Apply(ctx, request)
	if err != nil {
		// Whatever kind of error it is: nobody said that nothing happened.
		x.out.Uncertain, x.out.State = true, from
		return x.asked("apply", err)
	}
	value := answer.State.Value
	failed := answer.Diagnostics.Failed()
	if value == cty.NilVal {
		value = request.Prior
		if deleting {
			value = Null(x.Schema)
		}
		if !failed {
			return x.unusable(from, Problem{Text: "it answers without a state"})
		}
	}
	if problems := misfit(x.Schema, value); len(problems) > 0 {
		return x.unusable(from, problems...)
	}
	problems := unknownsIn(value, "is unknown after it was applied")
	value = cty.UnknownAsNull(value)
	problems = append(problems, writeOnlyKept(&x.Schema.Block, value)...)
	if !failed && len(problems) == 0 {
		problems = x.asPlanned(request.Planned, value, answer.Lenient)
	}
	return x.keep(from, answer, value, problems, creating)
}

// unusable is of an answer that cannot be stored: the provider did something, and nobody knows what.
func (x *execution) unusable(from contract.State, problems ...Problem) error {
	x.out.Uncertain, x.out.State = true, from
	return x.fail(ErrProvider, reportIt, problems...)
}

func (x *execution) asPlanned(planned, value cty.Value, lenient bool) []Problem {
	switch {
	case planned.IsNull() && value.IsNull():
		return nil
	case planned.IsNull():
		return []Problem{{Text: "it was deleted, and the provider answers that it is still there"}}
	case value.IsNull():
		return []Problem{{Text: "the provider answers that it is not there"}}
	}
	problems := departures(&x.Schema.Block, planned, value)
	if lenient {
		x.out.Tolerated, problems = problems, nil
	}
	return problems
}

// keep decides what is stored. After a failure that is what the provider says there is; if it says nothing,
// what was there before. What failed half-way to be created is tainted; a failed update is not, because
// it is for the provider to say what became of it.
func (x *execution) keep(from contract.State, answer contract.ApplyAnswer, value cty.Value, problems []Problem, creating bool) error {
	failed := answer.Diagnostics.Failed() || len(problems) > 0
	switch {
	case !failed:
		x.out.Warnings = answer.Diagnostics
		x.out.State = answer.State
		x.out.State.Value = value
		x.out.Tainted = false
		if value.IsNull() {
			x.out.State, x.out.Sensitive = contract.State{Value: value}, nil
		} else {
			x.out.Sensitive = x.sensitive(x.out.Sensitive, value)
		}
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
		return &Error{Address: x.Address, Kind: ErrProvider, Remedy: reportIt, Problems: problems, Diagnostics: answer.Diagnostics}
	}
	return &Error{Address: x.Address, Kind: ErrFailed, Remedy: "plan again when the cause is removed", Diagnostics: answer.Diagnostics}
}

// withoutWriteOnly sees to it that a provider's mistake does not store a secret.
func withoutWriteOnly(block *contract.Block, v cty.Value) cty.Value {
	if !hasWriteOnly(blockLevel(block)) {
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
		return v // the function above has no errors
	}
	return out
}
