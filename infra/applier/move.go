package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
)

// A move has three writes, in this order: the old state names its successor, the new state is created,
// and the old one is deleted. The first makes all plans stale that knew the resource under its old name.
// The second is the move itself. If the third is missing after a crash, the next plan removes the old
// state, because the new one names its UID.

// move continues the state of another address, before the step does anything else. It returns a result
// if the step ends here.
func (a *stepRun) move(ctx context.Context, from expr.Ref) *stepEnd {
	old := a.stateOf(from)
	if a.state != nil {
		if m := a.state.Spec.MovedFrom; m == nil || m.Namespace != from.Namespace || m.Type != from.Type || m.Name != from.Name {
			e := a.failed(refused, "", "its state has changed since the plan: plan again")
			return &e
		}
		// An earlier step of this change, or an earlier run, has moved it.
		a.moved = true
		return a.removeMoved(ctx, old)
	}
	if e := a.checkMove(from, old); e != nil {
		return e
	}
	if !a.object.HasFinalizer {
		if e := a.addFinalizer(ctx); e != nil {
			return e
		}
	}
	next, err := a.movedState(old, from)
	if err == nil {
		old, err = a.markMoving(ctx, old)
	}
	if err == nil {
		next.Spec.MovedFrom.UID = old.UID
		next, err = a.putState(ctx, next)
	}
	if err != nil {
		if ctx.Err() != nil {
			return &stepEnd{node: a.node, result: notStarted}
		}
		e := a.refusedOrFailed(ctx, fmt.Errorf("cannot move the state of %s: %w", from, err))
		return &e
	}
	a.state, a.moved = next, true
	return a.removeMoved(ctx, old)
}

// checkMove compares object and old state with those that the plan saw.
func (a *stepRun) checkMove(from expr.Ref, old *infra.State) *stepEnd {
	end := func(text string) *stepEnd {
		e := a.failed(refused, "", text+": plan again")
		return &e
	}
	switch {
	case a.object == nil:
		return end("its object was deleted since the plan")
	case a.kind == nil:
		return end(fmt.Sprintf("no installed Provider serves the type %s", a.step.ref.Type))
	case old == nil:
		return end(fmt.Sprintf("the state of %s is gone since the plan", from))
	}
	now, want := infra.Preconditions(a.object, old), a.step.preconditions
	if len(want) > 0 && want[0] != now[0] && (want[0] != createdObject || !isJustCreated(a.object)) {
		return end("its object has changed since the plan")
	}
	// This Apply may have written the successor's name before a crash.
	ours := old.Spec.MovingTo != nil && old.Spec.MovingTo.UID == a.opts.ApplyUID
	if len(want) > 1 && want[1] != now[1] && !ours {
		return end(fmt.Sprintf("the state of %s has changed since the plan", from))
	}
	if moved := a.e.Inventory.Object(from); moved != nil && !moved.Deleting {
		return end(fmt.Sprintf("the object of %s was created again since the plan", from))
	}
	return nil
}

// movedState returns the state under the new address.
func (a *stepRun) movedState(old *infra.State, from expr.Ref) (*infra.State, error) {
	next := &infra.State{Ref: a.step.ref}
	old.Spec.DeepCopyInto(&next.Spec)
	s := &next.Spec
	s.MovingTo, s.Settled, s.Carried, s.FormerNames = nil, "", nil, nil
	s.MovedFrom = &v1alpha1.MovedState{Namespace: from.Namespace, Type: from.Type, Name: from.Name}
	s.Object = v1alpha1.StateOwner{Group: a.kind.Group, Kind: a.kind.Kind.Kind, Name: a.step.ref.Name, UID: a.object.UID}
	if from.Namespace == a.step.ref.Namespace {
		s.FormerNames = old.Names()
	} else if s.Current != nil {
		s.Current.Dependencies = nil // those of the other namespace
	}
	if from.Type == a.step.ref.Type {
		return next, nil
	}
	decision, err := decide.Open(a.step.sealed, a.kind.Schema)
	if err != nil {
		return nil, err
	}
	value, err := evaluate.ResourceValue(a.kind.Schema, decision.Before, decision.Tainted, decision.BeforeSensitive)
	if err != nil {
		return nil, err
	}
	if value != nil && s.Current != nil {
		value.Dependencies, value.CreateBeforeDestroy = s.Current.Dependencies, s.Current.CreateBeforeDestroy
	}
	s.Current, s.Type, s.Provider, s.Written = value, a.step.ref.Type, a.kind.Provider, nil
	return next, nil
}

// markMoving writes into the old state which Apply moves it.
func (a *stepRun) markMoving(ctx context.Context, old *infra.State) (*infra.State, error) {
	marked := *old
	old.Spec.DeepCopyInto(&marked.Spec)
	marked.Spec.MovingTo = &v1alpha1.MovedState{Namespace: a.step.ref.Namespace, Type: a.step.ref.Type, Name: a.step.ref.Name, UID: a.opts.ApplyUID}
	return a.putState(ctx, &marked)
}

// putState stores a state and tries again a few times. A state that has changed is not overwritten.
func (a *stepRun) putState(ctx context.Context, s *infra.State) (*infra.State, error) {
	for attempt := 0; ; attempt++ {
		stored, err := a.e.States.Put(ctx, s)
		switch {
		case err == nil:
			a.setState(s.Ref, stored)
			return stored, nil
		case errors.Is(err, infra.ErrStale):
			return nil, errStateChanged
		case attempt+1 >= storeTries || a.backoff(ctx, attempt) != nil:
			return nil, err
		}
	}
}

// removeMoved deletes the old state, if it is still there, and lets its object go.
func (a *stepRun) removeMoved(ctx context.Context, old *infra.State) *stepEnd {
	from := *a.step.movedFrom
	ctx, cancel := a.withGrace(ctx)
	defer cancel()
	if old != nil && old.UID == a.state.Spec.MovedFrom.UID {
		err := a.retry(ctx, func() error { return a.e.States.Delete(ctx, old) })
		if err != nil {
			e := a.failed(failed, "", fmt.Sprintf("the resource was moved, but the state of %s cannot be deleted; plan and apply again: %v", from, err))
			return &e
		}
		a.setState(from, nil)
	}
	if object := a.e.Inventory.Object(from); object != nil && object.Deleting && object.HasFinalizer && a.stateOf(from) == nil {
		if err := a.retry(ctx, func() error { return a.e.Objects.RemoveFinalizer(ctx, object) }); err != nil {
			e := a.failed(failed, "", fmt.Sprintf("the resource was moved, but the finalizer of %s cannot be removed; plan and apply again: %v", from, err))
			return &e
		}
	}
	return nil
}

// leave ends a state whose resource another object continues, or releases it for one.
func (a *stepRun) leave(ctx context.Context) stepEnd {
	to := a.step.movedTo
	update := stateUpdate{
		mutate:    func(s *v1alpha1.ResourceStateSpec) { s.Current, s.Deposed, s.Pending = nil, nil, nil },
		isApplied: func(*infra.State) bool { return false },
	}
	if a.step.released {
		step := v1alpha1.CarriedStep{Call: a.step.call, Action: string(a.step.action)}
		update.mutate = func(s *v1alpha1.ResourceStateSpec) {
			s.MovingTo = &v1alpha1.MovedState{Namespace: to.Namespace, Type: to.Type, Name: to.Name}
			addFinishedStep(s, a.opts.ApplyUID, step)
		}
		update.isApplied = func(s *infra.State) bool { return finishedStep(s, a.opts.ApplyUID, step.Call) != nil }
	}
	state, err := a.updateState(ctx, a.step, update)
	if err != nil {
		if ctx.Err() != nil {
			return stepEnd{node: a.node, result: notStarted}
		}
		return a.refusedOrFailed(ctx, err)
	}
	return stepEnd{node: a.node, action: a.step.action, problem: a.publish(ctx, statusReport{state: state, done: a.step.action})}
}
