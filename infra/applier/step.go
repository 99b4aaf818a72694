package applier

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// stepRun is one run of a step.
type stepRun struct {
	*run
	node int32
	step *step
	// object and state are those at its start; nil if missing.
	object *infra.Object
	state  *infra.State

	kind     *infra.ServedKind
	decision *decide.Decision
	provider providerapi.Provider
	// evaluated is the evaluated spec; nil if it is not needed. configRevision is the revision of
	// the provider's configuration.
	evaluated      *evaluate.Spec
	configRevision string
	mask           schema.Mask
	// inputVersions are the versions of the states that the spec takes values from.
	inputVersions map[expr.Ref]string
	// moved means that the state has moved from the address that the plan read it from.
	moved bool

	// resumed means that an earlier run of this Apply started the step. journaled means that it is
	// pending in the journal, and asked that the provider was called.
	resumed, journaled, asked bool
}

// runStep carries out a step, or finds that it was carried out before.
func (r *run) runStep(ctx context.Context, node int32) stepEnd {
	n := &r.steps.all[node]
	if n.ref.Kind == expr.Kubernetes {
		return r.place(ctx, node)
	}
	a := &stepRun{run: r, node: node, step: n, object: r.e.Inventory.Object(n.ref), state: r.state(n)}
	a.kind, _ = r.e.Providers.Kind(n.ref) // checked where it is needed
	if n.movedFrom != nil && ctx.Err() == nil {
		if e := a.move(ctx, *n.movedFrom); e != nil {
			return *e
		}
	}
	if finished := finishedStep(a.state, r.opts.ApplyUID, n.call); finished != nil {
		return a.alreadyDone(ctx, finished)
	}
	if ctx.Err() != nil {
		return stepEnd{node: node, result: notStarted}
	}
	if pending := pendingOf(a.state, r.opts.ApplyUID); pending != nil {
		if pending.Call != n.call {
			return a.waitFor(pending)
		}
		a.resumed, a.journaled = true, true
		if pending.Server != r.opts.Server {
			return a.uncertain(ctx, fmt.Sprintf("server %s started it and stopped before it recorded the outcome", pending.Server))
		}
	} else if done, e := a.checkPreconditions(ctx); done {
		return e
	}
	return a.do(ctx)
}

// waitFor makes a step wait for a pending step of the same object.
func (a *stepRun) waitFor(pending *v1alpha1.PendingChange) stepEnd {
	if first, ok := a.steps.byCall[pending.Call]; ok && !a.stalled && !a.hasEnded(first) {
		return stepEnd{node: a.node, result: postponed, waitFor: first}
	}
	return a.failed(failed, "", "another change of the same resource has not ended: see the Problem of that change")
}

// checkPreconditions compares the step with the object and state it was planned for. It returns
// true if that ends the step.
func (a *stepRun) checkPreconditions(ctx context.Context) (bool, stepEnd) {
	n := a.step
	if a.state == nil {
		// The resource existed at planning time, so that an earlier run of this Apply has deleted
		// it. A deletion leaves no state to record its step.
		switch n.action {
		case change.Delete, change.Forget:
			return true, a.alreadyDone(ctx, &v1alpha1.CarriedStep{Call: n.call, Action: string(n.action)})
		case change.NoOp:
			if n.sealed != nil {
				return true, a.alreadyDone(ctx, &v1alpha1.CarriedStep{Action: string(change.NoOp)})
			}
		}
	}
	if reason := a.staleReason(); reason != "" {
		return true, a.failed(refused, "", reason+": plan again")
	}
	return false, stepEnd{}
}

// staleReason returns which precondition no longer holds, or "".
func (a *stepRun) staleReason() string {
	now := infra.Preconditions(a.object, a.state)
	for i, want := range a.step.preconditions {
		if i < len(now) && now[i] == want || i == 0 && want == createdObject && isJustCreated(a.object) {
			continue
		}
		switch {
		case i == 1 && a.moved:
			// Compared before the move.
		case i == 0 && a.object == nil:
			return "its object was deleted since the plan"
		case i == 0:
			return "its object has changed since the plan"
		case lastAppliedBy(a.state, a.opts.ApplyUID):
			// Changed by another step of this Apply, which found the planned version.
		case a.state == nil && a.step.action == change.Create:
			// The state of a resource that was gone was removed when an earlier attempt to create
			// it failed.
		default:
			return "its state has changed since the plan"
		}
	}
	return ""
}

// do carries out the step.
func (a *stepRun) do(ctx context.Context) stepEnd {
	if a.step.action == change.NoOp && a.step.sealed == nil {
		return a.cleanUp(ctx)
	}
	if a.step.movedTo != nil {
		return a.leave(ctx)
	}
	if e := a.prepare(ctx); e != nil {
		return *e
	}
	if a.step.upserts() && !a.step.address.Data && a.step.action != change.NoOp && !a.object.HasFinalizer {
		if e := a.addFinalizer(ctx); e != nil {
			return *e
		}
	}
	out, err := a.execute(ctx)
	a.warn(out)
	switch {
	case err == nil || a.asked && !out.Uncertain:
		return a.storeOutcome(ctx, out, err)
	case a.asked:
		return a.uncertain(ctx, err.Error())
	case ctx.Err() != nil:
		return stepEnd{node: a.node, result: notStarted} // it may be pending in the journal
	case a.resumed:
		return a.uncertain(ctx, "the call cannot be repeated: "+a.masked(err))
	case !a.journaled:
		return a.refusedOrFailed(ctx, err)
	}
	return a.storeOutcome(ctx, out, err) // it was never asked, but the journal says that it would be
}

// execute calls the provider. It retries a few times as long as the provider was not reached.
func (a *stepRun) execute(ctx context.Context) (*decide.Outcome, error) {
	run := decide.Execution{
		Call: a.step.call, Planned: a.decision, Step: a.step.part, Schema: a.kind.Schema, Provider: journalingProvider{a.provider, a},
		Config: decide.Null(a.kind.Schema),
	}
	if a.evaluated != nil {
		run.Config, run.Lifecycle = a.evaluated.Config, a.evaluated.Lifecycle()
	}
	for attempt := 0; ; attempt++ {
		out, err := decide.Execute(ctx, run)
		if err == nil || a.asked || !errors.Is(err, providerapi.ErrUnavailable) || attempt+1 >= askTries || a.backoff(ctx, attempt) != nil {
			return out, err
		}
	}
}

// warn records the provider's warnings.
func (a *stepRun) warn(out *decide.Outcome) {
	if out == nil || len(out.Warnings) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warnings.Add(a.problemAddress(), out.Warnings, a.mask)
}

// askTries limits the attempts to reach an unavailable provider.
const askTries = 5

// journalingProvider writes to the journal before it asks the provider to change something.
type journalingProvider struct {
	providerapi.Provider
	run *stepRun
}

func (p journalingProvider) Apply(ctx context.Context, request providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
	if !p.run.journaled {
		if err := p.run.recordPending(ctx, p.run.step, p.run.prepareState); err != nil {
			return providerapi.ApplyAnswer{}, err
		}
		p.run.journaled = true
	}
	answer, err := p.Provider.Apply(ctx, request)
	p.run.asked = !errors.Is(err, providerapi.ErrNotCalled)
	return answer, err
}

// prepare collects the inputs of the step. It returns a result if the step ends here.
func (a *stepRun) prepare(ctx context.Context) *stepEnd {
	end := func(as stepResult, field, text string) *stepEnd {
		e := a.failed(as, field, text)
		return &e
	}
	var err error
	if a.kind == nil {
		_, err := a.e.Providers.Kind(a.step.ref)
		return end(failed, "", fmt.Sprintf("%v: install one, or plan again", err))
	}
	if a.decision, err = decide.Open(a.step.sealed, a.kind.Schema); err != nil {
		if errors.Is(err, decide.ErrStale) {
			return end(refused, "", err.Error())
		}
		return end(failed, "", err.Error())
	}
	if a.object == nil && a.step.upserts() && a.step.action != change.NoOp {
		return end(refused, "", "its object was deleted since the plan: plan again")
	}
	if a.needsSpec() {
		evaluated, errs := a.e.Evaluator.Evaluate(ctx, a.object, &a.kind.Kind, a.inputs(ctx))
		switch {
		case len(errs) == 0:
			a.evaluated = evaluated
		case a.step.action == change.NoOp:
			// The spec is not needed: the result of the refresh is stored anyway.
		case ctx.Err() != nil:
			return &stepEnd{node: a.node, result: notStarted}
		default:
			return end(failed, errs[0].Field, errs[0].ErrorBody())
		}
	}
	if a.step.action == change.Forget || a.step.action == change.NoOp && a.evaluated == nil {
		return a.setMask()
	}
	name, config := a.kind.Provider, ""
	switch {
	case a.step.upserts():
		config = a.evaluated.Meta.Provider
	case a.state != nil:
		name, config = a.state.Spec.Provider, a.state.Spec.ProviderConfig
	case a.evaluated != nil: // imported only to be replaced
		config = a.evaluated.Meta.Provider
	}
	if a.provider, a.configRevision, err = a.open(ctx, name, config); err != nil {
		if ctx.Err() != nil {
			return &stepEnd{node: a.node, result: notStarted}
		}
		return end(failed, "", err.Error())
	}
	if err := infra.CheckConfigured(a.state, a.configRevision); err != nil {
		return end(failed, "spec.provider", err.Error())
	}
	return a.setMask()
}

func (a *stepRun) open(ctx context.Context, name, config string) (providerapi.Provider, string, error) {
	for attempt := 0; ; attempt++ {
		provider, revision, err := a.e.Providers.Open(ctx, name, a.step.ref.Namespace, config)
		if err == nil || !errors.Is(err, providerapi.ErrUnavailable) || attempt+1 >= askTries || a.backoff(ctx, attempt) != nil {
			return provider, revision, err
		}
	}
}

// needsSpec reports whether the step uses the spec. A no-op does only if the plan compared spec and
// state.
func (a *stepRun) needsSpec() bool {
	switch {
	case a.object == nil:
		return false
	case a.step.action == change.NoOp:
		return a.opts.Mode == change.Normal && !a.object.Deleting
	}
	return a.step.upserts() || a.step.part == decide.DestroyOld && !a.step.createFirst
}

// setMask masks the secrets in all later messages.
func (a *stepRun) setMask() *stepEnd {
	block := &a.kind.Schema.Block
	values := []cty.Value{evaluate.Mark(block, a.decision.Before.Value, a.decision.BeforeSensitive), evaluate.Mark(block, a.decision.After, a.decision.Sensitive)}
	if a.evaluated != nil {
		values = append(values, a.evaluated.Config)
	}
	a.mask = schema.NewMask(values...)
	return nil
}

// addFinalizer protects the object from deletion before its resource is created.
func (a *stepRun) addFinalizer(ctx context.Context) *stepEnd {
	for attempt := 0; ; attempt++ {
		err := a.e.Objects.AddFinalizer(ctx, a.object)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, infra.ErrStale):
			e := a.failed(refused, "", "its object has changed since the plan: plan again")
			return &e
		case ctx.Err() != nil:
			return &stepEnd{node: a.node, result: notStarted}
		case attempt+1 >= storeTries || a.backoff(ctx, attempt) != nil:
			e := a.failed(failed, "", fmt.Sprintf("cannot add the finalizer to its object: %v", err))
			return &e
		}
	}
}

// cleanUp removes the empty state and the finalizer of an abandoned object.
func (a *stepRun) cleanUp(ctx context.Context) stepEnd {
	if a.state != nil {
		noChange := stateUpdate{mutate: func(*v1alpha1.ResourceStateSpec) {}, isApplied: func(*infra.State) bool { return false }}
		if _, err := a.updateState(ctx, a.step, noChange); err != nil {
			return a.refusedOrFailed(ctx, err)
		}
	}
	return stepEnd{node: a.node, action: change.NoOp, problem: a.publish(ctx, statusReport{done: change.NoOp})}
}
