package infra

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// attempt is one step being carried out.
type attempt struct {
	*carrier
	node int32
	step *task
	// object and state are what there was when it began; nil if there was nothing.
	object *Object
	state  *State

	kind     *Served
	decision *plan.Decision
	provider contract.Provider
	// said is what is written, with values; nil if that plays no part. opened is the revision of the provider's configuration.
	said   *evaluated
	opened string
	mask   schema.Mask
	// took is of which version the states were that what is written takes values from.
	took map[reference.Ref]string

	// resumed says that an earlier run of this Apply began it; journaled that it is in the journal as begun, and
	// asked that the provider was asked.
	resumed, journaled, asked bool
}

// carryOut does a step, or finds that it was done.
func (r *carrier) carryOut(ctx context.Context, node int32) ending {
	n := &r.steps.all[node]
	if n.ref.Kind == reference.Kubernetes {
		return r.place(ctx, node)
	}
	a := &attempt{carrier: r, node: node, step: n, object: r.e.World.Object(n.ref), state: r.state(n)}
	a.kind, _ = r.e.Providers.Kind(n.ref) // whoever needs it says that it is not there
	if was := carried(a.state, r.what.ApplyUID, n.call); was != nil {
		return a.wasDone(ctx, was)
	}
	if ctx.Err() != nil {
		return ending{node: node, result: notBegun}
	}
	if pending := began(a.state, r.what.ApplyUID); pending != nil {
		if pending.Call != n.call {
			return a.wait(pending)
		}
		a.resumed, a.journaled = true, true
		if pending.Server != r.what.Server {
			return a.uncertain(ctx, fmt.Sprintf("%s began it and stopped before it wrote down what came of it", pending.Server))
		}
	} else if done, e := a.checked(ctx); done {
		return e
	}
	return a.do(ctx)
}

// wait has a step wait for another of the same object that was begun before.
func (a *attempt) wait(pending *v1alpha1.PendingChange) ending {
	if first, there := a.steps.byCall[pending.Call]; there && !a.alone && !a.isEnded(first) {
		return ending{node: a.node, result: later, behind: first}
	}
	return a.failed(failed, "", "another change of it has not come to an end: see what the Problem about that says")
}

// checked holds the step to what the plan was computed from. It is true if that is the end of it.
func (a *attempt) checked(ctx context.Context) (bool, ending) {
	n := a.step
	if a.state == nil {
		// There was something when it was planned, or nothing has changed. An Apply that deletes the last that is stored leaves no
		// state to tell of it.
		switch n.action {
		case plan.Delete, plan.Forget:
			return true, a.wasDone(ctx, &v1alpha1.CarriedStep{Call: n.call, Action: string(n.action)})
		case plan.NoOp:
			if n.sealed != nil {
				return true, a.wasDone(ctx, &v1alpha1.CarriedStep{Action: string(plan.NoOp)})
			}
		}
	}
	if moved := a.moved(); moved != "" {
		return true, a.failed(refused, "", moved+": plan it again")
	}
	return false, ending{}
}

// moved is what is no longer as it was when it was planned; "" if all is.
func (a *attempt) moved() string {
	now := preconditions(a.object, a.state)
	for i, want := range a.step.preconditions {
		if i < len(now) && now[i] == want || i == 0 && want == anew && isAnew(a.object) {
			continue
		}
		switch {
		case i == 0 && a.object == nil:
			return "its object has been removed since it was planned"
		case i == 0:
			return "its object has changed since it was planned"
		case touched(a.state, a.what.ApplyUID):
			// By another step of this Apply, which found it as it was planned from.
		case a.state == nil && a.step.action == plan.Create:
			// There was a state of something that was gone, and the attempt to make it anew left none.
		default:
			return "its state has changed since it was planned"
		}
	}
	return ""
}

// do carries the step out.
func (a *attempt) do(ctx context.Context) ending {
	if a.step.action == plan.NoOp && a.step.sealed == nil {
		return a.abandon(ctx)
	}
	if e := a.prepare(ctx); e != nil {
		return *e
	}
	if a.step.makes() && !a.step.address.Data && a.step.action != plan.NoOp && !a.object.Held {
		if e := a.hold(ctx); e != nil {
			return *e
		}
	}
	out, err := a.execute(ctx)
	a.warn(out)
	switch {
	case err == nil || a.asked && !out.Uncertain:
		return a.outcome(ctx, out, err)
	case a.asked:
		return a.uncertain(ctx, err.Error())
	case ctx.Err() != nil:
		return ending{node: a.node, result: notBegun} // it may be in the journal as begun
	case a.resumed:
		return a.uncertain(ctx, "it cannot be asked again: "+a.masked(err))
	case !a.journaled:
		return a.refusedOrFailed(ctx, err)
	}
	return a.outcome(ctx, out, err) // it was never asked, and the journal says that it was going to be
}

// execute has it done. As long as the provider was not asked it is tried again, a few times.
func (a *attempt) execute(ctx context.Context) (*plan.Outcome, error) {
	run := plan.Execution{
		Call: a.step.call, Planned: a.decision, Step: a.step.part, Schema: a.kind.Schema, Provider: asking{a.provider, a},
		Config: plan.Null(a.kind.Schema),
	}
	if a.said != nil {
		run.Config, run.Lifecycle = a.said.config, a.said.lifecycle()
	}
	for attempt := 0; ; attempt++ {
		out, err := plan.Execute(ctx, run)
		if err == nil || a.asked || !errors.Is(err, contract.ErrUnavailable) || attempt+1 >= askTries || a.pause(ctx, attempt) != nil {
			return out, err
		}
	}
}

// warn notes what the provider said beside what it did.
func (a *attempt) warn(out *plan.Outcome) {
	if out == nil || len(out.Warnings) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.warned.add(a.problemAddress(), out.Warnings, a.mask)
}

// askTries is how often a provider is asked that cannot be reached.
const askTries = 5

// asking writes into the journal before the provider is asked to change something.
type asking struct {
	contract.Provider
	a *attempt
}

func (p asking) Apply(ctx context.Context, request contract.ApplyRequest) (contract.ApplyAnswer, error) {
	if !p.a.journaled {
		if err := p.a.begin(ctx, p.a.step, p.a.beforehand); err != nil {
			return contract.ApplyAnswer{}, err
		}
		p.a.journaled = true
	}
	answer, err := p.Provider.Apply(ctx, request)
	p.a.asked = !errors.Is(err, contract.ErrNotAsked)
	return answer, err
}

// prepare finds what it takes. What it gives back is the end of the step.
func (a *attempt) prepare(ctx context.Context) *ending {
	end := func(as result, field, text string) *ending {
		e := a.failed(as, field, text)
		return &e
	}
	var err error
	if a.kind == nil {
		_, err := a.e.Providers.Kind(a.step.ref)
		return end(failed, "", fmt.Sprintf("%v: install one, or plan again", err))
	}
	if a.decision, err = plan.Open(a.step.sealed, a.kind.Schema); err != nil {
		if errors.Is(err, plan.ErrStale) {
			return end(refused, "", err.Error())
		}
		return end(failed, "", err.Error())
	}
	if a.object == nil && a.step.makes() && a.step.action != plan.NoOp {
		return end(refused, "", "its object has been removed since it was planned: plan again")
	}
	if a.written() {
		said, errs := a.e.evaluate(ctx, a.object, &a.kind.Kind, a.others(ctx))
		switch {
		case len(errs) == 0:
			a.said = said
		case a.step.action == plan.NoOp:
			// Nothing depends on it: what was found is stored all the same.
		case ctx.Err() != nil:
			return &ending{node: a.node, result: notBegun}
		default:
			return end(failed, errs[0].Field, errs[0].ErrorBody())
		}
	}
	if a.step.action == plan.Forget || a.step.action == plan.NoOp && a.said == nil {
		return a.masks()
	}
	name, config := a.kind.Provider, ""
	switch {
	case a.step.makes():
		config = a.said.own.Provider
	case a.state != nil:
		name, config = a.state.Spec.Provider, a.state.Spec.ProviderConfig
	case a.said != nil: // what is imported only to be replaced
		config = a.said.own.Provider
	}
	if a.provider, a.opened, err = a.open(ctx, name, config); err != nil {
		if ctx.Err() != nil {
			return &ending{node: a.node, result: notBegun}
		}
		return end(failed, "", err.Error())
	}
	return a.masks()
}

func (a *attempt) open(ctx context.Context, name, config string) (contract.Provider, string, error) {
	for attempt := 0; ; attempt++ {
		provider, revision, err := a.e.Providers.Open(ctx, name, a.step.ref.Namespace, config)
		if err == nil || !errors.Is(err, contract.ErrUnavailable) || attempt+1 >= askTries || a.pause(ctx, attempt) != nil {
			return provider, revision, err
		}
	}
}

// written tells whether what is written plays a part. Of what needs no change it does only if the plan compared the
// two.
func (a *attempt) written() bool {
	switch {
	case a.object == nil:
		return false
	case a.step.action == plan.NoOp:
		return a.what.Mode == plan.Normal && !a.object.Deleting
	}
	return a.step.makes() || a.step.part == plan.DestroyOld && !a.step.createFirst
}

// masks takes what is secret out of whatever is said from now on.
func (a *attempt) masks() *ending {
	block := &a.kind.Schema.Block
	values := []cty.Value{marked(block, a.decision.Before.Value, a.decision.BeforeSensitive), marked(block, a.decision.After, a.decision.Sensitive)}
	if a.said != nil {
		values = append(values, a.said.config)
	}
	a.mask = schema.NewMask(values...)
	return nil
}

// hold keeps the object from going away before what is going to be made for it has.
func (a *attempt) hold(ctx context.Context) *ending {
	for attempt := 0; ; attempt++ {
		err := a.e.Objects.Hold(ctx, a.object)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrMoved):
			e := a.failed(refused, "", "its object has changed since it was planned: plan it again")
			return &e
		case ctx.Err() != nil:
			return &ending{node: a.node, result: notBegun}
		case attempt+1 >= storeTries || a.pause(ctx, attempt) != nil:
			e := a.failed(failed, "", fmt.Sprintf("its object cannot be written: %v", err))
			return &e
		}
	}
}

// abandon lets go what nothing is left of.
func (a *attempt) abandon(ctx context.Context) ending {
	if a.state != nil {
		asItIs := edit{change: func(*v1alpha1.ResourceStateSpec) {}, there: func(*State) bool { return false }}
		if _, err := a.put(ctx, a.step, asItIs); err != nil {
			return a.refusedOrFailed(ctx, err)
		}
	}
	return ending{node: a.node, done: plan.NoOp, problem: a.tell(ctx, told{done: plan.NoOp})}
}
