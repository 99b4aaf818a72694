package applier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
)

// statusReport is the result of a step for the object's status.
type statusReport struct {
	state *infra.State // nil if it was deleted
	// value is the state's value, if known: decoding it costs more than encoding it.
	value     cty.Value
	done      change.Action
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

// alreadyDone ends a step that an earlier run has finished. It publishes the result again, because
// that run may have crashed before it did.
func (a *stepRun) alreadyDone(ctx context.Context, earlier *v1alpha1.CarriedStep) stepEnd {
	e := stepEnd{node: a.node, action: change.Action(earlier.Action)}
	if earlier.Problem != "" {
		e = a.failed(failed, "", earlier.Problem)
	}
	if a.opts.OnStored != nil && earlier.Call != "" {
		a.opts.OnStored(earlier.Call)
	}
	if problem := a.publish(ctx, statusReport{state: a.state, done: change.Action(earlier.Action), problem: earlier.Problem}); e.problem == nil {
		e.problem = problem
	}
	return e
}

// publish writes the object's status and removes the finalizer if there is no resource left. It
// returns a Problem if it fails.
func (a *stepRun) publish(ctx context.Context, report statusReport) *v1alpha1.Problem {
	if a.object == nil || a.kind == nil {
		return nil
	}
	gone := report.state == nil || isEmpty(&report.state.Spec)
	if !a.isReported(report, gone) {
		return nil
	}
	ctx, cancel := a.withGrace(ctx)
	defer cancel()
	if !gone || !a.object.Deleting {
		published, err := a.objectStatus(ctx, report, gone)
		if err == nil {
			err = a.retry(ctx, func() error { return a.e.Objects.UpdateStatus(ctx, a.object, *published) })
		}
		if err != nil {
			return &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("cannot update its status or its connection Secret: %w", err))}
		}
	}
	if report.state != nil {
		return nil
	}
	if err := a.retry(ctx, func() error { return a.e.Objects.RemoveFinalizer(ctx, a.object) }); err != nil {
		return &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("the resource is gone, but the finalizer cannot be removed from its object; plan and apply again: %w", err))}
	}
	return nil
}

// isReported reports whether the step affects the object's status. Of a replacement only the create
// step does. The deletion of a deposed resource does if it fails or was the last.
func (a *stepRun) isReported(report statusReport, gone bool) bool {
	if report.problem != "" {
		return true
	}
	if a.step.part == decide.DestroyOld {
		return false
	}
	return a.step.address.Deposed == "" || gone
}

// retry calls do several times. A stale object is not an error: it need not be updated.
func (a *stepRun) retry(ctx context.Context, do func() error) error {
	for attempt := 0; ; attempt++ {
		err := do()
		if err == nil || errors.Is(err, infra.ErrStale) {
			return nil
		}
		if attempt+1 >= storeTries || a.backoff(ctx, attempt) != nil {
			return err
		}
	}
}

// objectStatus returns the status to publish.
func (a *stepRun) objectStatus(ctx context.Context, report statusReport, gone bool) (*infra.ObjectStatus, error) {
	out := &infra.ObjectStatus{Conditions: a.conditions(report, gone)}
	if report.problem == "" && a.reconciles() {
		out.Generation = a.object.Generation
	}
	if gone || report.state.Spec.Current == nil {
		out.Attributes = map[string]any{}
		return out, nil
	}
	v := report.value
	if v == cty.NilVal {
		var err error
		if v, err = evaluate.StoredValue(ctx, a.e.Providers, a.kind, report.state); err != nil {
			return nil, err
		}
	}
	a.setAttributes(out, v, nil)
	return out, nil
}

// reconciles reports whether a successful step leaves the resource as its spec says.
func (a *stepRun) reconciles() bool {
	return a.step.action != change.NoOp && a.step.action != change.Forget && a.step.action != change.Delete || a.step.action == change.NoOp && a.opts.Mode == change.Normal
}

// setAttributes sets the attributes and the connection Secret, which has the secret ones.
func (a *stepRun) setAttributes(out *infra.ObjectStatus, v cty.Value, hidden []cty.Path) {
	out.Attributes = a.kind.Attributes(v, hidden)
	var spec map[string]any
	if json.Unmarshal(a.object.Spec, &spec) != nil {
		return
	}
	if own, _ := a.kind.MetaArguments(spec); own.Connection.Secret != "" {
		out.SecretName, out.Secret = own.Connection.Secret, a.kind.Connection(v, hidden)
	}
}

func (a *stepRun) conditions(report statusReport, gone bool) []infra.Condition {
	ready := infra.Condition{Type: infra.ConditionReady, Reason: reasonApplied, True: true, Message: "The resource exists."}
	switch {
	case gone && (report.done == change.Delete || report.done == change.Forget):
		ready = infra.Condition{Type: infra.ConditionReady, Reason: reasonDestroyed, Message: "The resource was destroyed, but its object still exists: plan and apply to create it again, or delete the object."}
	case gone || report.state.Spec.Current == nil:
		ready = infra.Condition{Type: infra.ConditionReady, Reason: reasonNone, Message: "The resource does not exist: plan and apply to create it."}
	case report.state.Spec.Current.Tainted:
		ready = infra.Condition{Type: infra.ConditionReady, Reason: reasonTainted, Message: "The resource was created only in part: plan and apply to replace it."}
	}
	out := []infra.Condition{ready}
	reconciled := infra.Condition{Type: infra.ConditionReconciled, Reason: reasonApplied, True: true, Message: "The spec was applied by Apply " + a.opts.Apply + "."}
	switch {
	case report.uncertain:
		reconciled = infra.Condition{Type: infra.ConditionReconciled, Reason: reasonUncertain, Message: report.problem}
	case report.problem != "":
		reconciled = infra.Condition{Type: infra.ConditionReconciled, Reason: reasonFailed, Message: report.problem}
	case !ready.True:
		reconciled = infra.Condition{Type: infra.ConditionReconciled, Reason: ready.Reason, Message: ready.Message}
	case a.step.action == change.NoOp && a.reconciles():
		reconciled.Reason, reconciled.Message = reasonNoChange, "No changes. The resource matches its spec."
	case !a.reconciles():
		return append(out, a.noDrift())
	}
	out = append(out, reconciled)
	if report.problem == "" && ready.True {
		out = append(out, a.noDrift())
	}
	return out
}

func (a *stepRun) noDrift() infra.Condition {
	return infra.Condition{Type: infra.ConditionDrifted, Reason: reasonRecorded, Message: "The current resource was recorded by Apply " + a.opts.Apply + "."}
}

// finishRead keeps the value of a data source for its dependents, and publishes it.
func (a *stepRun) finishRead(ctx context.Context, out *decide.Outcome) stepEnd {
	v := evaluate.Mark(&a.kind.Schema.Block, out.State.Value, out.Sensitive)
	a.setDataValue(a.step.ref, v)
	published := infra.ObjectStatus{Generation: a.object.Generation, Conditions: []infra.Condition{
		{Type: infra.ConditionReady, Reason: reasonRead, True: true, Message: "The data source was read."},
		{Type: infra.ConditionReconciled, Reason: reasonRead, True: true, Message: "The data source was read by Apply " + a.opts.Apply + "."},
	}}
	a.setAttributes(&published, v, nil)
	ctx, cancel := a.withGrace(ctx)
	defer cancel()
	e := stepEnd{node: a.node, action: change.Read}
	if err := a.retry(ctx, func() error { return a.e.Objects.UpdateStatus(ctx, a.object, published) }); err != nil {
		e.problem = &v1alpha1.Problem{Address: a.problemAddress(), Message: a.masked(fmt.Errorf("cannot update its status: %w", err))}
	}
	return e
}
