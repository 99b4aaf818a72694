package plans

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// back is what an object is to be again: a spec, or nothing.
type back struct {
	spec json.RawMessage // nil if there was no object
	// unknown says that there was one, and that nobody knows what it said.
	unknown bool
}

// rollback fills in what a plan takes for written: each object as it was when an Apply had ended, as far as a later Apply changed
// it, or it was written since and not carried out.
func (d *desk) rollback(ctx context.Context, p *v1alpha1.Plan, what *infra.PlanOptions) ([]v1alpha1.Problem, error) {
	var problems []v1alpha1.Problem
	complain := func(field, format string, args ...any) {
		problems = append(problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: field, Message: fmt.Sprintf(format, args...)})
	}
	later, why, err := d.appliedSince(ctx, p)
	if err != nil {
		return nil, err
	}
	if why != "" {
		complain("spec.rollback", "%s", why)
		return problems, nil
	}
	was := map[reference.Ref]back{}
	for _, a := range later {
		why, err := d.undo(ctx, a, was)
		if err != nil {
			return nil, err
		}
		if why != "" {
			complain("spec.rollback", "%s", why)
			return problems, nil
		}
	}
	for ref, spec := range d.world.Unapplied(p.Namespace) {
		if _, changed := was[ref]; !changed {
			was[ref] = back{spec: spec}
		}
	}
	targets := what.Targets
	what.Targets, what.WriteBack = []reference.Ref{}, true
	for ref, is := range was {
		if len(targets) > 0 && !slices.Contains(targets, ref) {
			continue
		}
		object, fields := d.restored(ref, is)
		for _, f := range fields {
			problems = append(problems, f)
		}
		if object != nil {
			what.Overrides = append(what.Overrides, object)
		}
		if object != nil || d.world.Object(ref) != nil || d.world.State(ref) != nil {
			what.Targets = append(what.Targets, ref)
		}
	}
	slices.SortFunc(what.Targets, func(a, b reference.Ref) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(problems, func(a, b v1alpha1.Problem) int { return cmp.Compare(a.Address, b.Address) })
	return problems, nil
}

// appliedSince are the Applies that began after the one that the plan goes back to had ended, the first first; or why nobody
// knows.
func (d *desk) appliedSince(ctx context.Context, p *v1alpha1.Plan) ([]*v1alpha1.Apply, string, error) {
	list, err := d.api.applies.in(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	var all []*v1alpha1.Apply
	var to *v1alpha1.Apply
	for i := range list.Items {
		a, err := d.api.applies.read(&list.Items[i], nil)
		if err != nil {
			return nil, "", err
		}
		all = append(all, a)
		if a.Name == p.Spec.Rollback {
			to = a
		}
	}
	switch {
	case to == nil:
		return nil, fmt.Sprintf("there is no Apply %s: kubectl get applies -n %s lists those that there are; the last %d are kept", p.Spec.Rollback, p.Namespace, keptApplies), nil
	case !ended(to):
		return nil, fmt.Sprintf("Apply %s has not ended: wait for it, or cancel it", to.Name), nil
	case to.Status.StartTime == nil || to.Status.CompletionTime == nil:
		return nil, fmt.Sprintf("Apply %s was never begun, so that nothing was carried out by it: name another", to.Name), nil
	}
	var later []*v1alpha1.Apply
	for _, a := range all {
		if a.Status.StartTime == nil || a.UID == to.UID || a.Status.StartTime.Before(to.Status.CompletionTime) {
			continue
		}
		if !ended(a) {
			return nil, fmt.Sprintf("Apply %s is being carried out: wait for it, or cancel it, and plan again", a.Name), nil
		}
		later = append(later, a)
	}
	slices.SortFunc(later, func(a, b *v1alpha1.Apply) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) })
	return later, "", nil
}

// undo notes what was written before an Apply, of what no earlier one has changed.
func (d *desk) undo(ctx context.Context, a *v1alpha1.Apply, was map[reference.Ref]back) (string, error) {
	gone := fmt.Sprintf("what Apply %s changed is not known any more, because its plan %s is gone: name a later Apply", a.Name, a.Spec.Plan)
	p, err := d.api.plans.get(ctx, a.Namespace, a.Spec.Plan)
	switch {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return "", err
	case p.Status.Digest != a.Spec.Digest:
		return gone, nil
	}
	return "", d.allChanges(ctx, p, func(c *plan.Change) bool {
		ref := refOf(c.Address)
		if ref.Namespace == "" {
			ref.Namespace = p.Namespace
		}
		// What a rollback wrote back without changing the resource, a later one may have to write back again.
		effect := c.Action != plan.NoOp || c.RestoreSpec != nil
		if _, earlier := was[ref]; earlier || !effect || c.Address.Data || c.Address.Deposed != "" {
			return true
		}
		switch {
		case c.Importing != "":
			// What was there before stays: to undo the import by deleting the object would destroy it.
		case len(c.PriorSpec) > 0:
			was[ref] = back{spec: c.PriorSpec}
		case c.Before == nil:
			was[ref] = back{}
		default:
			was[ref] = back{unknown: true}
		}
		return true
	})
}

// allChanges reads all changes of a plan but those chunks that do nothing at all.
func (d *desk) allChanges(ctx context.Context, p *v1alpha1.Plan, visit func(*plan.Change) bool) error {
	contents, store := infra.Contents(&p.Status), newPlanStore(d.api, p)
	if err := contents.Check(contents.Digest); err != nil {
		return fmt.Errorf("plan %s: %w", p.Name, err)
	}
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if p.Spec.Rollback == "" && chunk.Changes == chunk.Actions[plan.NoOp] {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return err
		}
		if err := chunk.Read(pieces, true, nil, visit); err != nil {
			return fmt.Errorf("chunk %d of plan %s: %w", n, p.Name, err)
		}
	}
	return nil
}

// restored is an object as it was, nil if it is so already. Problems are why it cannot be.
func (d *desk) restored(ref reference.Ref, is back) (*infra.Object, []v1alpha1.Problem) {
	problem := func(field, format string, args ...any) []v1alpha1.Problem {
		return []v1alpha1.Problem{{Address: ref.String(), Field: field, Message: fmt.Sprintf(format, args...)}}
	}
	now := d.world.Object(ref)
	if is.unknown {
		return nil, problem("", "what was written of it then was not kept: it was taken over or carried out by an earlier version of Atoll, and first changed since; name a later Apply, or leave it out with spec.targets")
	}
	if is.spec == nil {
		if now == nil || now.Deleting {
			return nil, nil
		}
		object := *now
		object.Deleting = true
		object.Generation++
		return &object, nil
	}
	if now != nil && now.Deleting {
		return nil, problem("", "its object is being deleted: apply that, and then go back")
	}
	if now != nil && sameJSON(now.Spec, is.spec) {
		return nil, nil
	}
	served, err := d.kinds.Kind(ref)
	if err != nil {
		return nil, problem("", "%v", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(is.spec, &spec); err != nil {
		return nil, problem("spec", "what was written then cannot be read any more")
	}
	object := &infra.Object{Ref: ref, Group: served.Group, Kind: served.Name.Kind, Plural: served.Plural, Generation: 1}
	if now != nil {
		copied := *now
		object = &copied
		object.Generation++
	}
	object.Spec = is.spec
	errs, _ := served.Validate(spec, infraschema.Checks{Partial: object.ImportID != ""})
	var problems []v1alpha1.Problem
	for _, e := range errs {
		problems = append(problems, problem(e.Field, "as it was then it is not valid any more: %s: %s", e.Type, e.Detail)...)
	}
	return object, problems
}

// sameJSON tells whether two texts say the same.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var one, other any
	if json.Unmarshal(a, &one) != nil || json.Unmarshal(b, &other) != nil {
		return false
	}
	left, _ := json.Marshal(one)
	right, _ := json.Marshal(other)
	return bytes.Equal(left, right)
}
