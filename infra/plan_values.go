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

// lookup returns the value of a slot that another refers to.
func (d *decider) lookup(ctx context.Context, s *slot, ref reference.Ref) (cty.Value, error) {
	if u, found := d.usedSlot(s, ref); found {
		return d.planRun.value(ctx, u)
	}
	return cty.NilVal, fmt.Errorf("%s was not found when the spec was parsed", ref) // both parse the same text
}

// usedSlot returns the slot of a reference in another slot's spec.
func (d *decider) usedSlot(s *slot, ref reference.Ref) (int32, bool) {
	for _, u := range s.uses {
		if d.slots[u].ref == ref {
			return u, true
		}
	}
	return 0, false
}

// value returns the value of a slot that dependents see.
func (r *planRun) value(ctx context.Context, at int32) (cty.Value, error) {
	v := &r.values[at]
	v.once.Do(func() { v.value, v.err = r.computeValue(ctx, &r.slots[at]) })
	return v.value, v.err
}

func (r *planRun) computeValue(ctx context.Context, s *slot) (cty.Value, error) {
	kind, err := r.kind(s.ref)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: no installed Provider serves its type", s.ref)
	}
	block := &kind.Schema.Block
	decision := s.decision
	if decision == nil && s.isData() {
		decision = s.memo.dataRead
	}
	switch {
	case s.encoded != nil:
		v, err := msgpack.Unmarshal(s.encoded, block.ImpliedType())
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s has no value: %w", s.ref, err)
		}
		return marked(block, v, decision.Sensitive), nil
	case decision != nil && decision.After.IsNull():
		return cty.UnknownVal(block.ImpliedType()), nil // not planned, and not created yet
	case decision != nil:
		return marked(block, decision.After, decision.Sensitive), nil
	case s.state == nil || s.state.Spec.Current == nil:
		return cty.UnknownVal(block.ImpliedType()), nil
	}
	prior, err := priorOf(s.state.Spec.Current)
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

// readStored decodes a stored state of the current schema version. It fails for other versions,
// which only the provider can upgrade.
func readStored(kind *ServedKind, stored *contract.StoredState) (cty.Value, error) {
	if stored.Version != kind.Schema.Version {
		return cty.NilVal, fmt.Errorf("the state has schema version %d, not %d", stored.Version, kind.Schema.Version)
	}
	return ctyjson.Unmarshal(stored.JSON, kind.Schema.Block.ImpliedType())
}

// upgrade asks the provider to upgrade the state of a resource that is not planned itself.
func (r *planRun) upgrade(ctx context.Context, s *slot, kind *ServedKind, prior plan.Prior) (cty.Value, error) {
	config := s.state.Spec.ProviderConfig
	if config == "" {
		config = kind.Provider
	}
	provider, err := r.open(ctx, configName{kind.Provider, s.ref.Namespace, config})
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: %w", s.ref, err)
	}
	decision, err := plan.Decide(ctx, plan.Input{
		Address: addressOf(s.ref), Schema: kind.Schema, Provider: provider, Prior: prior, Deferred: "not planned",
	})
	var planError *plan.Error
	switch {
	case errors.As(err, &planError):
		return cty.NilVal, fmt.Errorf("%s has no value: %v", s.ref, planError.Kind)
	case err != nil:
		return cty.NilVal, err
	}
	return decision.After, nil
}

// reportUnavailable records a problem for each field that refers to a resource without a value, and
// reports whether there is one.
func (d *decider) reportUnavailable() bool {
	found := false
	for _, u := range d.slot.uses {
		text := d.unavailableReason(&d.slots[u])
		if text == "" {
			continue
		}
		found = true
		for _, at := range d.fieldsReferringTo(d.slots[u].ref) {
			d.problem(d.slot, at, text)
		}
	}
	return found
}

// unavailableReason returns why a resource cannot be referred to, or "".
func (d *decider) unavailableReason(s *slot) string {
	elsewhere := s.ref.Namespace != d.opts.Namespace
	switch {
	case elsewhere && s.isData() && s.memo.dataRead == nil && s.object != nil:
		return fmt.Sprintf("%s has not been read yet: plan its namespace first", s.ref)
	case elsewhere && !s.isData() && s.object != nil && (s.state == nil || s.state.Spec.Current == nil):
		return fmt.Sprintf("%s is in another namespace and has not been applied yet: apply it first", s.ref)
	case s.object != nil && s.object.Deleting:
		return fmt.Sprintf("%s is being deleted: remove the reference, or delete this object too", s.ref)
	case s.object != nil || elsewhere && s.state != nil && s.state.Spec.Current != nil:
		return ""
	case s.state != nil:
		return fmt.Sprintf("the object of %s was deleted, and the resource will be destroyed: remove the reference, or create the object again", s.ref)
	}
	if _, err := d.planRun.kind(s.ref); errors.Is(err, ErrNotServed) {
		return fmt.Sprintf("%s has a type that no installed Provider serves: correct the reference, or install the Provider", s.ref)
	}
	return fmt.Sprintf("%s does not exist: create it, or correct the reference", s.ref)
}

// fieldsReferringTo returns the fields of the slot's spec that refer to a resource.
func (d *decider) fieldsReferringTo(ref reference.Ref) []string {
	var spec map[string]any
	if err := json.Unmarshal(d.slot.object.Spec, &spec); err != nil {
		return []string{"spec"}
	}
	parsed, err := d.Language.Spec(spec, d.slot.ref.Namespace)
	if err != nil {
		return []string{"spec"}
	}
	var fields []string
	for _, f := range parsed.Fields {
		for _, used := range f.Template.References() {
			if used.Ref == ref {
				fields = append(fields, f.Path)
				break
			}
		}
	}
	for i, used := range parsed.DependsOn {
		if used.Ref == ref {
			fields = append(fields, fmt.Sprintf("spec.depends_on[%d]", i))
		}
	}
	for i, used := range parsed.ReplaceTriggeredBy {
		if used.Ref == ref {
			fields = append(fields, fmt.Sprintf("spec.lifecycle.replace_triggered_by[%d]", i))
		}
	}
	return fields
}

// dependencyChanges reports whether a dependency of the slot will change.
func (d *decider) dependencyChanges() bool {
	for _, u := range d.slot.uses {
		if other := d.slots[u].decision; other != nil && other.Action != plan.NoOp {
			return true
		}
	}
	return false
}

// trigger returns the entry of lifecycle.replace_triggered_by that triggers a replacement, or "". A
// whole resource triggers if it is updated, replaced or created (again, because it is gone). An
// attribute triggers if its value changes or becomes unknown.
func (d *decider) trigger() string {
	for _, by := range d.slot.triggers() {
		for _, u := range d.slot.uses {
			decision := d.slots[u].decision
			if d.slots[u].ref != by.Ref || decision == nil {
				continue
			}
			if len(by.Path) == 0 {
				if decision.Action == plan.Create || decision.Action == plan.Update || decision.Action == plan.Replace {
					return fmt.Sprintf("%s: %s", by, decision.Action)
				}
				continue
			}
			if decision.Action == plan.NoOp {
				continue
			}
			before, hadBefore := follow(decision.Before.Value, by.Path)
			after, hasAfter := follow(decision.After, by.Path)
			if hadBefore != hasAfter || hasAfter && !before.RawEquals(after) {
				return fmt.Sprintf("%s: %s", by, decision.Action)
			}
		}
	}
	return ""
}

// follow walks a path as expressions do: an attribute step also works on a map. It returns false if
// there is no such element.
func follow(v cty.Value, path cty.Path) (cty.Value, bool) {
	for _, s := range path {
		if v == cty.NilVal || v.IsNull() {
			return cty.NilVal, false
		}
		if name, ok := s.(cty.GetAttrStep); ok && v.Type().IsMapType() {
			s = cty.IndexStep{Key: cty.StringVal(name.Name)}
		}
		if at, ok := s.(cty.IndexStep); ok && v.Type().IsObjectType() && at.Key.Type() == cty.String {
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

// storeMemos stores the plan's memos in the Inventory.
func (r *planRun) storeMemos() { r.Inventory.recordPlan(r.snapshotAt, r.memoUpdates) }
