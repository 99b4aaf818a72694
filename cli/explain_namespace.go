package cli

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// explainNamespace explains where a Namespace is: where a ClusterPlacement places it, and where objects of it are.
func explainNamespace(s *scheduler.State, e *explanation, ns *unstructured.Unstructured) *explanation {
	snap, k := s.Snapshot(), interpret.NamespaceKind()
	d, b := s.ScheduleNamespace(snap, ns)
	e.Policy, e.Scheduled = d.Choice.Reference, true
	e.Reason, e.Message = d.Condition.Reason, d.Condition.Message
	switch {
	case d.Choice.Err != nil:
		e.Scheduled, e.Reason = false, scheduler.ReasonPolicyInvalid
		e.Message = "the policy is invalid, so nothing changes: " + d.Choice.Err.Error()
	case d.Placed:
		e.Scheduled = d.Condition.Status == metav1.ConditionTrue
		for _, p := range snap.Passed(k, ns) {
			e.Passed = append(e.Passed, passedPolicy{p.Reference.Kind, p.Reference.Name, p.Why})
		}
	default:
		e.Policy.Why = "no ClusterPlacement places it"
		e.Reason, e.Message = scheduler.ReasonNamespaceObjects, "it is in the clusters that have objects of it. A ClusterPlacement with Namespace in spec.selector.kinds places it, also if it is empty"
	}
	shares := map[string]v1alpha1.ClusterShare{}
	for _, c := range d.Shares {
		shares[c.Name] = c
	}
	for _, name := range s.NamespaceClusters(ns.GetName()) { // those without overrides have no share
		if _, known := shares[name]; !known && !d.Placed {
			shares[name] = v1alpha1.ClusterShare{Name: name, Reason: scheduler.ReasonNamespaceObjects, Message: "objects of the namespace are in the cluster"}
		}
	}
	policy := d.Choice.Policy
	if !d.Placed {
		policy = d.Choice.Overrides
	}
	verdicts := []placement.Verdict{}
	if d.Placed && d.Choice.Err == nil {
		_, verdicts = placement.Explain(d.Request)
	} else {
		for _, name := range snap.Fleet.Names() {
			verdicts = append(verdicts, placement.Verdict{Cluster: name, Reason: "NoObjects", Message: "no object of the namespace is in the cluster"})
		}
	}
	for _, v := range verdicts {
		out := verdict{Cluster: v.Cluster, Reason: v.Reason, Message: v.Message}
		if c, has := shares[v.Cluster]; has {
			out.Chosen = true
			if !v.Chosen {
				out.Reason, out.Message = c.Reason, c.Message
			}
			for _, by := range policy.OverriddenBy(snap.Fleet, k.Group, k.Kind, v.Cluster, d.Choice.Reference) {
				out.OverriddenBy = append(out.OverriddenBy, by.Kind+" "+by.Name)
			}
		}
		e.Clusters = append(e.Clusters, out)
	}
	e.Pending = scheduler.NamespacePending(b, &d)
	return e
}
