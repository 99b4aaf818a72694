package infra

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
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// unchanged tells whether a slot was found to need nothing, and nothing that this came from has changed since:
// then it is settled without being looked at again.
func (r *run) unchanged(ctx context.Context, s *slot) bool {
	m := &s.memo
	if m.at == 0 || s.moved > m.at || m.unwatched || !r.quiet(s) {
		return false
	}
	for _, u := range s.uses {
		if used := &r.slots[u]; !used.same || used.seen > m.at {
			return false
		}
	}
	kind, err := r.kind(s.ref)
	if err != nil || kind.Revision != m.served {
		return false
	}
	provider, err := r.open(ctx, configName{kind.Provider, s.ref.Namespace, m.config})
	if err != nil || provider.revision != m.opened {
		return false
	}
	if s.data() {
		s.decision = m.read
		if err := r.keep(s, kind, m.read, nil); err != nil {
			return false
		}
	} else {
		s.settled = true
	}
	s.same, s.sound = true, true
	return true
}

// quiet tells whether nothing is asked of a slot beside being what is written.
func (r *run) quiet(s *slot) bool {
	if r.what.Mode != "" && r.what.Mode != plan.Normal || r.what.Refresh || s.replace || s.written || s.removed {
		return false
	}
	if s.data() {
		return s.memo.read != nil
	}
	if s.state == nil {
		return false
	}
	spec := &s.state.Spec
	return spec.Current != nil && !spec.Current.Tainted && len(spec.Deposed) == 0 && spec.Pending == nil
}

// decide decides about a slot, and tells whether that went well. What is wrong is noted.
func (r *run) decide(ctx context.Context, at int32) bool {
	s := &r.slots[at]
	kind, err := r.kind(s.ref)
	if err != nil {
		r.notServed(s, err)
		return false
	}
	if flaws := s.flaws(); s.living() && r.evaluates(s) && len(flaws) > 0 {
		for _, f := range flaws {
			r.problem(s, f.field, f.text)
		}
		return false
	}
	d := &deciding{run: r, slot: s, kind: kind, refresh: r.what.Refresh || r.what.Mode == plan.RefreshOnly}
	if !d.pending() {
		return false
	}
	if r.evaluates(s) {
		return d.living(ctx)
	}
	return d.stored(ctx)
}

// evaluates tells whether what is written counts.
func (r *run) evaluates(s *slot) bool {
	return s.living() && (r.what.Mode != plan.RefreshOnly || s.data())
}

func (r *run) notServed(s *slot, err error) {
	text := err.Error()
	if errors.Is(err, ErrNotServed) {
		text = fmt.Sprintf("no installed Provider serves the type %s: install one that has it, or activate the type", s.ref.Type)
		if s.object == nil {
			text = fmt.Sprintf("its object is gone, and no installed Provider serves the type %s any more: install it again to delete the resource, or delete the ResourceState %q to forget it",
				s.ref.Type, stateName(s.state))
		}
	}
	r.problem(s, "", text)
}

// deciding is one decision on its way.
type deciding struct {
	*run
	slot    *slot
	kind    *Served
	refresh bool

	said        *evaluated
	fingerprint string
	provider    *opened
}

// pending tells whether the resource can be planned, although a change of it was begun of which no end is known.
func (d *deciding) pending() bool {
	s := d.slot
	if s.state == nil || s.state.Spec.Pending == nil {
		return true
	}
	p := s.state.Spec.Pending
	if d.what.Ended == nil || !d.what.Ended(p.ApplyUID) {
		d.problem(s, "", fmt.Sprintf("Apply %q is about to %s it since %s, and has not ended: wait for it, or cancel it, and plan again",
			p.Apply, p.Action, p.Since.UTC().Format(time.RFC3339)))
		return false
	}
	// The provider did not say whether it did it: what is there has to be looked at.
	d.refresh = true
	if s.state.Spec.Current != nil || p.Action != "create" || s.object != nil && !s.removed && s.object.ImportID != "" {
		return true
	}
	d.problem(s, "", fmt.Sprintf("Apply %q began to create it and ended without knowing whether the provider did: look for it there; if it exists, set the annotation %s to its ID, "+
		"and if not, delete the ResourceState %q; then plan again", p.Apply, ImportAnnotation, stateName(s.state)))
	return false
}

// living decides about what is written.
func (d *deciding) living(ctx context.Context) bool {
	s := d.slot
	if d.unavailable() {
		return false
	}
	said, errs := d.evaluate(ctx, s.object, &d.kind.Kind, reference.Values{
		Lookup:    func(ref reference.Ref) (cty.Value, error) { return d.lookup(ctx, s, ref) },
		Attribute: func(ref reference.Ref, name string) (cty.Value, bool) { return d.attribute(s, ref, name) },
	})
	if len(errs) > 0 {
		d.complaints(s, errs)
		return false
	}
	d.said = said
	if !d.open(ctx, said.own.Provider) {
		return false
	}
	if s.state != nil || s.data() { // of what is not there yet nothing can be known to be settled
		d.fingerprint = d.Engine.fingerprint(s.object, said, d.kind, d.provider.revision)
	}
	trigger := d.trigger()
	if trigger == "" && d.isSettled() {
		return d.settle()
	}
	in := d.input()
	in.Config, in.Lifecycle, in.Replace, in.ImportID = said.config, said.lifecycle(), s.replace, s.object.ImportID
	in.Lifecycle.Trigger = trigger
	in.Lifecycle.CreateBeforeDestroy = s.createFirst
	if s.data() {
		in.Pending = d.dependencyChanges()
	}
	return d.finish(ctx, in)
}

// stored decides by what is stored alone: to remove it, or to look what became of it.
func (d *deciding) stored(ctx context.Context) bool {
	s := d.slot
	in := d.input()
	config := ""
	if s.state != nil {
		config = s.state.Spec.ProviderConfig
	}
	if s.object != nil {
		own, errs := d.own()
		if len(errs) > 0 {
			d.complaints(s, errs)
			return false
		}
		config = own.Provider
		in.Lifecycle.PreventDestroy = own.Lifecycle.PreventDestroy
	}
	if config == "" {
		config = d.kind.Provider
	}
	if s.removed && d.what.Mode != plan.RefreshOnly {
		in.Delete = s.object != nil && s.object.Deleting
		in.Forget = s.object != nil && s.object.Forget
	}
	return d.open(ctx, config) && d.finish(ctx, in)
}

// own reads what of a spec says how the resource may be removed. The rest of it may be wrong by now.
func (d *deciding) own() (schema.Own, field.ErrorList) {
	var spec map[string]any
	if err := json.Unmarshal(d.slot.object.Spec, &spec); err != nil {
		return schema.Own{}, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, "is not an object")}
	}
	own, errs := d.kind.Own(spec)
	return own, slices.DeleteFunc(errs, func(err *field.Error) bool {
		return !strings.HasPrefix(err.Field, "spec.provider") && !strings.HasPrefix(err.Field, "spec.lifecycle.prevent_destroy")
	})
}

func (d *deciding) open(ctx context.Context, config string) bool {
	provider, err := d.run.open(ctx, configName{d.kind.Provider, d.slot.ref.Namespace, config})
	if err != nil {
		d.problem(d.slot, "spec.provider", err.Error())
		return false
	}
	d.provider = provider
	if d.said != nil {
		d.said.own.Provider = config
	}
	return true
}

// input is what all decisions about the slot have in common.
func (d *deciding) input() plan.Input {
	return plan.Input{Address: addressOf(d.slot.ref), Schema: d.kind.Schema, Mode: d.what.Mode, Refresh: d.refresh}
}

// isSettled tells whether it is known by now that there is nothing to do.
func (d *deciding) isSettled() bool {
	s := d.slot
	if d.fingerprint == "" || !d.quiet(s) {
		return false
	}
	if s.data() {
		return d.fingerprint == s.memo.fingerprint && !d.dependencyChanges()
	}
	return d.fingerprint == s.state.Spec.Settled || d.fingerprint == s.memo.fingerprint && s.memo.state == s.state.ResourceVersion
}

// settle ends with nothing to do, and nobody asked.
func (d *deciding) settle() bool {
	s := d.slot
	s.same, s.sound = true, true
	d.found(s.memo.read, false)
	if !s.data() {
		s.settled = true
		return true
	}
	s.decision = s.memo.read
	return d.kept(s.memo.read)
}

// finish asks the provider, for the resource and for predecessors that are still to be destroyed.
func (d *deciding) finish(ctx context.Context, in plan.Input) bool {
	s := d.slot
	in.Provider = d.provider
	ok := true
	if s.object != nil || s.state != nil && s.state.Spec.Current != nil {
		ok = d.main(ctx, in)
	}
	if s.state == nil || d.what.Mode == plan.RefreshOnly {
		return ok
	}
	left := slices.Clone(s.state.Spec.Deposed)
	slices.SortFunc(left, func(a, b v1alpha1.DeposedResource) int { return strings.Compare(a.Key, b.Key) })
	for i := range left {
		ok = d.deposed(ctx, &left[i]) && ok
	}
	return ok
}

func (d *deciding) main(ctx context.Context, in plan.Input) bool {
	s := d.slot
	var err error
	if s.state != nil {
		if in.Prior, err = restored(s.state.Spec.Current); err != nil {
			d.problem(s, "", err.Error())
			return false
		}
	}
	decision, err := plan.Decide(ctx, in)
	if err != nil {
		d.explain(s, err, d.mask(in))
		return false
	}
	s.decision = decision
	d.warn(in, decision.Warnings)
	d.note(in, decision)
	if s.same && !s.data() && s.state.Spec.Current != nil && s.state.Spec.Current.SchemaVersion == d.kind.Schema.Version {
		s.decision = nil // whoever looks at it sees what is stored, and most are looked at by nobody
	}
	return d.kept(decision)
}

// note takes down what others see of the decision, and what can be remembered of it.
func (d *deciding) note(in plan.Input, decision *plan.Decision) {
	s := d.slot
	if s.data() {
		if decision.Action != plan.NoOp || decision.After.IsNull() || decision.Deferred != "" {
			return
		}
		same := s.memo.read != nil && s.memo.read.After.RawEquals(decision.After) && samePaths(s.memo.read.Sensitive, decision.Sensitive)
		s.same, s.sound = same && !s.written, !s.written
		d.noteRead(decision)
		d.found(decision, !same)
		return
	}
	if in.Refresh && decision.Importing == "" && s.state != nil && s.state.Spec.Current != nil {
		d.mu.Lock()
		if decision.Drift != nil {
			d.run.drifted = append(d.run.drifted, s.ref)
		} else {
			d.run.seen = append(d.run.seen, s.ref)
		}
		d.mu.Unlock()
	}
	if decision.Action == plan.NoOp && decision.Drift == nil && decision.Deferred == "" && s.living() && s.state != nil {
		s.same, s.sound = true, true
		if d.said != nil && s.state.Spec.Pending == nil {
			d.found(nil, false)
		}
	}
}

// found notes that there is nothing to do, for the next plan.
func (d *deciding) found(read *plan.Decision, fresh bool) {
	s := d.slot
	if s.node < 0 || s.written || d.fingerprint == "" || d.what.Mode == plan.Destroy {
		return
	}
	current := true
	for _, u := range s.uses {
		current = current && d.slots[u].sound
	}
	m := memo{fingerprint: d.fingerprint, config: d.said.own.Provider, served: d.kind.Revision, opened: d.provider.revision, unwatched: d.said.unwatched, read: read}
	if s.state != nil {
		m.state = s.state.ResourceVersion
		if m.fingerprint == s.state.Spec.Settled {
			m.fingerprint = s.state.Spec.Settled // one text for both
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.findings = append(d.findings, finding{node: s.node, ref: s.ref, memo: m, fresh: fresh, current: current})
}

// noteRead notes what the status of a data source is to say.
func (d *deciding) noteRead(decision *plan.Decision) {
	value := decision.After
	what := Published{
		Attributes: d.kind.Attributes(value, decision.Sensitive), Generation: d.slot.object.Generation,
		Conditions: []Condition{
			{Type: ConditionReady, True: true, Reason: "Read", Message: "The data source was read."},
			{Type: ConditionReconciled, True: true, Reason: "Read", Message: "The data source was read as it is written."},
		},
	}
	if name := d.said.own.Connection.Secret; name != "" {
		what.SecretName, what.Secret = name, d.kind.Connection(value, decision.Sensitive)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run.read = append(d.run.read, ReadData{Object: d.slot.object, Published: what})
}

// deposed decides about a predecessor.
func (d *deciding) deposed(ctx context.Context, left *v1alpha1.DeposedResource) bool {
	in := d.input()
	in.Provider, in.Delete, in.Address.Deposed = d.provider, true, left.Key
	var err error
	if in.Prior, err = restored(&left.ResourceValue); err != nil {
		d.problem(d.slot, "", err.Error())
		return false
	}
	decision, err := plan.Decide(ctx, in)
	if err != nil {
		d.explain(d.slot, err, d.mask(in))
		return false
	}
	d.warn(in, decision.Warnings)
	return d.kept(decision)
}

// kept makes of a decision what is stored.
func (d *deciding) kept(decision *plan.Decision) bool {
	var origins map[string]string
	if d.said != nil {
		origins = d.said.origins
	}
	if err := d.keep(d.slot, d.kind, decision, origins); err != nil {
		d.problem(d.slot, "", err.Error())
		return false
	}
	return true
}

func (r *run) keep(s *slot, kind *Served, decision *plan.Decision, origins map[string]string) error {
	sealed, err := decision.Seal(kind.Schema)
	if err != nil {
		return err
	}
	show := plan.Showing{Salt: r.what.Salt, Origins: origins, Preconditions: preconditions(s.object, s.state), Sealed: sealed}
	if s.state != nil && decision.Action != plan.NoOp && decision.Address.Deposed == "" {
		show.Was = s.state.Spec.Written
	}
	if r.what.WriteBack && s.written && decision.Address.Deposed == "" {
		show.Preconditions = preconditions(s.was, s.state)
		if show.Writes = s.object.Spec; s.object.Deleting {
			show.Writes = []byte("null")
		}
	}
	change, err := decision.Change(kind.Schema, show)
	if err != nil {
		return err
	}
	s.outcomes = append(s.outcomes, outcome{change, sealed})
	return nil
}

// mask knows all that is secret about the slot: what is written and what is stored.
func (d *deciding) mask(in plan.Input) schema.Mask {
	var values []cty.Value
	if in.Config != cty.NilVal {
		values = append(values, schema.Mark(&d.kind.Schema.Block, in.Config))
	}
	if stored := in.Prior.Stored; stored != nil {
		if v, err := readStored(d.kind, stored); err == nil {
			values = append(values, marked(&d.kind.Schema.Block, v, in.Prior.Sensitive))
		}
	}
	return schema.NewMask(values...)
}

// samePaths tells whether two lists have the same paths in the same order.
func samePaths(a, b []cty.Path) bool {
	return slices.EqualFunc(a, b, func(a, b cty.Path) bool { return a.Equals(b) })
}
