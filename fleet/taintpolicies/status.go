package taintpolicies

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/names"
	"github.com/atoll-dev/atoll/fleet/taints"
)

// reconcilePolicy writes the status of a policy.
func (c *controller) reconcilePolicy(ctx context.Context, name string) error {
	p, exists := c.policies.Get(name)
	if !exists {
		return nil
	}
	var joined, tainted []string
	for _, cluster := range c.Clusters.All() {
		joined = append(joined, cluster.Name)
		if slices.Contains(policiesOf(cluster), name) {
			tainted = append(tainted, cluster.Name)
		}
	}
	slices.Sort(tainted)
	status := v1alpha1.ClusterTaintPolicyStatus{TaintedClusters: int32(len(tainted)), ClusterNames: tainted[:min(len(tainted), v1alpha1.MaxTaintedClusterNames)]}
	accepted := accepted(p, joined)
	accepted.ObservedGeneration, accepted.LastTransitionTime = p.Generation, metav1.NewTime(c.Clock.Now())
	if was := meta.FindStatusCondition(p.Status.Conditions, accepted.Type); was != nil && was.Status == accepted.Status {
		accepted.LastTransitionTime = was.LastTransitionTime
	}
	status.Conditions = []metav1.Condition{accepted}
	if equality.Semantic.DeepEqual(status, p.Status) {
		return nil
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return fmt.Errorf("encode the status of ClusterTaintPolicy %s: %w", name, err)
	}
	apply := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "ClusterTaintPolicy",
		"metadata": map[string]any{"name": name, "uid": string(p.UID)}, "status": u}}
	if err := fleet.ApplyStatus(ctx, c.Dynamic.Resource(v1alpha1.ClusterTaintPolicyResource), apply, FieldManager); err != nil {
		return fmt.Errorf("write the status of ClusterTaintPolicy %s: %w", name, err)
	}
	return nil
}

func accepted(p *v1alpha1.ClusterTaintPolicy, joined []string) metav1.Condition {
	if err := taints.Compile(p).Err; err != nil {
		return metav1.Condition{Type: v1alpha1.PlacementAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPolicyInvalid,
			Message: fmt.Sprintf("the policy is invalid, and clusters keep the taints that they have from it: %v", err)}
	}
	out := metav1.Condition{Type: v1alpha1.PlacementAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPolicyAccepted, Message: "the policy is in effect"}
	if p.Spec.Clusters == nil {
		return out
	}
	var missing []string
	for _, name := range p.Spec.Clusters.Names {
		if !slices.Contains(joined, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		out.Message += fmt.Sprintf(", but not all of its clusters exist: %s%s", names.List(missing), names.DidYouMean(missing[0], joined))
	}
	return out
}

// policiesOf returns the names of the policies with taints of a cluster.
func policiesOf(cluster *v1alpha1.Cluster) []string {
	if cluster == nil {
		return nil
	}
	var out []string
	for i := range cluster.Status.PolicyTaints {
		if name := cluster.Status.PolicyTaints[i].Policy; !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
