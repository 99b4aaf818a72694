package planner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/inventory"
	"github.com/atoll-dev/atoll/infra/schema"
)

// isUnchanged reports whether the last plan found nothing to do and none of its inputs has changed.
// Then the slot is settled without evaluation.
func (r *run) isUnchanged(ctx context.Context, s *slot) bool {
	m := &s.Memo
	if !s.IsMemoValid() || !r.mayBeSettled(s) {
		return false
	}
	for _, u := range s.Uses {
		if r.slots[u].Ref.Namespace != s.Ref.Namespace {
			return false // the grant of the other namespace may be gone
		}
		if used := &r.slots[u]; !used.unchanged || !s.IsInMemo(used.Resource) {
			return false
		}
	}
	kind, err := r.kind(s.Ref)
	if err != nil || kind.Revision != m.KindRevision {
		return false
	}
	provider, err := r.open(ctx, configName{kind.Provider, s.Ref.Namespace, m.ProviderConfig})
	if err != nil || provider.revision != m.ConfigRevision {
		return false
	}
	if s.IsData() {
		s.decision = m.DataRead
		if err := r.storeChange(s, kind, m.DataRead, nil); err != nil {
			return false
		}
	} else {
		s.settled = true
	}
	s.unchanged, s.cacheable = true, true
	return true
}

// mayBeSettled reports whether the plan requests nothing of a slot besides matching its spec.
func (r *run) mayBeSettled(s *slot) bool {
	if r.opts.Mode != "" && r.opts.Mode != change.Normal || r.opts.Refresh || s.replace || s.Overridden || s.removed || s.movedFrom != nil {
		return false
	}
	if s.IsData() {
		return s.Memo.DataRead != nil
	}
	if s.State == nil {
		return false
	}
	spec := &s.State.Spec
	return spec.Current != nil && !spec.Current.Tainted && len(spec.Deposed) == 0 && spec.Pending == nil
}

// decide computes the changes of a slot and reports whether it succeeded. It records problems.
func (r *run) decide(ctx context.Context, at int32) bool {
	s := &r.slots[at]
	if s.movedAway {
		return true // planned with the object that takes the resource over
	}
	if s.moveProblem != "" {
		r.problem(s, s.moveField, s.moveProblem)
		return false
	}
	kind, err := r.kind(s.Ref)
	if err != nil {
		r.notServed(s, err)
		return false
	}
	if errs := s.Errors(); s.isDesired() && r.usesSpec(s) && len(errs) > 0 {
		for _, f := range errs {
			r.problem(s, f.Field, f.Text)
		}
		return false
	}
	d := &decider{run: r, slot: s, kind: kind, refresh: r.opts.Refresh || r.opts.Mode == change.RefreshOnly}
	if s.leftover == nil && !d.checkPending() {
		return false
	}
	if r.usesSpec(s) {
		return d.decideDesired(ctx)
	}
	return d.decidePrior(ctx)
}

// usesSpec reports whether the plan compares the slot's spec with its state.
func (r *run) usesSpec(s *slot) bool {
	return s.isDesired() && (r.opts.Mode != change.RefreshOnly || s.IsData())
}

func (r *run) notServed(s *slot, err error) {
	text := err.Error()
	if errors.Is(err, infra.ErrNotServed) {
		text = fmt.Sprintf("no installed Provider serves the type %s: install one that does, or activate the type", s.Ref.Type)
		if s.Object == nil {
			text = fmt.Sprintf("its object was deleted, and no installed Provider serves the type %s any more: reinstall the Provider to destroy the resource, or delete ResourceState %q to forget it",
				s.Ref.Type, s.State.Name())
		}
	}
	r.problem(s, "", text)
}

// decider computes the changes of one slot.
type decider struct {
	*run
	slot    *slot
	kind    *infra.ServedKind
	refresh bool

	evaluated   *evaluate.Spec
	fingerprint string
	provider    *openProvider
}

// checkPending reports whether the resource can be planned despite a change whose outcome is not
// known.
func (d *decider) checkPending() bool {
	s := d.slot
	if s.State == nil || s.State.Spec.Pending == nil {
		return true
	}
	p := s.State.Spec.Pending
	if d.opts.ApplyEnded == nil || !d.opts.ApplyEnded(p.ApplyUID) {
		d.problem(s, "", fmt.Sprintf("Apply %q started to %s it at %s and has not ended: wait for the Apply or cancel it, then plan again",
			p.Apply, p.Action, p.Since.UTC().Format(time.RFC3339)))
		return false
	}
	// The provider did not say whether it made the change, so read the resource.
	d.refresh = true
	if s.State.Spec.Current != nil || p.Action != "create" || s.Object != nil && !s.removed && s.Object.ImportID != "" {
		return true
	}
	d.problem(s, "", fmt.Sprintf("Apply %q started to create it and ended without an answer from the provider: check whether the resource exists; if it does, "+
		"set the annotation %s to its ID; if not, delete ResourceState %q; then plan again", p.Apply, infra.ImportAnnotation, s.State.Name()))
	return false
}

// decideDesired plans a resource by its spec.
func (d *decider) decideDesired(ctx context.Context) bool {
	s := d.slot
	// Refused references are reported first: whether the other namespace has such a resource is not said.
	if d.reportRefused(ctx) || d.reportUnavailable() || d.reportTriggers() {
		return false
	}
	evaluated, errs := d.Evaluator.Evaluate(ctx, s.Object, &d.kind.Kind, expr.Scope{
		Lookup:    func(ref expr.Ref) (cty.Value, error) { return d.lookup(ctx, s, ref) },
		Attribute: func(ref expr.Ref, name string) (cty.Value, bool) { return d.attribute(s, ref, name) },
	})
	if len(errs) > 0 {
		d.fieldErrors(s, errs)
		return false
	}
	d.evaluated = evaluated
	if !d.open(ctx, evaluated.Meta.Provider) {
		return false
	}
	if s.State != nil || s.IsData() { // a resource without state cannot be settled
		d.fingerprint = evaluated.Fingerprint(s.Object, d.kind, d.provider.revision)
	}
	trigger := d.trigger()
	if trigger == "" && d.isSettled() {
		return d.settle()
	}
	in := d.input()
	in.Config, in.Lifecycle, in.Replace, in.ImportID = evaluated.Config, evaluated.Lifecycle(), s.replace, s.Object.ImportID
	in.Lifecycle.Trigger = trigger
	in.Lifecycle.CreateBeforeDestroy = s.createFirst
	in.KeepOld = s.Object.Forget
	if err := d.setMove(&in); err != nil {
		d.problem(s, "spec.movedFrom", err.Error())
		return false
	}
	if s.IsData() {
		in.Pending = d.dependencyChanges()
	}
	return d.finish(ctx, in)
}

// decidePrior plans a resource by its state alone: a removal or a refresh.
func (d *decider) decidePrior(ctx context.Context) bool {
	s := d.slot
	in := d.input()
	config := ""
	if s.State != nil {
		config = s.State.Spec.ProviderConfig
	}
	if s.Object != nil {
		own, errs := d.removalSettings()
		if len(errs) > 0 {
			d.fieldErrors(s, errs)
			return false
		}
		config = own.Provider
		in.Lifecycle.PreventDestroy = own.Lifecycle.PreventDestroy
	}
	if config == "" {
		config = d.kind.Provider
	}
	if s.removed && d.opts.Mode != change.RefreshOnly {
		in.Delete = s.Object != nil && s.Object.Deleting
		in.Forget = s.Object != nil && s.Object.Forget || s.leftover != nil || s.releaseTo != nil
		in.MovedTo, in.ReleaseTo = s.leftover, s.releaseTo
	}
	return d.open(ctx, config) && d.finish(ctx, in)
}

// removalSettings reads the settings of the spec that affect removal. It ignores errors in the rest
// of the spec.
func (d *decider) removalSettings() (schema.MetaArguments, field.ErrorList) {
	var spec map[string]any
	if err := json.Unmarshal(d.slot.Object.Spec, &spec); err != nil {
		return schema.MetaArguments{}, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, "must be an object")}
	}
	own, errs := d.kind.MetaArguments(spec)
	return own, slices.DeleteFunc(errs, func(err *field.Error) bool {
		return !strings.HasPrefix(err.Field, "spec.provider") && !strings.HasPrefix(err.Field, "spec.lifecycle.prevent_destroy")
	})
}

func (d *decider) open(ctx context.Context, config string) bool {
	provider, err := d.run.open(ctx, configName{d.kind.Provider, d.slot.Ref.Namespace, config})
	if err != nil {
		d.problem(d.slot, "spec.provider", err.Error())
		return false
	}
	if err := infra.CheckConfigured(d.slot.State, provider.revision); err != nil {
		d.problem(d.slot, "spec.provider", err.Error())
		return false
	}
	d.provider = provider
	if d.evaluated != nil {
		d.evaluated.Meta.Provider = config
	}
	return true
}

// input returns the input that all decisions about the slot share.
func (d *decider) input() decide.Input {
	return decide.Input{Address: infra.AddressOf(d.slot.Ref), Schema: d.kind.Schema, Mode: d.opts.Mode, Refresh: d.refresh}
}

// isSettled reports whether the fingerprint shows that there is nothing to do.
func (d *decider) isSettled() bool {
	s := d.slot
	if d.fingerprint == "" || !d.mayBeSettled(s) {
		return false
	}
	if s.IsData() {
		return d.fingerprint == s.Memo.Fingerprint && !d.dependencyChanges()
	}
	return d.fingerprint == s.State.Spec.Settled || d.fingerprint == s.Memo.Fingerprint && s.Memo.StateVersion == s.State.ResourceVersion
}

// settle records that there is nothing to do, without a provider call.
func (d *decider) settle() bool {
	s := d.slot
	s.unchanged, s.cacheable = true, true
	d.addMemo(s.Memo.DataRead, false)
	if !s.IsData() {
		s.settled = true
		return true
	}
	s.decision = s.Memo.DataRead
	return d.addChange(s.Memo.DataRead)
}

// finish asks the provider, for the resource and for deposed ones that are still to be destroyed.
func (d *decider) finish(ctx context.Context, in decide.Input) bool {
	s := d.slot
	in.Provider = d.provider
	ok := true
	if s.Object != nil || s.State != nil && (s.State.Spec.Current != nil || s.leftover != nil) {
		ok = d.decideCurrent(ctx, in)
	}
	if s.State == nil || d.opts.Mode == change.RefreshOnly || s.leftover != nil || s.releaseTo != nil {
		return ok
	}
	deposed := slices.Clone(s.State.Spec.Deposed)
	slices.SortFunc(deposed, func(a, b v1alpha1.DeposedResource) int { return strings.Compare(a.Key, b.Key) })
	for i := range deposed {
		ok = d.decideDeposed(ctx, &deposed[i]) && ok
	}
	return ok
}

func (d *decider) decideCurrent(ctx context.Context, in decide.Input) bool {
	s := d.slot
	var err error
	if s.State != nil {
		if in.Prior, err = evaluate.Prior(s.State.Spec.Current); err != nil {
			d.problem(s, "", err.Error())
			return false
		}
	}
	decision, err := decide.Decide(ctx, in)
	if err != nil && in.ImportID != "" {
		if moved := d.takeForgotten(ctx, in, err); moved != nil {
			in.ImportID, in.MovedFrom, in.Refresh, decision, err = "", s.movedFrom, true, moved, nil
		}
	}
	if err != nil {
		d.explain(s, err, d.mask(in))
		return false
	}
	s.decision = decision
	d.warn(in, decision.Warnings)
	d.recordDecision(in, decision)
	if s.unchanged && !s.IsData() && s.State.Spec.Current != nil && s.State.Spec.Current.SchemaVersion == d.kind.Schema.Version {
		s.decision = nil // dependents see the stored value, and most resources have no dependents
	}
	return d.addChange(decision)
}

// recordDecision records what dependents see of the decision, and what the next plan can reuse.
func (d *decider) recordDecision(in decide.Input, decision *decide.Decision) {
	s := d.slot
	if s.IsData() {
		if decision.Action != change.NoOp || decision.After.IsNull() || decision.Deferred != "" {
			return
		}
		same := s.Memo.DataRead != nil && s.Memo.DataRead.After.RawEquals(decision.After) && samePaths(s.Memo.DataRead.Sensitive, decision.Sensitive)
		s.unchanged, s.cacheable = same && !s.Overridden, !s.Overridden
		d.recordDataRead(decision)
		d.addMemo(decision, !same)
		return
	}
	if in.Refresh && decision.Importing == "" && s.State != nil && s.State.Spec.Current != nil {
		d.mu.Lock()
		if decision.Drift != nil {
			d.run.drifted = append(d.run.drifted, s.Ref)
		} else {
			d.run.inSync = append(d.run.inSync, s.Ref)
		}
		d.mu.Unlock()
	}
	if decision.Action == change.NoOp && decision.Drift == nil && decision.Deferred == "" && s.isDesired() && s.State != nil {
		s.unchanged, s.cacheable = true, true
		if d.evaluated != nil && s.State.Spec.Pending == nil {
			d.addMemo(nil, false)
		}
	}
}

// addMemo records for the next plan that there is nothing to do.
func (d *decider) addMemo(dataRead *decide.Decision, valueChanged bool) {
	s := d.slot
	if s.Overridden || d.fingerprint == "" || d.opts.Mode == change.Destroy {
		return
	}
	current := true
	for _, u := range s.Uses {
		current = current && d.slots[u].cacheable
	}
	m := inventory.Memo{Fingerprint: d.fingerprint, ProviderConfig: d.evaluated.Meta.Provider, KindRevision: d.kind.Revision, ConfigRevision: d.provider.revision, Unwatched: d.evaluated.Unwatched, DataRead: dataRead}
	if s.State != nil {
		m.StateVersion = s.State.ResourceVersion
		if m.Fingerprint == s.State.Spec.Settled {
			m.Fingerprint = s.State.Spec.Settled // one copy for both
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memoUpdates = append(d.memoUpdates, inventory.MemoUpdate{Resource: s.Resource, Memo: m, ValueChanged: valueChanged, InputsCurrent: current})
}

// recordDataRead records the new status of a data source.
func (d *decider) recordDataRead(decision *decide.Decision) {
	value := decision.After
	status := infra.ObjectStatus{
		Attributes: d.kind.Attributes(value, decision.Sensitive), Generation: d.slot.Object.Generation,
		Conditions: []infra.Condition{
			{Type: infra.ConditionReady, True: true, Reason: "Read", Message: "The data source was read."},
			{Type: infra.ConditionReconciled, True: true, Reason: "Read", Message: "The data source was read with its current spec."},
		},
	}
	if name := d.evaluated.Meta.Connection.Secret; name != "" {
		status.SecretName, status.Secret = name, d.kind.Connection(value, decision.Sensitive)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run.dataReads = append(d.run.dataReads, DataSourceRead{Object: d.slot.Object, ObjectStatus: status})
}

// decideDeposed plans to destroy a deposed resource, or to forget it.
func (d *decider) decideDeposed(ctx context.Context, deposed *v1alpha1.DeposedResource) bool {
	in := d.input()
	in.Provider, in.Delete, in.Address.Deposed, in.MovedFrom = d.provider, true, deposed.Key, d.slot.movedFrom
	in.Forget = d.slot.Object != nil && d.slot.Object.Forget
	var err error
	if in.Prior, err = evaluate.Prior(&deposed.ResourceValue); err != nil {
		d.problem(d.slot, "", err.Error())
		return false
	}
	decision, err := decide.Decide(ctx, in)
	if err != nil {
		d.explain(d.slot, err, d.mask(in))
		return false
	}
	d.warn(in, decision.Warnings)
	return d.addChange(decision)
}

// addChange adds the decision to the plan as a change.
func (d *decider) addChange(decision *decide.Decision) bool {
	var origins map[string]string
	if d.evaluated != nil {
		origins = d.evaluated.Origins
	}
	if err := d.storeChange(d.slot, d.kind, decision, origins); err != nil {
		d.problem(d.slot, "", err.Error())
		return false
	}
	return true
}

func (r *run) storeChange(s *slot, kind *infra.ServedKind, decision *decide.Decision, origins map[string]string) error {
	sealed, err := decision.Seal(kind.Schema)
	if err != nil {
		return err
	}
	show := decide.ChangeOptions{Salt: r.opts.Salt, Origins: origins, Preconditions: infra.Preconditions(s.Object, s.State), Sealed: sealed}
	if s.State != nil && decision.Action != change.NoOp && decision.Address.Deposed == "" {
		show.PriorSpec = s.State.Spec.Written
	}
	if r.opts.WriteBack && s.Overridden && decision.Address.Deposed == "" {
		show.Preconditions = infra.Preconditions(s.Original, s.State)
		if show.RestoreSpec = s.Object.Spec; s.Object.Deleting {
			show.RestoreSpec = []byte("null")
		}
	}
	change, err := decision.Change(kind.Schema, show)
	if err != nil {
		return err
	}
	s.outcomes = append(s.outcomes, outcome{change, sealed})
	return nil
}

// mask masks all secrets of the slot, in its spec and in its state.
func (d *decider) mask(in decide.Input) schema.Mask {
	var values []cty.Value
	if in.Config != cty.NilVal {
		values = append(values, schema.Mark(&d.kind.Schema.Block, in.Config))
	}
	if stored := in.Prior.Stored; stored != nil {
		if v, err := evaluate.DecodeStored(d.kind, stored); err == nil {
			values = append(values, evaluate.Mark(&d.kind.Schema.Block, v, in.Prior.Sensitive))
		}
	}
	return schema.NewMask(values...)
}

// samePaths reports whether two lists have the same paths in the same order.
func samePaths(a, b []cty.Path) bool {
	return slices.EqualFunc(a, b, func(a, b cty.Path) bool { return a.Equals(b) })
}
