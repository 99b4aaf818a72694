package infra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// beforehand is what is stored before the provider is asked, so that nothing is forgotten whatever happens
// then: whose the state is, what was found to be imported, and the old resource out of the new one's place.
func (a *attempt) beforehand(s *v1alpha1.ResourceStateSpec) {
	if s.Type == "" {
		a.owner(s)
	}
	first := s.Carried == nil || s.Carried.ApplyUID != a.what.ApplyUID
	if a.step.importing && first && s.Current == nil {
		// It could be stored when it was sealed, so it can be now.
		s.Current, _ = restated(a.kind.Schema, a.decision.Before, a.decision.Tainted, a.decision.BeforeSensitive)
	}
	if a.step.part == plan.CreateNew && a.step.createFirst {
		depose(s, a.key())
	}
}

// owner says whose the state is, and who made it.
func (a *attempt) owner(s *v1alpha1.ResourceStateSpec) {
	s.Type, s.Provider = a.step.ref.Type, a.kind.Provider
	s.Object.Group, s.Object.Kind, s.Object.Name = a.kind.Group, a.kind.Kind.Kind, a.step.ref.Name
	if a.object != nil {
		s.Object.UID = a.object.UID
	}
	if a.said != nil {
		s.ProviderConfig = a.said.own.Provider
	}
}

// key is that of the old resource in a replacement that makes the new one first.
func (a *attempt) key() string { return deposedKey(a.what.ApplyUID, a.step.address) }

// outcome stores what came of it, and says so.
func (a *attempt) outcome(ctx context.Context, out *plan.Outcome, failure error) ending {
	for _, p := range out.Tolerated {
		a.e.log().Warn("the provider did other than it planned, and is known to", "resource", a.step.address.String(), "problem", p.String())
	}
	if a.step.address.Data {
		return a.wasRead(ctx, out)
	}
	value, err := restated(a.kind.Schema, out.State, out.Tainted, out.Sensitive)
	if err != nil {
		return a.uncertain(ctx, err.Error())
	}
	step := v1alpha1.CarriedStep{Call: a.step.call, Action: string(out.Done)}
	if failure != nil {
		_, step.Problem = a.reason(failure)
	}
	store := func(s *v1alpha1.ResourceStateSpec) { a.becomes(s, value, failure) }
	if a.step.action == plan.NoOp && !a.differs(store) {
		return ending{node: a.node, done: out.Done}
	}
	// What is left of a replacement between its two steps, or after the second failed, is kept to tell of it.
	keep := a.step.part != plan.Whole
	state, err := a.record(ctx, a.step, step, keep, store)
	if err != nil {
		return a.lost(err)
	}
	if a.journaled && a.what.Stored != nil {
		a.what.Stored(a.step.call)
	}
	if failure == nil && state != nil && state.Spec.Settled != "" && a.said != nil && !a.said.unwatched {
		a.e.World.settled(a.object, state, a.took, memo{config: a.said.own.Provider, served: a.kind.Revision, opened: a.opened})
	}
	e := ending{node: a.node, done: out.Done}
	if failure != nil {
		field, text := a.reason(failure)
		e = a.failed(failed, field, text)
	}
	tell := told{state: state, done: out.Done, problem: step.Problem}
	if value != nil && state != nil && state.Spec.Current != nil && bytes.Equal(state.Spec.Current.Value, value.Value) {
		tell.value = marked(&a.kind.Schema.Block, out.State.Value, out.Sensitive)
	}
	if problem := a.tell(ctx, tell); e.problem == nil {
		e.problem = problem
	}
	return e
}

// lost is of an outcome that could not be written down: it is in the journal as begun, and will be asked for again.
func (a *attempt) lost(err error) ending {
	return ending{node: a.node, result: notBegun, err: fmt.Errorf("what came of %s is not stored yet, and the apply has to go on: %w", a.step.address, err)}
}

// becomes puts what there is now in its place.
func (a *attempt) becomes(s *v1alpha1.ResourceStateSpec, value *v1alpha1.ResourceValue, failure error) {
	switch {
	case a.step.address.Deposed != "":
		replaceDeposed(s, a.step.address.Deposed, value)
		return
	case a.step.part == plan.DestroyOld && a.step.createFirst:
		replaceDeposed(s, a.key(), value)
		return
	case a.step.part == plan.CreateNew && a.step.createFirst && value == nil:
		restore(s, a.key())
		return
	case a.step.part == plan.CreateNew && a.step.createFirst:
		depose(s, a.key())
	}
	before := s.Current
	s.Current = value
	if s.Type == "" {
		a.owner(s)
	}
	if value == nil {
		s.Settled = ""
		return
	}
	if before != nil {
		value.Dependencies, value.CreateBeforeDestroy = before.Dependencies, before.CreateBeforeDestroy
	}
	changed := before == nil || !bytes.Equal(before.Value, value.Value) || before.Tainted != value.Tainted
	switch {
	case failure != nil || a.said == nil:
		if a.said != nil && a.asked {
			value.Dependencies = union(value.Dependencies, a.dependencies())
		}
		if failure != nil || changed {
			s.Settled = ""
		}
	default:
		a.owner(s)
		value.Dependencies = a.dependencies()
		value.CreateBeforeDestroy = a.said.own.Lifecycle.CreateBeforeDestroy
		s.Object.Generation, s.Written = a.object.Generation, a.object.Spec
		s.Settled = a.e.fingerprint(a.object, a.said, a.kind, a.opened)
	}
	if failure == nil && (changed || a.step.action != plan.NoOp) {
		now := metav1.NewMicroTime(a.e.Clock.Now())
		s.Refreshed = &now
	}
}

func replaceDeposed(s *v1alpha1.ResourceStateSpec, key string, value *v1alpha1.ResourceValue) {
	if value == nil {
		removeDeposed(s, key)
		return
	}
	if old := deposed(&State{Spec: *s}, key); old != nil {
		value.Dependencies, value.CreateBeforeDestroy = old.Dependencies, old.CreateBeforeDestroy
		old.ResourceValue = *value
	}
}

// differs tells whether there is something to store.
func (a *attempt) differs(store func(*v1alpha1.ResourceStateSpec)) bool {
	var now, then v1alpha1.ResourceStateSpec
	if a.state != nil {
		a.state.Spec.DeepCopyInto(&now)
		a.state.Spec.DeepCopyInto(&then)
	}
	store(&then)
	return nothing(&then) || now.Settled != then.Settled || now.Object != then.Object || !bytes.Equal(now.Written, then.Written) || now.ProviderConfig != then.ProviderConfig ||
		!sameResource(now.Current, then.Current) || !slices.EqualFunc(now.Deposed, then.Deposed, sameDeposed)
}

func sameDeposed(a, b v1alpha1.DeposedResource) bool {
	return a.Key == b.Key && sameResource(&a.ResourceValue, &b.ResourceValue)
}

// sameResource tells whether two stored resources are the same in everything.
func sameResource(a, b *v1alpha1.ResourceValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SchemaVersion == b.SchemaVersion && bytes.Equal(a.Value, b.Value) && bytes.Equal(a.Private, b.Private) && bytes.Equal(a.Identity, b.Identity) &&
		a.Tainted == b.Tainted && a.CreateBeforeDestroy == b.CreateBeforeDestroy && slices.Equal(a.Sensitive, b.Sensitive) && slices.Equal(a.Dependencies, b.Dependencies)
}

// dependencies are the names of the states of what the object refers to, by way of data sources, too, as far as they are in
// its namespace: a plan, and so the order of what it deletes, is of one.
func (a *attempt) dependencies() []string {
	var out []string
	for _, ref := range a.e.written(a.step.ref) {
		if ref.Kind != reference.Resource || ref.Namespace != a.step.ref.Namespace {
			continue
		}
		if kind, err := a.e.Providers.Kind(ref); err == nil && a.stateOf(ref) != nil {
			out = append(out, stateNameOf(kind, ref.Name))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// uncertain is of what the provider may have done. The journal keeps it as begun.
func (a *attempt) uncertain(ctx context.Context, why string) ending {
	text := "the provider did not say whether it did it (" + limited(a.mask.Text(why)) + "): "
	switch {
	case a.step.part == plan.CreateNew && a.step.createFirst:
		text += "look for the new one; if it is there, remove it there, because Atoll goes on with the old one; then plan again"
	case a.step.verb() == string(plan.Create):
		text += "look for it; if it is there, take it over with the annotation " + ImportAnnotation + " and plan again"
	default:
		text += "make a plan in mode RefreshOnly to see what there is, and apply that"
	}
	state, err := a.doubt(ctx, a.step, func(s *v1alpha1.ResourceStateSpec) {
		if a.step.part == plan.CreateNew && a.step.createFirst {
			restore(s, a.key())
		}
	})
	if err != nil {
		return a.lost(err)
	}
	a.tell(ctx, told{state: state, problem: text, uncertain: true})
	return a.failed(failed, "", text)
}

// refusedOrFailed is of what was not done.
func (a *attempt) refusedOrFailed(ctx context.Context, err error) ending {
	switch {
	case errors.Is(err, errElsewhere):
		return a.failed(refused, "", "its state has changed since it was planned: plan it again")
	case errors.Is(err, plan.ErrStale):
		field, text := a.reason(err)
		return a.failed(refused, field, text)
	}
	field, text := a.reason(err)
	a.tell(ctx, told{state: a.carrier.state(a.step), problem: text})
	return a.failed(failed, field, text)
}

// failed ends the step with a Problem.
func (a *attempt) failed(as result, field, text string) ending {
	return ending{node: a.node, result: as, problem: &v1alpha1.Problem{Address: a.problemAddress(), Field: field, Message: text}}
}

// problemAddress is KIND.GROUP/NAME.
func (a *attempt) problemAddress() string {
	switch {
	case a.object != nil:
		return a.object.Kind + "." + a.object.Group + "/" + a.step.ref.Name
	case a.kind != nil:
		return a.kind.Kind.Kind + "." + a.kind.Group + "/" + a.step.ref.Name
	case a.state != nil:
		return a.state.Spec.Object.Kind + "." + a.state.Spec.Object.Group + "/" + a.step.ref.Name
	}
	return a.step.address.String()
}

// maxProblem is how long the text of a Problem gets: many of them stand in one status.
const maxProblem = 1500

func limited(text string) string {
	if len(text) <= maxProblem {
		return text
	}
	return strings.ToValidUTF8(text[:maxProblem], "") + "…"
}

// masked is an error without what is secret.
func (a *attempt) masked(err error) string {
	_, text := a.reason(err)
	return text
}

// reason is what an error says, with what the provider said, without what is secret in it, and the
// field that it is about.
func (a *attempt) reason(err error) (field, text string) {
	text = err.Error()
	var is *plan.Error
	if errors.As(err, &is) {
		for _, p := range is.Problems {
			if field == "" && len(p.Path) > 0 {
				field = "spec." + plan.PathText(p.Path)
			}
		}
		var said []string
		for _, d := range is.Diagnostics {
			if d.Warning {
				continue
			}
			said = append(said, words(d))
			if field == "" && len(d.Attribute) > 0 {
				field = "spec." + plan.PathText(d.Attribute)
			}
		}
		if len(said) > 0 {
			text += ": " + strings.Join(said, "; ")
		}
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	return field, limited(a.mask.Text(text))
}

func words(d contract.Diagnostic) string {
	if d.Detail == "" {
		return d.Summary
	}
	return d.Summary + ": " + d.Detail
}
