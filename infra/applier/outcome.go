package applier

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
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/problems"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// prepareState edits the state before the provider is called, so that nothing is lost in a crash:
// it sets the owner, stores a resource found for import, and deposes the old resource of a
// replacement.
func (a *stepRun) prepareState(s *v1alpha1.ResourceStateSpec) {
	if s.Type == "" {
		a.setOwner(s)
	}
	first := s.Carried == nil || s.Carried.ApplyUID != a.opts.ApplyUID
	if a.step.importing && first && s.Current == nil {
		// It was encoded when the plan was sealed, so that this cannot fail.
		s.Current, _ = evaluate.ResourceValue(a.kind.Schema, a.decision.Before, a.decision.Tainted, a.decision.BeforeSensitive)
	}
	if a.step.part == decide.CreateNew && a.step.createFirst {
		depose(s, a.key())
	}
}

// setOwner records the object and the provider of the state.
func (a *stepRun) setOwner(s *v1alpha1.ResourceStateSpec) {
	s.Type, s.Provider = a.step.ref.Type, a.kind.Provider
	s.Object.Group, s.Object.Kind, s.Object.Name = a.kind.Group, a.kind.Kind.Kind, a.step.ref.Name
	if a.object != nil {
		s.Object.UID = a.object.UID
	}
	if a.evaluated != nil {
		s.ProviderConfig = a.evaluated.Meta.Provider
		s.Configured = a.configRevision != infra.Unconfigured
	}
}

// key is the key of the old resource in a create-before-destroy replacement.
func (a *stepRun) key() string { return deposedKey(a.opts.ApplyUID, a.step.address) }

// storeOutcome stores the outcome of a step and publishes it.
func (a *stepRun) storeOutcome(ctx context.Context, out *decide.Outcome, failure error) stepEnd {
	for _, p := range out.Tolerated {
		a.e.log().Warn("provider deviated from its plan, which is tolerated", "resource", a.step.address.String(), "problem", p.String())
	}
	if a.step.address.Data {
		return a.finishRead(ctx, out)
	}
	value, err := evaluate.ResourceValue(a.kind.Schema, out.State, out.Tainted, out.Sensitive)
	if err != nil {
		return a.uncertain(ctx, err.Error())
	}
	step := v1alpha1.CarriedStep{Call: a.step.call, Action: string(out.Action)}
	if failure != nil {
		_, step.Problem = a.reason(failure)
	}
	store := func(s *v1alpha1.ResourceStateSpec) { a.applyOutcome(s, value, failure) }
	if a.step.action == change.NoOp && !a.differs(store) {
		return stepEnd{node: a.node, action: out.Action}
	}
	// Between its two steps, or after the second failed, the state of a replacement may be empty,
	// but records the first step.
	keep := a.step.part != decide.OnlyStep
	state, err := a.recordOutcome(ctx, a.step, step, keep, store)
	if err != nil {
		return a.unstored(err)
	}
	if a.journaled && a.opts.OnStored != nil {
		a.opts.OnStored(a.step.call)
	}
	if failure == nil && state != nil && state.Spec.Settled != "" && a.evaluated != nil && !a.evaluated.Unwatched {
		a.e.Inventory.RecordApply(a.object, state, a.inputVersions, inventory.Memo{ProviderConfig: a.evaluated.Meta.Provider, KindRevision: a.kind.Revision, ConfigRevision: a.configRevision})
	}
	e := stepEnd{node: a.node, action: out.Action}
	if failure != nil {
		field, text := a.reason(failure)
		e = a.failed(failed, field, text)
	}
	report := statusReport{state: state, done: out.Action, problem: step.Problem}
	if value != nil && state != nil && state.Spec.Current != nil && bytes.Equal(state.Spec.Current.Value, value.Value) {
		report.value = evaluate.Mark(&a.kind.Schema.Block, out.State.Value, out.Sensitive)
	}
	if problem := a.publish(ctx, report); e.problem == nil {
		e.problem = problem
	}
	return e
}

// unstored ends a step whose outcome could not be written. It is still pending in the journal, and
// will be requested again.
func (a *stepRun) unstored(err error) stepEnd {
	return stepEnd{node: a.node, result: notStarted, err: fmt.Errorf("the outcome of %s is not stored yet, and the apply must be resumed: %w", a.step.address, err)}
}

// applyOutcome puts the resulting resource into the state.
func (a *stepRun) applyOutcome(s *v1alpha1.ResourceStateSpec, value *v1alpha1.ResourceValue, failure error) {
	switch {
	case a.step.address.Deposed != "":
		replaceDeposed(s, a.step.address.Deposed, value)
		return
	case a.step.part == decide.DestroyOld && a.step.createFirst:
		replaceDeposed(s, a.key(), value)
		return
	case a.step.part == decide.CreateNew && a.step.createFirst && value == nil:
		restore(s, a.key())
		return
	case a.step.part == decide.CreateNew && a.step.createFirst:
		depose(s, a.key())
	}
	before := s.Current
	s.Current = value
	if s.Type == "" {
		a.setOwner(s)
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
	case failure != nil || a.evaluated == nil:
		if a.evaluated != nil && a.asked {
			value.Dependencies = union(value.Dependencies, a.dependencies())
		}
		if failure != nil || changed {
			s.Settled = ""
		}
	default:
		a.setOwner(s)
		value.Dependencies = a.dependencies()
		value.CreateBeforeDestroy = a.evaluated.Meta.Lifecycle.CreateBeforeDestroy
		s.Object.Generation, s.Written = a.object.Generation, a.object.Spec
		s.Settled = a.evaluated.Fingerprint(a.object, a.kind, a.configRevision)
	}
	// A step without a change was judged by no policy, so it must not replace the labels that policies know.
	if a.object != nil && a.step.upserts() && a.step.action != change.NoOp && (failure == nil || s.Applied == nil) {
		s.Applied = &v1alpha1.AppliedObject{Labels: a.object.Labels}
	}
	if failure == nil && (changed || a.step.action != change.NoOp) {
		now := metav1.NewMicroTime(a.e.Clock.Now())
		s.Refreshed = &now
	}
}

func replaceDeposed(s *v1alpha1.ResourceStateSpec, key string, value *v1alpha1.ResourceValue) {
	if value == nil {
		removeDeposed(s, key)
		return
	}
	if old := findDeposed(&infra.State{Spec: *s}, key); old != nil {
		value.Dependencies, value.CreateBeforeDestroy = old.Dependencies, old.CreateBeforeDestroy
		old.ResourceValue = *value
	}
}

// differs reports whether there is something to store.
func (a *stepRun) differs(store func(*v1alpha1.ResourceStateSpec)) bool {
	var current, next v1alpha1.ResourceStateSpec
	if a.state != nil {
		a.state.Spec.DeepCopyInto(&current)
		a.state.Spec.DeepCopyInto(&next)
	}
	store(&next)
	return isEmpty(&next) || current.Settled != next.Settled || current.Object != next.Object || !bytes.Equal(current.Written, next.Written) || current.ProviderConfig != next.ProviderConfig || current.Configured != next.Configured ||
		!sameResource(current.Current, next.Current) || !slices.EqualFunc(current.Deposed, next.Deposed, sameDeposed)
}

func sameDeposed(a, b v1alpha1.DeposedResource) bool {
	return a.Key == b.Key && sameResource(&a.ResourceValue, &b.ResourceValue)
}

// sameResource reports whether two stored resources are equal in all fields.
func sameResource(a, b *v1alpha1.ResourceValue) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SchemaVersion == b.SchemaVersion && bytes.Equal(a.Value, b.Value) && bytes.Equal(a.Private, b.Private) && bytes.Equal(a.Identity, b.Identity) &&
		a.Tainted == b.Tainted && a.CreateBeforeDestroy == b.CreateBeforeDestroy && slices.Equal(a.Sensitive, b.Sensitive) && slices.Equal(a.Dependencies, b.Dependencies)
}

// dependencies returns the names of the states that the object refers to, directly or through data
// sources. Other namespaces are left out, because a plan, and so its order of deletion, covers one
// namespace.
func (a *stepRun) dependencies() []string {
	var out []string
	for _, ref := range a.e.desiredDependencies(a.step.ref) {
		if ref.Kind != expr.Resource || ref.Namespace != a.step.ref.Namespace {
			continue
		}
		if kind, err := a.e.Providers.Kind(ref); err == nil && a.stateOf(ref) != nil {
			out = append(out, kind.StateName(ref.Name))
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

// uncertain ends a step that the provider may have carried out. It stays pending in the journal.
func (a *stepRun) uncertain(ctx context.Context, why string) stepEnd {
	text := "the provider did not report the outcome (" + problems.Limit(a.mask.Text(why)) + "): "
	switch {
	case a.step.part == decide.CreateNew && a.step.createFirst:
		text += "check whether the new resource exists; if it does, delete it there, because Atoll keeps the old one; then plan again"
	case a.step.journalAction() == string(change.Create):
		text += "check whether the resource exists; if it does, import it with the annotation " + infra.ImportAnnotation + "; then plan again"
	default:
		text += "plan in mode RefreshOnly to see the current resource, and apply that plan"
	}
	state, err := a.recordUncertain(ctx, a.step, func(s *v1alpha1.ResourceStateSpec) {
		if a.step.part == decide.CreateNew && a.step.createFirst {
			restore(s, a.key())
		}
	})
	if err != nil {
		return a.unstored(err)
	}
	a.publish(ctx, statusReport{state: state, problem: text, uncertain: true})
	return a.failed(failed, "", text)
}

// refusedOrFailed ends a step that was not carried out.
func (a *stepRun) refusedOrFailed(ctx context.Context, err error) stepEnd {
	switch {
	case errors.Is(err, errStateChanged):
		return a.failed(refused, "", "its state has changed since the plan: plan again")
	case errors.Is(err, decide.ErrStale):
		field, text := a.reason(err)
		return a.failed(refused, field, text)
	}
	field, text := a.reason(err)
	a.publish(ctx, statusReport{state: a.run.state(a.step), problem: text})
	return a.failed(failed, field, text)
}

// failed ends the step with a Problem.
func (a *stepRun) failed(as stepResult, field, text string) stepEnd {
	return stepEnd{node: a.node, result: as, problem: &v1alpha1.Problem{Address: a.problemAddress(), Field: field, Message: text}}
}

// problemAddress returns KIND.GROUP/NAME.
func (a *stepRun) problemAddress() string {
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

// masked returns the text of an error without secrets.
func (a *stepRun) masked(err error) string {
	_, text := a.reason(err)
	return text
}

// reason returns the text of an error and of the provider's diagnostics, without secrets, and the
// field that it is about.
func (a *stepRun) reason(err error) (field, text string) {
	text = err.Error()
	var planError *decide.Error
	if errors.As(err, &planError) {
		for _, p := range planError.Problems {
			if field == "" && len(p.Path) > 0 {
				field = "spec." + providerapi.PathText(p.Path)
			}
		}
		var texts []string
		for _, d := range planError.Diagnostics {
			if d.Warning {
				continue
			}
			texts = append(texts, problems.Text(d))
			if field == "" && len(d.Attribute) > 0 {
				field = "spec." + providerapi.PathText(d.Attribute)
			}
		}
		if len(texts) > 0 {
			text += ": " + strings.Join(texts, "; ")
		}
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	return field, problems.Limit(a.mask.Text(text))
}
