package scheduler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/placement"
)

// keepsDeleted reports whether an object stays where it is, because its policy was deleted, says so, and nothing but
// a default decides instead.
func (snap *Snapshot) keepsDeleted(c *placement.PolicyChoice, b *v1alpha1.ResourceBinding) bool {
	if b == nil || !b.Spec.Keep || b.Spec.Policy == nil || len(b.Decided()) == 0 || c.Err != nil || c.Explicit {
		return false
	}
	fallback := c.Reference.Kind == v1alpha1.PolicyDefault || c.Reference.Kind == "ClusterPlacement" && c.Reference.Name == v1alpha1.DefaultPlacementName
	return fallback && !snap.Policies.Has(b.Spec.Policy)
}

// keepChoice replaces the choice for an object by a policy that keeps it where it is. New replicas go where there is
// room in the same clusters.
func keepChoice(c *placement.PolicyChoice, b *v1alpha1.ResourceBinding) error {
	spec := v1alpha1.PlacementSpec{Clusters: &v1alpha1.ClusterSelector{Names: clusterNames(b.Decided())}, Mode: v1alpha1.ModeDuplicated,
		Tolerations: []v1alpha1.Toleration{{Operator: corev1.TolerationOpExists}}, Dependencies: b.Spec.Dependencies, OnDeletion: v1alpha1.DeletionKeeps}
	if b.Decided()[0].Replicas != nil {
		spec.Mode, spec.Division = v1alpha1.ModeDivided, &v1alpha1.ReplicaDivision{By: v1alpha1.DivideCapacity}
	}
	policy, err := placement.Compile(&spec)
	if err != nil {
		return fmt.Errorf("keep the placement of a deleted policy: %w", err)
	}
	c.Policy, c.Reference = policy, *b.Spec.Policy
	c.Reference.Why = "it was deleted, and keeps the placement until another policy or a label decides"
	return nil
}

// keepOverrides keeps the overrides of a deleted policy.
func (a *Result) keepOverrides(b *v1alpha1.ResourceBinding) {
	a.Overrides = b.Spec.Overrides
	for i := range a.Shares {
		was, _ := b.DecidedShare(a.Shares[i].Name)
		a.Shares[i].Overrides = was.Overrides
	}
}
