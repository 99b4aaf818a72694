package infra

import (
	"context"
	"errors"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"github.com/zclconf/go-cty/cty/msgpack"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// lookup gives a slot the value of another that it refers to.
func (d *deciding) lookup(ctx context.Context, s *slot, ref reference.Ref) (cty.Value, error) {
	if u, found := d.used(s, ref); found {
		return d.run.view(ctx, u)
	}
	return cty.NilVal, fmt.Errorf("%s was not found when the spec was read", ref) // both read the same text
}

// used is the slot of something that another refers to.
func (d *deciding) used(s *slot, ref reference.Ref) (int32, bool) {
	for _, u := range s.uses {
		if d.slots[u].ref == ref {
			return u, true
		}
	}
	return 0, false
}

// view is what others see of a slot.
func (r *run) view(ctx context.Context, at int32) (cty.Value, error) {
	v := &r.views[at]
	v.once.Do(func() { v.value, v.err = r.see(ctx, &r.slots[at]) })
	return v.value, v.err
}

func (r *run) see(ctx context.Context, s *slot) (cty.Value, error) {
	kind, err := r.kind(s.ref)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: no installed Provider serves its type", s.ref)
	}
	block := &kind.Schema.Block
	decision := s.decision
	if decision == nil && s.data() {
		decision = s.memo.read
	}
	switch {
	case s.shelved != nil:
		v, err := msgpack.Unmarshal(s.shelved, block.ImpliedType())
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s has no value: %w", s.ref, err)
		}
		return marked(block, v, decision.Sensitive), nil
	case decision != nil && decision.After.IsNull():
		return cty.UnknownVal(block.ImpliedType()), nil // it is only looked at, and not there yet
	case decision != nil:
		return marked(block, decision.After, decision.Sensitive), nil
	case s.state == nil || s.state.Spec.Current == nil:
		return cty.UnknownVal(block.ImpliedType()), nil
	}
	prior, err := restored(s.state.Spec.Current)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: %w", s.ref, err)
	}
	v, err := readStored(kind, prior.Stored)
	if err != nil {
		if v, err = r.upgrade(ctx, s, kind, prior); err != nil {
			return cty.NilVal, err
		}
	}
	return marked(block, v, prior.Sensitive), nil
}

// readStored reads stored state of the schema's own version. It fails with all other: that is for the provider
// to bring up to date.
func readStored(kind *Served, stored *contract.StoredState) (cty.Value, error) {
	if stored.Version != kind.Schema.Version {
		return cty.NilVal, fmt.Errorf("it is of version %d of the schema, and not %d", stored.Version, kind.Schema.Version)
	}
	return ctyjson.Unmarshal(stored.JSON, kind.Schema.Block.ImpliedType())
}

// upgrade has the provider bring state up to date, of something that is not planned itself.
func (r *run) upgrade(ctx context.Context, s *slot, kind *Served, prior plan.Prior) (cty.Value, error) {
	config := s.state.Spec.ProviderConfig
	if config == "" {
		config = kind.Provider
	}
	provider, err := r.open(ctx, configName{kind.Provider, s.ref.Namespace, config})
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: %w", s.ref, err)
	}
	decision, err := plan.Decide(ctx, plan.Input{
		Address: addressOf(s.ref), Schema: kind.Schema, Provider: provider, Prior: prior, Deferred: "it is not planned",
	})
	var said *plan.Error
	switch {
	case errors.As(err, &said):
		return cty.NilVal, fmt.Errorf("%s has no value: %v", s.ref, said.Kind)
	case err != nil:
		return cty.NilVal, err
	}
	return decision.After, nil
}

// unavailable notes what the slot refers to and cannot have a value from, each with its fields, and tells whether
// there is such.
func (d *deciding) unavailable() bool {
	found := false
	for _, u := range d.slot.uses {
		text := d.why(&d.slots[u])
		if text == "" {
			continue
		}
		found = true
		for _, at := range d.fieldsWith(d.slots[u].ref) {
			d.problem(d.slot, at, text)
		}
	}
	return found
}

// why tells why something cannot be referred to; nothing if it can.
func (d *deciding) why(s *slot) string {
	elsewhere := s.ref.Namespace != d.what.Namespace
	switch {
	case elsewhere && s.data() && s.memo.read == nil && s.object != nil:
		return fmt.Sprintf("%s has not been read yet: plan its namespace first", s.ref)
	case elsewhere && !s.data() && s.object != nil && (s.state == nil || s.state.Spec.Current == nil):
		return fmt.Sprintf("%s is of another namespace, and has not been applied yet: apply it first", s.ref)
	case s.object != nil && s.object.Deleting:
		return fmt.Sprintf("%s is being deleted: take the reference out, or delete this object too", s.ref)
	case s.object != nil || elsewhere && s.state != nil && s.state.Spec.Current != nil:
		return ""
	case s.state != nil:
		return fmt.Sprintf("%s is no longer written, and will be deleted: take the reference out, or write it again", s.ref)
	}
	if _, err := d.run.kind(s.ref); errors.Is(err, ErrNotServed) {
		return fmt.Sprintf("%s is of a type that no installed Provider serves: correct the reference, or install the Provider", s.ref)
	}
	return fmt.Sprintf("%s is not written: write it, or correct the reference", s.ref)
}

// fieldsWith are those fields of the slot's spec that refer to something.
func (d *deciding) fieldsWith(ref reference.Ref) []string {
	var spec map[string]any
	if err := json.Unmarshal(d.slot.object.Spec, &spec); err != nil {
		return []string{"spec"}
	}
	found, err := d.Language.Spec(spec, d.slot.ref.Namespace)
	if err != nil {
		return []string{"spec"}
	}
	var fields []string
	for _, f := range found.Fields {
		for _, used := range f.Text.References() {
			if used.Ref == ref {
				fields = append(fields, f.Path)
				break
			}
		}
	}
	for i, used := range found.DependsOn {
		if used.Ref == ref {
			fields = append(fields, fmt.Sprintf("spec.depends_on[%d]", i))
		}
	}
	for i, used := range found.ReplaceTriggeredBy {
		if used.Ref == ref {
			fields = append(fields, fmt.Sprintf("spec.lifecycle.replace_triggered_by[%d]", i))
		}
	}
	return fields
}

// dependencyChanges tells whether something that the slot depends on will be changed.
func (d *deciding) dependencyChanges() bool {
	for _, u := range d.slot.uses {
		if other := d.slots[u].decision; other != nil && other.Action != plan.NoOp {
			return true
		}
	}
	return false
}

// trigger is what of lifecycle.replace_triggered_by will change; empty if nothing. What is listed whole triggers if it
// is created (again, because it is gone), updated or replaced; an attribute if it gets another value, or one that is not known yet.
func (d *deciding) trigger() string {
	for _, by := range d.slot.triggers() {
		for _, u := range d.slot.uses {
			other := d.slots[u].decision
			if d.slots[u].ref != by.Ref || other == nil {
				continue
			}
			if len(by.Path) == 0 {
				if other.Action == plan.Create || other.Action == plan.Update || other.Action == plan.Replace {
					return fmt.Sprintf("%s: %s", by, other.Action)
				}
				continue
			}
			if other.Action == plan.NoOp {
				continue
			}
			was, had := follow(other.Before.Value, by.Path)
			is, has := follow(other.After, by.Path)
			if had != has || has && !was.RawEquals(is) {
				return fmt.Sprintf("%s: %s", by, other.Action)
			}
		}
	}
	return ""
}

// follow goes along a path as expressions do: what is read with a dot may be in a map. It is false if there is no
// such thing.
func follow(v cty.Value, path cty.Path) (cty.Value, bool) {
	for _, s := range path {
		if v == cty.NilVal || v.IsNull() {
			return cty.NilVal, false
		}
		if name, is := s.(cty.GetAttrStep); is && v.Type().IsMapType() {
			s = cty.IndexStep{Key: cty.StringVal(name.Name)}
		}
		if at, is := s.(cty.IndexStep); is && v.Type().IsObjectType() && at.Key.Type() == cty.String {
			s = cty.GetAttrStep{Name: at.Key.AsString()}
		}
		next, err := s.Apply(v)
		if err != nil {
			return cty.NilVal, false
		}
		v = next
	}
	return v, true
}

// remember has the World know what was found out.
func (r *run) remember() { r.World.remember(r.looked, r.findings) }
