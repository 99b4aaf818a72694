package infra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/plan"
)

// told is what became of an object, to be told in its status.
type told struct {
	state *State // nil if nothing is left
	// value is that of the state, if it is at hand: to read it costs more than to write it.
	value     cty.Value
	done      plan.Action
	problem   string
	uncertain bool
}

// Reasons of conditions.
const (
	reasonApplied   = "Applied"
	reasonNoChange  = "NoChange"
	reasonRead      = "Read"
	reasonFailed    = "ApplyFailed"
	reasonUncertain = "Uncertain"
	reasonTainted   = "MadeInPart"
	reasonNone      = "NothingThere"
	reasonRecorded  = "Recorded"
	reasonDestroyed = "Destroyed"
)

// wasDone is of a step that came to its end in an earlier run: it is only told again, which
// the earlier one may not have come to.
func (a *attempt) wasDone(ctx context.Context, was *v1alpha1.CarriedStep) ending {
	e := ending{node: a.node, done: plan.Action(was.Action)}
	if was.Problem != "" {
		e = a.failed(failed, "", was.Problem)
	}
	if a.what.Stored != nil && was.Call != "" {
		a.what.Stored(was.Call)
	}
	if problem := a.tell(ctx, told{state: a.state, done: plan.Action(was.Action), problem: was.Problem}); e.problem == nil {
		e.problem = problem
	}
	return e
}

// tell publishes what became of the object, and lets it go if nothing is left. What it gives back is that
// this could not be done.
func (a *attempt) tell(ctx context.Context, what told) *v1alpha1.Problem {
	if a.object == nil || a.kind == nil {
		return nil
	}
	gone := what.state == nil || nothing(&what.state.Spec)
	if !a.tells(what, gone) {
		return nil
	}
	ctx, cancel := a.late(ctx)
	defer cancel()
	if !gone || !a.object.Deleting {
		published, err := a.published(ctx, what, gone)
		if err == nil {
			err = a.tryTelling(ctx, func() error { return a.e.Objects.Publish(ctx, a.object, *published) })
		}
		if err != nil {
			return &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("its status, or the Secret that it names, cannot be written: %w", err))}
		}
	}
	if what.state != nil {
		return nil
	}
	if err := a.tryTelling(ctx, func() error { return a.e.Objects.Release(ctx, a.object) }); err != nil {
		return &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("nothing is left of it, and its object cannot be let go; plan and apply once more: %w", err))}
	}
	return nil
}

// tells tells whether the step says something about the object: of a replacement the step that makes the new
// one does, and of what was deposed only that it cannot be deleted, or was the last.
func (a *attempt) tells(what told, gone bool) bool {
	if what.problem != "" {
		return true
	}
	if a.step.part == plan.DestroyOld {
		return false
	}
	return a.step.address.Deposed == "" || gone
}

// tryTelling does it a few times. What no longer is the object that it was needs not be told.
func (a *attempt) tryTelling(ctx context.Context, do func() error) error {
	for attempt := 0; ; attempt++ {
		err := do()
		if err == nil || errors.Is(err, ErrMoved) {
			return nil
		}
		if attempt+1 >= storeTries || a.pause(ctx, attempt) != nil {
			return err
		}
	}
}

// published is what users see of it.
func (a *attempt) published(ctx context.Context, what told, gone bool) (*Published, error) {
	out := &Published{Conditions: a.conditions(what, gone)}
	if what.problem == "" && a.settles() {
		out.Generation = a.object.Generation
	}
	if gone || what.state.Spec.Current == nil {
		out.Attributes = map[string]any{}
		return out, nil
	}
	v := what.value
	if v == cty.NilVal {
		var err error
		if v, err = a.e.valueOf(ctx, a.kind, what.state); err != nil {
			return nil, err
		}
	}
	a.show(out, v, nil)
	return out, nil
}

// settles tells whether the step, when it went well, leaves things as they are written.
func (a *attempt) settles() bool {
	return a.step.action != plan.NoOp && a.step.action != plan.Forget && a.step.action != plan.Delete || a.step.action == plan.NoOp && a.what.Mode == plan.Normal
}

// show fills in what there is, apart what is secret.
func (a *attempt) show(out *Published, v cty.Value, hidden []cty.Path) {
	out.Attributes = a.kind.Attributes(v, hidden)
	var spec map[string]any
	if json.Unmarshal(a.object.Spec, &spec) != nil {
		return
	}
	if own, _ := a.kind.Own(spec); own.Connection.Secret != "" {
		out.SecretName, out.Secret = own.Connection.Secret, a.kind.Connection(v, hidden)
	}
}

func (a *attempt) conditions(what told, gone bool) []Condition {
	ready := Condition{Type: ConditionReady, Reason: reasonApplied, True: true, Message: "It is there."}
	switch {
	case gone && (what.done == plan.Delete || what.done == plan.Forget):
		ready = Condition{Type: ConditionReady, Reason: reasonDestroyed, Message: "It was taken away, and its object is still there: plan and apply to make it again, or delete the object."}
	case gone || what.state.Spec.Current == nil:
		ready = Condition{Type: ConditionReady, Reason: reasonNone, Message: "There is no such resource: plan and apply to make it."}
	case what.state.Spec.Current.Tainted:
		ready = Condition{Type: ConditionReady, Reason: reasonTainted, Message: "It was made in part only: plan and apply to replace it."}
	}
	out := []Condition{ready}
	reconciled := Condition{Type: ConditionReconciled, Reason: reasonApplied, True: true, Message: "What is written has been carried out by the Apply " + a.what.Apply + "."}
	switch {
	case what.uncertain:
		reconciled = Condition{Type: ConditionReconciled, Reason: reasonUncertain, Message: what.problem}
	case what.problem != "":
		reconciled = Condition{Type: ConditionReconciled, Reason: reasonFailed, Message: what.problem}
	case !ready.True:
		reconciled = Condition{Type: ConditionReconciled, Reason: ready.Reason, Message: ready.Message}
	case a.step.action == plan.NoOp && a.settles():
		reconciled.Reason, reconciled.Message = reasonNoChange, "It is as it is written."
	case !a.settles():
		return append(out, a.noDrift())
	}
	out = append(out, reconciled)
	if what.problem == "" && ready.True {
		out = append(out, a.noDrift())
	}
	return out
}

func (a *attempt) noDrift() Condition {
	return Condition{Type: ConditionDrifted, Reason: reasonRecorded, Message: "What there is was recorded by the Apply " + a.what.Apply + "."}
}

// wasRead keeps what a data source said for what refers to it.
func (a *attempt) wasRead(ctx context.Context, out *plan.Outcome) ending {
	v := marked(&a.kind.Schema.Block, out.State.Value, out.Sensitive)
	a.knowData(a.step.ref, v)
	published := Published{Generation: a.object.Generation, Conditions: []Condition{
		{Type: ConditionReady, Reason: reasonRead, True: true, Message: "It was read."},
		{Type: ConditionReconciled, Reason: reasonRead, True: true, Message: "It was read by the Apply " + a.what.Apply + "."},
	}}
	a.show(&published, v, nil)
	ctx, cancel := a.late(ctx)
	defer cancel()
	e := ending{node: a.node, done: plan.Read}
	if err := a.tryTelling(ctx, func() error { return a.e.Objects.Publish(ctx, a.object, published) }); err != nil {
		e.problem = &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("its status cannot be written: %w", err))}
	}
	return e
}
