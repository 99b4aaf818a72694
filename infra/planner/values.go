package planner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/evaluate"
	"github.com/atoll-dev/atoll/infra/expr"
)

// lookup returns the value of a slot that another refers to.
func (d *decider) lookup(ctx context.Context, s *slot, ref expr.Ref) (cty.Value, error) {
	if u, found := d.usedSlot(s, ref); found {
		return d.run.value(ctx, u)
	}
	return cty.NilVal, fmt.Errorf("%s was not found when the spec was parsed", ref) // both parse the same text
}

// usedSlot returns the slot of a reference in another slot's spec.
func (d *decider) usedSlot(s *slot, ref expr.Ref) (int32, bool) {
	for _, u := range s.Uses {
		if d.slots[u].Ref == ref {
			return u, true
		}
	}
	return 0, false
}

// value returns the value of a slot that dependents see.
func (r *run) value(ctx context.Context, at int32) (cty.Value, error) {
	v := &r.values[at]
	v.once.Do(func() { v.value, v.err = r.computeValue(ctx, &r.slots[at]) })
	return v.value, v.err
}

func (r *run) computeValue(ctx context.Context, s *slot) (cty.Value, error) {
	kind, err := r.kind(s.Ref)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: no installed Provider serves its type", s.Ref)
	}
	block := &kind.Schema.Block
	decision := s.decision
	if decision == nil && s.IsData() {
		decision = s.Memo.DataRead
	}
	switch {
	case s.encoded != nil:
		v, err := msgpack.Unmarshal(s.encoded, block.ImpliedType())
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s has no value: %w", s.Ref, err)
		}
		return evaluate.Mark(block, v, decision.Sensitive), nil
	case decision != nil && decision.After.IsNull():
		return cty.UnknownVal(block.ImpliedType()), nil // not planned, and not created yet
	case decision != nil:
		return evaluate.Mark(block, decision.After, decision.Sensitive), nil
	case s.State == nil || s.State.Spec.Current == nil:
		return cty.UnknownVal(block.ImpliedType()), nil
	}
	prior, err := evaluate.Prior(s.State.Spec.Current)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: %w", s.Ref, err)
	}
	v, err := evaluate.DecodeStored(kind, prior.Stored)
	if err != nil {
		if v, err = r.upgrade(ctx, s, kind, prior); err != nil {
			return cty.NilVal, err
		}
	}
	return evaluate.Mark(block, v, prior.Sensitive), nil
}

// upgrade asks the provider to upgrade the state of a resource that is not planned itself.
func (r *run) upgrade(ctx context.Context, s *slot, kind *infra.ServedKind, prior decide.Prior) (cty.Value, error) {
	config := s.State.Spec.ProviderConfig
	if config == "" {
		config = kind.Provider
	}
	provider, err := r.open(ctx, configName{kind.Provider, s.Ref.Namespace, config})
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s has no value: %w", s.Ref, err)
	}
	decision, err := decide.Decide(ctx, decide.Input{
		Address: infra.AddressOf(s.Ref), Schema: kind.Schema, Provider: provider, Prior: prior, Deferred: "not planned",
	})
	var planError *decide.Error
	switch {
	case errors.As(err, &planError):
		return cty.NilVal, fmt.Errorf("%s has no value: %v", s.Ref, planError.Kind)
	case err != nil:
		return cty.NilVal, err
	}
	return decision.After, nil
}

// reportRefused records a problem for each field that refers to a resource of another namespace that does
// not grant it, and reports whether there is one.
func (d *decider) reportRefused(ctx context.Context) bool {
	found := false
	for _, u := range d.slot.Uses {
		ref := d.slots[u].Ref
		err := d.Evaluator.CheckReference(ctx, d.slot.Object, ref)
		if err == nil {
			continue
		}
		found = true
		for _, at := range d.fieldsReferringTo(ref) {
			d.problem(d.slot, at, err.Error())
		}
	}
	return found
}

// reportUnavailable records a problem for each field that refers to a resource without a value, and
// reports whether there is one.
func (d *decider) reportUnavailable() bool {
	found := false
	for _, u := range d.slot.Uses {
		text := d.unavailableReason(&d.slots[u])
		if text == "" {
			continue
		}
		found = true
		for _, at := range d.fieldsReferringTo(d.slots[u].Ref) {
			d.problem(d.slot, at, text)
		}
	}
	return found
}

// unavailableReason returns why a resource cannot be referred to, or "".
func (d *decider) unavailableReason(s *slot) string {
	elsewhere := s.Ref.Namespace != d.opts.Namespace
	switch {
	case elsewhere && s.IsData() && s.Memo.DataRead == nil && s.Object != nil:
		return fmt.Sprintf("%s has not been read yet: plan its namespace first", s.Ref)
	case elsewhere && !s.IsData() && s.Object != nil && (s.State == nil || s.State.Spec.Current == nil):
		return fmt.Sprintf("%s is in another namespace and has not been applied yet: apply it first", s.Ref)
	case s.Object != nil && s.Object.Deleting:
		return fmt.Sprintf("%s is being deleted: remove the reference, or delete this object too", s.Ref)
	case s.Object != nil || elsewhere && s.State != nil && s.State.Spec.Current != nil:
		return ""
	case s.State != nil:
		return fmt.Sprintf("the object of %s was deleted, and the resource will be destroyed: remove the reference, or create the object again", s.Ref)
	}
	if _, err := d.run.kind(s.Ref); errors.Is(err, infra.ErrNotServed) {
		return fmt.Sprintf("%s has a type that no installed Provider serves: correct the reference, or install the Provider", s.Ref)
	}
	return fmt.Sprintf("%s does not exist: create it, or correct the reference", s.Ref)
}

// reportTriggers records a problem for each entry of lifecycle.replace_triggered_by with an attribute
// that its type does not have, and reports whether there is one. Such an entry would never trigger.
func (d *decider) reportTriggers() bool {
	var wrong map[string]string // by reference
	for _, by := range d.slot.Triggers() {
		kind, err := d.run.kind(by.Ref)
		if err != nil || len(by.Path) == 0 {
			continue
		}
		if text := missingAttribute(by.Ref.String(), kind.Schema.Block.ImpliedType(), by.Path); text != "" {
			if wrong == nil {
				wrong = map[string]string{}
			}
			wrong[by.String()] = text
		}
	}
	if wrong == nil {
		return false
	}
	parsed, err := d.parsedSpec()
	if err != nil {
		return false // evaluation reports it
	}
	for i, by := range parsed.ReplaceTriggeredBy {
		if text := wrong[by.String()]; text != "" {
			d.problem(d.slot, fmt.Sprintf("spec.lifecycle.replace_triggered_by[%d]", i), text)
		}
	}
	return true
}

// missingAttribute returns which part of a path a type does not have, or "". Whether a list or map has an
// element is known only once there is a value.
func missingAttribute(where string, ty cty.Type, path cty.Path) string {
	for _, step := range path {
		name, named := "", false
		switch step := step.(type) {
		case cty.GetAttrStep:
			name, named = step.Name, true
		case cty.IndexStep:
			if step.Key.Type() == cty.String {
				name, named = step.Key.AsString(), true
			}
		}
		switch {
		case ty == cty.DynamicPseudoType:
			return ""
		case ty.IsObjectType() && named:
			if !ty.HasAttribute(name) {
				return fmt.Sprintf("%s has no %q: it has %s", where, name, strings.Join(slices.Sorted(maps.Keys(ty.AttributeTypes())), ", "))
			}
			ty = ty.AttributeType(name)
		case ty.IsMapType() && named, ty.IsListType() && !named, ty.IsSetType() && !named:
			ty = ty.ElementType()
		case ty.IsTupleType() && !named:
			return ""
		default:
			return fmt.Sprintf("%s is of type %s, which has no such element", where, ty.FriendlyName())
		}
		if named {
			where += "." + name
		} else {
			where += "[…]"
		}
	}
	return ""
}

func (d *decider) parsedSpec() (*expr.Spec, error) {
	var spec map[string]any
	if err := json.Unmarshal(d.slot.Object.Spec, &spec); err != nil {
		return nil, err
	}
	return d.Evaluator.Language.Spec(spec, d.slot.Ref.Namespace)
}

// fieldsReferringTo returns the fields of the slot's spec that refer to a resource.
func (d *decider) fieldsReferringTo(ref expr.Ref) []string {
	parsed, err := d.parsedSpec()
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
	for _, u := range d.slot.Uses {
		if other := d.slots[u].decision; other != nil && other.Action != change.NoOp {
			return true
		}
	}
	return false
}

// trigger returns the entry of lifecycle.replace_triggered_by that triggers a replacement, or "". A
// whole resource triggers if it is updated, replaced or created (again, because it is gone). An
// attribute triggers if its value changes or becomes unknown.
func (d *decider) trigger() string {
	for _, by := range d.slot.Triggers() {
		for _, u := range d.slot.Uses {
			decision := d.slots[u].decision
			if d.slots[u].Ref != by.Ref || decision == nil {
				continue
			}
			if len(by.Path) == 0 {
				if decision.Action == change.Create || decision.Action == change.Update || decision.Action == change.Replace {
					return fmt.Sprintf("%s: %s", by, decision.Action)
				}
				continue
			}
			if decision.Action == change.NoOp {
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
func (r *run) storeMemos() { r.Inventory.RecordPlan(r.taken, r.memoUpdates) }
