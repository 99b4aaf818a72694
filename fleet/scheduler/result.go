package scheduler

import (
	"fmt"
	"iter"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/placement"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// Snapshot contains everything that decisions depend on, apart from the objects themselves. The
// scheduler takes one from its caches for each decision. A preview builds one from its State,
// changes it, and gets the decisions that the scheduler would make.
type Snapshot struct {
	Fleet    *placement.Fleet
	Policies *placement.Policies
	// Allocations is nil if limits and capacity are not considered.
	Allocations *placement.Allocations
	// Pending returns how many pods of an object have had no node for too long, by cluster; nil if that is not
	// considered.
	Pending func(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]int32
	// Tenants reads the objects that make room for others; nil if none does.
	Tenants Tenants
	// proposed is the binding of an object for which others would make room; nil if none would.
	proposed *v1alpha1.ResourceBinding
	// Rooms is nil if the free room of nodes is not considered.
	Rooms *placement.Rooms
	Now   time.Time
	// Namespace returns the labels of a namespace.
	Namespace func(name string) map[string]string
	// Obstacles returns why clusters cannot accept an object, apart from policies. b is its
	// binding, nil if there is no binding.
	Obstacles func(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) map[string]placement.Obstacle
	// Quotas returns the quotas of a namespace; nil if they are not considered.
	Quotas func(namespace string) []*v1alpha1.FleetQuota
	// Missing returns what the pods of a workload read and the control plane does not have; nil if that is
	// not considered.
	Missing func(k interpret.KindInfo, obj *unstructured.Unstructured) []missing
	// Autoscaler returns the autoscaler that sets the replica counts of an object in its
	// clusters, or nil.
	Autoscaler func(k interpret.KindInfo, obj *unstructured.Unstructured) *unstructured.Unstructured
	// Rights returns the rights of the ServiceAccount that the pods of a workload run with; nil if they are
	// not considered.
	Rights func(k interpret.KindInfo, obj *unstructured.Unstructured) interpret.Rights
	// Types iterates over the bindings of the types on which a workload may work; nil if they are not
	// considered.
	Types func(k interpret.KindInfo, obj *unstructured.Unstructured) iter.Seq2[object, *v1alpha1.ResourceBinding]
	// Follows returns what determines which contents of policies an object follows; nil if each policy has one.
	Follows func(o object, obj metav1.Object) placement.Following
	// Groups returns which objects belong together; nil if none do.
	Groups Groups
	// Gapped reports whether clusters may lack something for an object; nil if that is not known.
	Gapped func(o object) bool
	// Volumes are the policies for volumes; nil has none. Claim returns a claim of the control plane; nil if it has none.
	Volumes *volumes.Policies
	Claim   func(namespace, name string) (*unstructured.Unstructured, bool)
	// Turn returns which of an object's departures have to wait, by cluster; nil if none do, as in a preview.
	Turn func(previous []placement.Share, departures []placement.Departure) map[string]bool
	// Peers returns the placed objects of a namespace with their clusters, and AllPeers those of all namespaces.
	Peers    func(namespace string) iter.Seq[Peer]
	AllPeers func() iter.Seq[Peer]
}

// Result is the complete decision about one object.
type Result struct {
	Choice   placement.PolicyChoice
	Request  placement.Request
	Decision placement.Decision
	// Autoscaler is the one that the decision takes into account, or nil. The binding names this one: an
	// autoscaler that was created meanwhile must not be divided by this decision.
	Autoscaler *unstructured.Unstructured
	// Together is nil if the object belongs to no group.
	Together *Together
	// Preemption is the room that others make for the object; nil if none do.
	Preemption *v1alpha1.Preemption
	// Volumes is why the object stays with its volumes, where it would move without them; otherwise "".
	Volumes string
	// The content of the binding:
	Shares    []v1alpha1.ClusterShare
	Overrides []v1alpha1.Override
	Condition metav1.Condition
	// Leaving are the clusters that run the object and are not in the decision.
	Leaving []v1alpha1.ClusterShare
	// Degraded says in which clusters the object is not Healthy, and what follows.
	Degraded placement.Degraded
	// Avoided are the clusters that failed to run the object, as far as it still matters.
	Avoided []v1alpha1.AvoidedCluster
}

// ReasonPolicyInvalid means that the object's policy is invalid. Nothing changes until it is
// corrected.
const ReasonPolicyInvalid = "PolicyInvalid"

// KeyOf returns the unique key of an object.
func KeyOf(gk schema.GroupKind, namespace, name string) string {
	return gk.String() + "/" + namespace + "/" + name
}

// Choose returns the policy that decides about an object.
func (snap *Snapshot) Choose(k interpret.KindInfo, obj metav1.Object) placement.PolicyChoice {
	return snap.Policies.For(snap.target(k, obj))
}

func (snap *Snapshot) target(k interpret.KindInfo, obj metav1.Object) placement.PolicyTarget {
	t := placement.PolicyTarget{GroupKind: k.GroupKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), Labels: obj.GetLabels()}
	if t.Namespace != "" && snap.Namespace != nil {
		t.NamespaceLabels = snap.Namespace(t.Namespace)
	}
	if snap.Follows != nil && snap.Policies.HasFollowing() {
		t.Following = snap.Follows(refOf(k.GroupKind(), obj), obj)
	}
	return t
}

// Passed returns the policies that select an object but do not decide about it.
func (snap *Snapshot) Passed(k interpret.KindInfo, obj metav1.Object) []placement.OverruledPolicy {
	return snap.Policies.Overruled(snap.target(k, obj))
}

// Schedule decides about an object. b is its binding, nil if there is no binding.
func (snap *Snapshot) Schedule(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) Result {
	a := Result{Choice: snap.Choose(k, obj)}
	if a.Choice.Err != nil {
		a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: metav1.ConditionFalse, Reason: ReasonPolicyInvalid,
			Message: fmt.Sprintf("%s %s is invalid, so the placement stays unchanged: %v", a.Choice.Reference.Kind, a.Choice.Reference.Name, a.Choice.Err)}
		if b != nil {
			a.Shares, a.Overrides = b.Decided(), b.Spec.Overrides
		}
		return a
	}
	if err := k.Unanswered(obj); err != nil {
		return unanswered(a, b, err)
	}
	kept := snap.keepsDeleted(&a.Choice, b)
	if kept {
		kept = keepChoice(&a.Choice, b) == nil
	}
	if snap.Autoscaler != nil {
		a.Autoscaler = snap.Autoscaler(k, obj)
	}
	var lacks []missing
	a.Request, lacks = snap.request(k, obj, b, a.Choice.Policy, a.Autoscaler)
	retry := snap.avoidFailed(&a, obj, b)
	a.Together = snap.group(&a.Request, k, obj, b, a.Choice.Policy)
	snap.nearTypes(&a.Request, k, obj)
	snap.makeRoom(&a.Request, refOf(k.GroupKind(), obj), obj)
	snap.findRoom(&a.Request, a.Together)
	a.Preemption = snap.takeRoom(&a.Request, obj, b)
	a.setHome(b)
	snap.findDegraded(&a, k, obj, b)
	snap.setConsolidation(&a, k, obj, b)
	snap.decideInTurn(&a, func() {
		a.Decision = placement.Decide(a.Request)
		for _, at := range []time.Time{retry, a.Degraded.Recheck} {
			if !at.IsZero() && (a.Decision.Recheck.IsZero() || at.Before(a.Decision.Recheck)) {
				a.Decision.Recheck = at
			}
		}
		snap.complete(&a, k, obj, b)
	})
	a.setLeaving(b)
	all := slices.Concat(a.Shares, a.Leaving)
	a.Overrides = setOverrides(a.Choice.Policy, a.Request.Fleet, k, all)
	a.Shares, a.Leaving = all[:len(a.Shares):len(a.Shares)], all[len(a.Shares):]
	if kept {
		a.keepOverrides(b)
	}
	a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: status(a.Decision.Scheduled),
		Reason: a.Decision.Reason, Message: a.Decision.Message + a.Together.message() + snap.electionMessage(&a, k, obj) + a.ignoredMessage(k, obj) + a.keptMessage() + a.avoidedMessage() + a.degradedMessage() + missingMessage(lacks) + preemptionMessage(a.Preemption) + a.homeMessage() + a.consolidationMessage()}
	return a
}

// complete sets the shares of a decision, as far as quotas allow them, and decides again if volumes have to stay.
func (snap *Snapshot) complete(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) {
	a.Shares = shares(a.Decision)
	snap.limitCopies(a, k, obj, b)
	if a.Preemption != nil {
		if a.Preemption = awaited(a.Preemption, a); isSettled(a.Preemption, a, b) {
			a.Preemption = nil
		}
	}
	if hasOrdinals(k) && a.Decision.Mode == v1alpha1.ModeDivided {
		setOrdinals(a.Shares, a.Request.Ordinals)
	}
	snap.keepVolumes(a, k, obj, b)
}
