package plancontroller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planner"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// priorSpec is the spec to restore for an object, or that it did not exist.
type priorSpec struct {
	spec json.RawMessage // nil if the object did not exist
	// unknown is true if the object existed, and its spec was not kept.
	unknown bool
}

// kindLookup is the part of infra.Providers that is used here.
type kindLookup interface {
	Kind(ref expr.Ref) (*infra.ServedKind, error)
}

// rollbacks finds what a rollback has to restore.
type rollbacks struct {
	*session
	kinds kindLookup
}

// fill fills in the specs that a rollback plan starts from: each object as it was when the target Apply
// had ended, if a later Apply changed it, or if it was edited since and not applied.
func (r *rollbacks) fill(ctx context.Context, p *v1alpha1.Plan, req *planner.Options) ([]v1alpha1.Problem, error) {
	var problems []v1alpha1.Problem
	addProblem := func(field, format string, args ...any) {
		problems = append(problems, v1alpha1.Problem{Address: "Plan." + v1alpha1.Group + "/" + p.Name, Field: field, Message: fmt.Sprintf(format, args...)})
	}
	later, why, err := r.appliedSince(ctx, p)
	if err != nil {
		return nil, err
	}
	if why != "" {
		addProblem("spec.rollback", "%s", why)
		return problems, nil
	}
	priors := map[expr.Ref]priorSpec{}
	for _, a := range later {
		why, err := r.collectPriorSpecs(ctx, a, priors)
		if err != nil {
			return nil, err
		}
		if why != "" {
			addProblem("spec.rollback", "%s", why)
			return problems, nil
		}
	}
	for ref, spec := range r.inventory.Unapplied(p.Namespace) {
		if _, changed := priors[ref]; !changed {
			priors[ref] = priorSpec{spec: spec}
		}
	}
	targets := req.Targets
	req.Targets, req.WriteBack = []expr.Ref{}, true
	for ref, prior := range priors {
		if len(targets) > 0 && !slices.Contains(targets, ref) {
			continue
		}
		object, fields := r.restoredObject(ref, prior)
		for _, f := range fields {
			problems = append(problems, f)
		}
		if object != nil {
			req.Overrides = append(req.Overrides, object)
		}
		if object != nil || r.inventory.Object(ref) != nil || r.inventory.State(ref) != nil {
			req.Targets = append(req.Targets, ref)
		}
	}
	slices.SortFunc(req.Targets, func(a, b expr.Ref) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name)) })
	slices.SortFunc(problems, func(a, b v1alpha1.Problem) int { return cmp.Compare(a.Address, b.Address) })
	return problems, nil
}

// appliedSince returns the Applies that began after the plan's target Apply had ended, oldest first. If they
// cannot be determined, reason says why.
func (r *rollbacks) appliedSince(ctx context.Context, p *v1alpha1.Plan) ([]*v1alpha1.Apply, string, error) {
	all, err := r.api.applies.List(ctx, p.Namespace)
	if err != nil {
		return nil, "", err
	}
	var to *v1alpha1.Apply
	for _, a := range all {
		if a.Name == p.Spec.Rollback {
			to = a
		}
	}
	switch {
	case to == nil:
		return nil, fmt.Sprintf("Apply %s not found: list Applies with kubectl get applies -n %s; the last %d are kept", p.Spec.Rollback, p.Namespace, keptApplies), nil
	case !ended(to):
		return nil, fmt.Sprintf("Apply %s has not ended: wait for it or cancel it", to.Name), nil
	case to.Status.StartTime == nil || to.Status.CompletionTime == nil:
		return nil, fmt.Sprintf("Apply %s never began and changed nothing: choose another", to.Name), nil
	}
	var later []*v1alpha1.Apply
	for _, a := range all {
		if a.Status.StartTime == nil || a.UID == to.UID || a.Status.StartTime.Before(to.Status.CompletionTime) {
			continue
		}
		if !ended(a) {
			return nil, fmt.Sprintf("Apply %s is running: wait for it or cancel it, then plan again", a.Name), nil
		}
		later = append(later, a)
	}
	slices.SortFunc(later, func(a, b *v1alpha1.Apply) int { return a.Status.StartTime.Compare(b.Status.StartTime.Time) })
	return later, "", nil
}

// collectPriorSpecs records each object's spec from before an Apply, unless an earlier Apply already changed
// it.
func (r *rollbacks) collectPriorSpecs(ctx context.Context, a *v1alpha1.Apply, priors map[expr.Ref]priorSpec) (string, error) {
	gone := fmt.Sprintf("the changes of Apply %s are unknown, because its plan %s was deleted: choose a later Apply", a.Name, a.Spec.Plan)
	p, err := r.api.plans.Get(ctx, a.Namespace, a.Spec.Plan)
	switch {
	case apierrors.IsNotFound(err):
		return gone, nil
	case err != nil:
		return "", err
	case p.Status.Digest != a.Spec.Digest:
		return gone, nil
	}
	return "", allChanges(ctx, r.dynamic, p, func(c *change.Change) bool {
		ref := refOf(p.Namespace, c.Address)
		// A rollback may have written an object back without changing its resource. A later rollback may have
		// to write it back again.
		effect := c.Action != change.NoOp || c.RestoreSpec != nil
		if _, earlier := priors[ref]; earlier || !effect || c.Address.Data || c.Address.Deposed != "" {
			return true
		}
		switch {
		case c.Importing != "":
			// The imported resource existed before and stays. Undoing the import by deleting the object would
			// destroy it.
		case c.Action == change.Move:
			// The resource is the same under both names. Deleting the new object would destroy it.
		case len(c.PriorSpec) > 0:
			priors[ref] = priorSpec{spec: c.PriorSpec}
		case c.Before == nil:
			priors[ref] = priorSpec{}
		default:
			priors[ref] = priorSpec{unknown: true}
		}
		return true
	})
}

// restoredObject returns an object with its prior spec, or nil if it already has it. Problems say why it
// cannot be restored.
func (r *rollbacks) restoredObject(ref expr.Ref, prior priorSpec) (*infra.Object, []v1alpha1.Problem) {
	problem := func(field, format string, args ...any) []v1alpha1.Problem {
		return []v1alpha1.Problem{{Address: ref.String(), Field: field, Message: fmt.Sprintf(format, args...)}}
	}
	current := r.inventory.Object(ref)
	if prior.unknown {
		return nil, problem("", "its spec at that time was not recorded: it was imported or applied by an earlier version of Atoll and has only changed since; choose a later Apply, or leave it out with spec.targets")
	}
	if prior.spec == nil {
		if current == nil || current.Deleting {
			return nil, nil
		}
		object := *current
		object.Deleting = true
		object.Generation++
		return &object, nil
	}
	if current != nil && current.Deleting {
		return nil, problem("", "its object is being deleted: apply the deletion first, then roll back")
	}
	if current != nil && equalJSON(current.Spec, prior.spec) {
		return nil, nil
	}
	served, err := r.kinds.Kind(ref)
	if err != nil {
		return nil, problem("", "%v", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(prior.spec, &spec); err != nil {
		return nil, problem("spec", "its recorded spec cannot be decoded")
	}
	object := &infra.Object{Ref: ref, Group: served.Group, Kind: served.Name.Kind, Plural: served.Plural, Generation: 1}
	if current != nil {
		copied := *current
		object = &copied
		object.Generation++
	}
	object.Spec, object.Author = prior.spec, "" // the plan's author asks for this spec
	errs, _ := served.Validate(spec, infraschema.Checks{Partial: object.ImportID != ""})
	var problems []v1alpha1.Problem
	for _, e := range errs {
		problems = append(problems, problem(e.Field, "its recorded spec is no longer valid: %s: %s", e.Type, e.Detail)...)
	}
	return object, problems
}

// equalJSON reports whether two JSON texts have the same value.
func equalJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var first, second any
	if json.Unmarshal(a, &first) != nil || json.Unmarshal(b, &second) != nil {
		return false
	}
	left, _ := json.Marshal(first)
	right, _ := json.Marshal(second)
	return bytes.Equal(left, right)
}
