package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// candidate is an object that an edit of a policy may change.
type candidate struct {
	kind    interpret.KindInfo
	meta    metav1.Object
	binding *v1alpha1.ResourceBinding // nil if it is not decided yet
	// object returns the complete object, if it exists. It is called only if the policy decides about it.
	object func() (*unstructured.Unstructured, bool)
	// used are the clusters with objects of a Namespace.
	used []string
}

// changing returns the objects that a change of policies changes in clusters, sorted. before has the policies that
// are in effect, and after the others. Both have allocations of their own, because each decision of after is entered
// there.
func changing(before, after *Snapshot, candidates []candidate) (out []object) {
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.meta.GetNamespace(), b.meta.GetNamespace()), cmp.Compare(a.meta.GetName(), b.meta.GetName()),
			cmp.Compare(a.kind.GroupKind().String(), b.kind.GroupKind().String()))
	})
	for _, c := range candidates {
		was, is := before.Choose(c.kind, c.meta), after.Choose(c.kind, c.meta)
		if was.Equal(&is) {
			continue
		}
		changes := false
		switch {
		case interpret.IsNamespace(c.kind.GroupKind()):
			changes = namespaceChanges(before, after, &c)
		case c.kind.Placed:
			obj, exists := c.object()
			if !exists {
				continue
			}
			a := after.Schedule(c.kind, obj, c.binding)
			after.reserve(&a)
			// The objects of an earlier edit may not be decided yet: they do not count if this edit changes nothing.
			if changes = a.changes(c.binding); changes {
				b := before.Schedule(c.kind, obj, c.binding)
				changes = b.Choice.Err != nil || !sameDecision(b.decided(), a.decided())
			}
		default:
			changes = followerChanges(after.Fleet, &was, &is, &c)
		}
		if changes {
			out = append(out, refOf(c.kind.GroupKind(), c.meta))
		}
	}
	return out
}

// namespaceChanges reports whether another choice of policies changes a Namespace in clusters. The Namespaces of an
// earlier edit may not be decided yet: they do not count if this edit changes nothing.
func namespaceChanges(before, after *Snapshot, c *candidate) bool {
	ns := interpret.NamespaceObject(c.meta)
	was, is := before.ScheduleNamespace(ns, c.used, c.binding), after.ScheduleNamespace(ns, c.used, c.binding)
	if is.Choice.Err != nil || !is.differs(c.binding) {
		return false
	}
	return was.Choice.Err != nil || was.Bound() != is.Bound() || !sameDecision(was.decided(), is.decided())
}

// differs reports whether a decision differs from the one in a binding, as far as clusters notice.
func (d *NamespaceDecision) differs(b *v1alpha1.ResourceBinding) bool {
	if !d.Bound() {
		return b != nil
	}
	return d.changes(b)
}

// changes reports whether the decision differs from the one in a binding, as far as clusters notice.
func (a *Result) changes(b *v1alpha1.ResourceBinding) bool {
	if a.Choice.Err != nil {
		return false
	}
	if b == nil {
		return len(a.Shares) > 0
	}
	return !sameDecision(decidedSpec(b), a.decided())
}

// decided returns the decision as a binding has it.
func (a *Result) decided() v1alpha1.ResourceBindingSpec {
	p := bindingUpdate{}
	p.setPolicy(a)
	return v1alpha1.ResourceBindingSpec{Clusters: a.Shares, Overrides: a.Overrides, Suspend: p.suspend, Drift: p.drift, Dependencies: p.depends, Keep: p.keep}
}

// followerChanges reports whether another choice of policies may change a follower: if a policy names it, or changes
// its content, or where the configuration of its namespace goes.
func followerChanges(fleet *placement.Fleet, was, is *placement.PolicyChoice, c *candidate) bool {
	if is.Err != nil || is.Policy == nil || c.binding == nil {
		return false
	}
	if was.Explicit || is.Explicit {
		return true
	}
	if c.kind.Configuration && was.Policy != nil && was.Policy.Configuration() != is.Policy.Configuration() {
		return true
	}
	if was.Overrides == nil && is.Overrides == nil {
		return false
	}
	next := decidedSpec(c.binding)
	next.Clusters, next.Overrides = slices.Clone(c.binding.Decided()), nil
	for i := range next.Clusters {
		next.Clusters[i].Overrides = nil
	}
	if is.Overrides != nil {
		next.Overrides = setOverrides(is.Overrides, fleet, c.kind, next.Clusters)
	}
	return !sameDecision(decidedSpec(c.binding), next)
}

// following returns what determines which contents of policies an object follows.
func following(b *v1alpha1.ResourceBinding, obj metav1.Object) placement.Following {
	if b == nil {
		return placement.Following{Changed: true}
	}
	return placement.Following{Adopted: b.Spec.Adopted, Changed: b.Spec.ObjectGeneration != 0 && obj.GetGeneration() != b.Spec.ObjectGeneration ||
		placement.IsRequested(obj.GetAnnotations()[v1alpha1.RebalanceAnnotation], b.Spec.Inputs)}
}

// verdict is the decision about an edit.
type verdict struct {
	atOnce  bool // it takes effect for all objects
	starts  bool // objects follow it one after another
	reason  string
	message string
}

// judgeEdit decides about the edit of a policy that is not settled. n is how many objects it would change.
func judgeEdit(p *placement.Subject, n int, invalid error) verdict {
	contents, mode := p.InEffect()
	earlier := contents[0]
	changes := earlier.Spec.Changes
	stays := fmt.Sprintf("generation %d stays in effect", earlier.Generation)
	approve := fmt.Sprintf("To put generation %d into effect for all of them, run `%s`", p.Meta.Generation, approveCommand(p))
	switch {
	case earlier.Err != nil:
		return verdict{reason: v1alpha1.ReasonEditInvalid, message: fmt.Sprintf("%v, so nothing changes. %s", earlier.Err, approve)}
	case invalid != nil:
		return verdict{reason: v1alpha1.ReasonEditInvalid, message: fmt.Sprintf("generation %d is invalid: %s", p.Meta.Generation, stays)}
	case mode == v1alpha1.ChangeOnApproval:
		loosens := !sameChanges(changes, p.Spec.Changes)
		if n <= changes.Threshold() && !loosens {
			return verdict{atOnce: true}
		}
		message := fmt.Sprintf("generation %d would change %s: %s until it is approved. %s", p.Meta.Generation, countObjects(n), stays, approve)
		if loosens {
			message = fmt.Sprintf("generation %d would change %s, and spec.changes: %s until it is approved. %s", p.Meta.Generation, countObjects(n), stays, approve)
		}
		return verdict{reason: v1alpha1.ReasonAwaitsApproval, message: message}
	case n == 0:
		return verdict{atOnce: true}
	case mode == v1alpha1.ChangeLazy:
		return verdict{starts: true, reason: v1alpha1.ReasonLazy,
			message: fmt.Sprintf("%s earlier content until they change or are rebalanced. %s", countFollowing(n), approve)}
	}
	return verdict{starts: true, reason: v1alpha1.ReasonInSteps,
		message: fmt.Sprintf("%s earlier content; each step changes %d. %s", countFollowing(n), changes.StepSize(), approve)}
}

func sameChanges(a, b *v1alpha1.PolicyChanges) bool {
	one, other := v1alpha1.ClusterPlacementSpec{}, v1alpha1.ClusterPlacementSpec{}
	one.Changes, other.Changes = a, b
	return placement.SameContent(&one, &other)
}

func countObjects(n int) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

func countFollowing(n int) string {
	if n == 1 {
		return "1 object follows"
	}
	return fmt.Sprintf("%d objects follow", n)
}

// approveCommand returns the command that approves the edit of a policy.
func approveCommand(p *placement.Subject) string {
	if p.Meta.Namespace == "" {
		return "atoll approve clusterplacement/" + p.Meta.Name
	}
	return fmt.Sprintf("atoll approve placement/%s -n %s", p.Meta.Name, p.Meta.Namespace)
}
