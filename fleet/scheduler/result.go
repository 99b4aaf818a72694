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
	// Peers returns the placed objects of a namespace with their clusters, and AllPeers those of all namespaces.
	Peers    func(namespace string) iter.Seq[Peer]
	AllPeers func() iter.Seq[Peer]
}

// Peer is a placed object as the affinity terms of others see it.
type Peer struct {
	Key       string
	Namespace string
	Labels    map[string]string
	Clusters  []string
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
	// The content of the binding:
	Shares    []v1alpha1.ClusterShare
	Overrides []v1alpha1.Override
	Condition metav1.Condition
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
			a.Shares, a.Overrides = b.Spec.Clusters, b.Spec.Overrides
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
	a.Together = snap.group(&a.Request, k, obj, a.Choice.Policy)
	snap.nearTypes(&a.Request, k, obj)
	snap.makeRoom(&a.Request, refOf(k.GroupKind(), obj), obj)
	snap.findRoom(&a.Request, a.Together)
	a.Preemption = snap.takeRoom(&a.Request, obj, b)
	a.setHome(b)
	a.Decision = placement.Decide(a.Request)
	a.Shares = shares(a.Decision)
	snap.limitCopies(&a, k, obj, b)
	if a.Preemption != nil {
		if a.Preemption = awaited(a.Preemption, &a); isSettled(a.Preemption, &a, b) {
			a.Preemption = nil
		}
	}
	if hasOrdinals(k) && a.Decision.Mode == v1alpha1.ModeDivided {
		setOrdinals(a.Shares, a.Request.Ordinals)
	}
	a.Overrides = setOverrides(a.Choice.Policy, a.Request.Fleet, k, a.Shares)
	if kept {
		a.keepOverrides(b)
	}
	a.Condition = metav1.Condition{Type: v1alpha1.BindingScheduled, Status: status(a.Decision.Scheduled),
		Reason: a.Decision.Reason, Message: a.Decision.Message + a.Together.message() + snap.electionMessage(&a, k, obj) + a.ignoredMessage(k, obj) + a.keptMessage() + missingMessage(lacks) + preemptionMessage(a.Preemption) + a.homeMessage()}
	return a
}

// obstaclesTo returns why clusters cannot accept an object, and what the control plane lacks for it.
func (snap *Snapshot) obstaclesTo(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding) (out map[string]placement.Obstacle, lacks []missing) {
	if snap.Obstacles != nil {
		out = snap.Obstacles(k, obj, b)
	}
	if snap.Missing != nil && k.MakesPods() {
		lacks = snap.Missing(k, obj)
	}
	return snap.noNodeFits(madeElsewhere(out, lacks, snap.Fleet, b), k, obj), lacks
}

// request assembles the input of placement. It also returns what the control plane lacks for the object.
func (snap *Snapshot) request(k interpret.KindInfo, obj *unstructured.Unstructured, b *v1alpha1.ResourceBinding, policy *placement.Policy, autoscaler *unstructured.Unstructured) (placement.Request, []missing) {
	r := placement.Request{Object: objectOf(k, obj), Fleet: snap.Fleet, Policy: policy, Allocations: snap.Allocations, Now: snap.Now, Previous: previous(b)}
	if b != nil {
		r.Inputs = b.Spec.Inputs
		if snap.Pending != nil && movesPending(k, obj) {
			r.Pending = snap.Pending(k, obj, b)
		}
	}
	if snap.electsLeader(k, obj) && !snap.staysDivided(b) && !policy.NeedsSeveral() {
		r.Object.Mode = v1alpha1.ModeSingle // several clusters would have several leaders
	}
	r.Object.Replicas = withinScaleBounds(r.Object.Replicas, autoscaler)
	r.Settled = settledTotal(&r, autoscaler, b)
	var lacks []missing
	r.Obstacles, lacks = snap.obstaclesTo(k, obj, b)
	if hasOrdinals(k) {
		r.Ordinals = ordinals(b)
	}
	if near, apart := policy.Terms(); len(near)+len(apart) > 0 && snap.Peers != nil {
		r.Affinity, r.AntiAffinity = snap.neighbours(r.Object.Key, obj, near), snap.neighbours(r.Object.Key, obj, apart)
	}
	return r, lacks
}

// electsLeader reports whether a divided workload elects a leader, by a Lease in its own cluster.
func (snap *Snapshot) electsLeader(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return k.DefaultMode == interpret.Divided && interpret.ElectsLeader(interpret.PodSpec(obj.Object), func() interpret.Rights {
		if snap.Rights == nil {
			return interpret.Rights{}
		}
		return snap.Rights(k, obj)
	})
}

// rightsTimeout is how long after the first decision about a workload the rights of its account may arrive,
// which people apply together with it.
const rightsTimeout = 10 * time.Second

// staysDivided reports whether a workload has run in several clusters for so long that it stays there.
func (snap *Snapshot) staysDivided(b *v1alpha1.ResourceBinding) bool {
	return b != nil && len(b.Spec.Clusters) > 1 && snap.Now.Sub(b.CreationTimestamp.Time) > rightsTimeout
}

// electionMessage explains why a workload is not divided.
func (snap *Snapshot) electionMessage(a *Result, k interpret.KindInfo, obj *unstructured.Unstructured) string {
	if a.Decision.Mode != v1alpha1.ModeSingle || a.Choice.Policy.Mode() != "" || a.Choice.Policy.NeedsSeveral() || !snap.electsLeader(k, obj) {
		return ""
	}
	return "; not divided: its containers elect a leader, and each cluster would have one. The mode of a policy says otherwise"
}

// objectOf returns the facts about an object for placement.
func objectOf(k interpret.KindInfo, obj *unstructured.Unstructured) placement.Object {
	o := identityOf(k, obj)
	if parts, err := k.Components(obj); err == nil && len(parts) > 0 {
		o.Needs = needsOf(parts)
	} else if pod := k.PodSpec(obj); pod != nil {
		o.Needs = placement.PodNeeds(pod)
	}
	o.Pods, o.AtOnce = podsOf(k, obj)
	return o
}

// needsOf returns what all components of an object need together.
func needsOf(parts []interpret.Component) (sum placement.Resources) {
	for _, part := range parts {
		need := placement.RequestedBy(part.Requests)
		if part.Pod != nil {
			need = placement.PodNeeds(part.Pod)
		}
		sum = sum.Plus(need, part.Replicas)
	}
	return sum
}

// identityOf returns them without the object's needs, which take the most time.
func identityOf(k interpret.KindInfo, obj *unstructured.Unstructured) placement.Object {
	o := placement.Object{Key: KeyOf(k.GroupKind(), obj.GetNamespace(), obj.GetName()), Namespace: obj.GetNamespace(), Group: k.Group, Kind: k.GroupVersionKind.Kind,
		Mode: v1alpha1.PlacementMode(k.DefaultMode), Single: k.Single, Finished: k.Finished(obj)}
	if ns := obj.GetNamespace(); ns != "" {
		o.Together = "namespace/" + ns
	}
	o.Single = o.Single || isOneVolume(k, obj)
	if o.Rebalance = obj.GetAnnotations()[v1alpha1.RebalanceAnnotation]; o.Rebalance != "" {
		o.Stays = staysPut(k, obj)
	}
	o.Replicas, o.Divisible = k.Replicas(obj)
	o.Divisible = o.Divisible && k.CheckMode(obj, interpret.Divided) == ""
	return o
}

// staysPut reports whether a request to rebalance must not move an object as a whole: a volume would stay behind, work
// would be done again, and what a custom resource stands for is unknown.
func staysPut(k interpret.KindInfo, obj *unstructured.Unstructured) bool {
	return k.Custom || k.GroupVersionKind.Kind == "Pod" || k.GroupVersionKind.Kind == "Job" || !movesPending(k, obj)
}

// withinScaleBounds limits a replica count to the autoscaler's bounds for all clusters together: the
// bounds are divided by the shares, so the shares start with the count that the autoscaler
// would set. With zero replicas an autoscaler is inactive.
func withinScaleBounds(replicas int32, autoscaler *unstructured.Unstructured) int32 {
	if autoscaler == nil || replicas == 0 {
		return replicas
	}
	least, most := interpret.ScaleBounds(autoscaler)
	return min(max(replicas, least), most)
}

// settledTotal returns the total of the previous shares if an autoscaler owns the counts since then
// and would not change the total because of its bounds; otherwise 0. With zero replicas, a user
// stops or starts the object.
func settledTotal(r *placement.Request, autoscaler *unstructured.Unstructured, b *v1alpha1.ResourceBinding) (total int32) {
	if autoscaler == nil || b == nil || b.Spec.ScaledBy == nil || b.Spec.ScaledBy.Name != autoscaler.GetName() || r.Object.Replicas == 0 {
		return 0
	}
	for _, share := range r.Previous {
		if share.Whole {
			return 0
		}
		total += share.Replicas
	}
	if withinScaleBounds(total, autoscaler) != total {
		return 0
	}
	return total
}

func previous(b *v1alpha1.ResourceBinding) []placement.Share {
	if b == nil {
		return nil
	}
	out := make([]placement.Share, 0, len(b.Spec.Clusters))
	for _, c := range b.Spec.Clusters {
		share := placement.Share{Cluster: c.Name, Whole: c.Replicas == nil}
		if c.Replicas != nil {
			share.Replicas = *c.Replicas
		}
		out = append(out, share)
	}
	return out
}

func (snap *Snapshot) neighbours(self string, obj metav1.Object, terms []placement.Term) []placement.TermMatches {
	out := make([]placement.TermMatches, len(terms))
	own := obj.GetNamespace()
	peers := snap.Peers(own)
	for i := range terms {
		out[i].Self = terms[i].Selects(own, own, snap.Namespace, obj.GetLabels())
		if terms[i].IsWide() {
			peers = snap.AllPeers()
		}
	}
	for p := range peers {
		if p.Key == self {
			continue
		}
		for i := range terms {
			if terms[i].Selects(own, p.Namespace, snap.Namespace, p.Labels) {
				out[i].Clusters = append(out[i].Clusters, p.Clusters...)
			}
		}
	}
	return out
}

// hasWideTerms reports whether a policy has terms about objects of other namespaces.
func hasWideTerms(policy *placement.Policy) bool {
	near, apart := policy.Terms()
	return slices.ContainsFunc(slices.Concat(near, apart), func(t placement.Term) bool { return t.IsWide() })
}

func shares(d placement.Decision) []v1alpha1.ClusterShare {
	var out []v1alpha1.ClusterShare
	for _, v := range d.Chosen {
		share := v1alpha1.ClusterShare{Name: v.Cluster, Reason: v.Reason, Message: v.Message}
		if v.Counted {
			share.Replicas = &v.Replicas
		}
		out = append(out, share)
	}
	return out
}

// hasOrdinals reports whether the replicas of a kind have consecutive ordinals.
func hasOrdinals(k interpret.KindInfo) bool {
	return k.GroupKind() == schema.GroupKind{Group: "apps", Kind: "StatefulSet"}
}

// ordinals returns the ranges of a binding, which may be nil.
func ordinals(b *v1alpha1.ResourceBinding) (ranges []placement.Range) {
	if b == nil {
		return nil
	}
	for _, c := range b.Spec.Clusters {
		if c.Replicas == nil {
			continue
		}
		r := placement.Range{Cluster: c.Name, Count: *c.Replicas}
		if c.OrdinalStart != nil {
			r.Start = *c.OrdinalStart
		}
		ranges = append(ranges, r)
	}
	return ranges
}

// setOrdinals assigns each share a range of ordinals.
func setOrdinals(shares []v1alpha1.ClusterShare, before []placement.Range) {
	now := make([]placement.Share, len(shares))
	for i, c := range shares {
		now[i] = placement.Share{Cluster: c.Name}
		if c.Replicas != nil {
			now[i].Replicas = *c.Replicas
		}
	}
	for i, r := range placement.Ordinals(now, before) {
		shares[i].OrdinalStart = &r.Start
	}
}

// setOverrides sets which overrides each share has, and returns those.
func setOverrides(policy *placement.Policy, fleet *placement.Fleet, k interpret.KindInfo, shares []v1alpha1.ClusterShare) []v1alpha1.Override {
	names := make([]string, len(shares))
	for i := range shares {
		names[i] = shares[i].Name
	}
	overrides, where := policy.Overrides(fleet, k.Group, k.GroupVersionKind.Kind, names)
	for i := range shares {
		shares[i].Overrides = where[shares[i].Name]
	}
	return overrides
}

// ignoredMessage explains why the policy's mode does not apply to the kind.
func (a *Result) ignoredMessage(k interpret.KindInfo, obj *unstructured.Unstructured) string {
	wanted := a.Choice.Policy.Mode()
	if wanted == "" || wanted == a.Decision.Mode || a.Together != nil && a.Together.Undivided != "" {
		return ""
	}
	return fmt.Sprintf("; not in mode %s: %s", wanted, k.CheckMode(obj, interpret.Mode(wanted)))
}

// reserve enters a result in the allocations, so that the next decision takes it into account.
func (snap *Snapshot) reserve(a *Result) {
	if a.Choice.Err != nil {
		return
	}
	if snap.Allocations != nil {
		snap.Allocations.Set(a.Request.Object, a.Decision.Shares())
	}
	if snap.Rooms != nil {
		snap.Rooms.Grant(&a.Request.Object, a.Request.Previous, a.Decision.Shares(), snap.Now)
		promise(snap.Rooms, &a.Request.Object, a.Preemption, a.Decision.Shares())
	}
	snap.reserveGroup(a)
}

// reserveGroup reserves the room of the group's members that are not placed yet. Another group would take
// it otherwise, and both would stay incomplete.
func (snap *Snapshot) reserveGroup(a *Result) {
	limited, known := snap.Allocations != nil && snap.Fleet.Limited(), snap.Rooms != nil && snap.Fleet.KnowsRoom()
	if a.Together == nil || len(a.Decision.Chosen) != 1 || !limited && !known {
		return
	}
	for _, c := range a.Together.Members {
		if len(c.Clusters) > 0 || c.finished {
			continue
		}
		o, share := objectOf(c.placed.Kind, c.placed.Object), []placement.Share{{Cluster: a.Decision.Chosen[0].Cluster, Whole: true}}
		if limited {
			snap.Allocations.Set(o, share)
		}
		if known {
			snap.Rooms.Grant(&o, nil, share, snap.Now)
		}
	}
}

// isContended reports whether decisions must be serialized: each may use capacity that the next
// one then lacks, or depends on where other objects are.
func (snap *Snapshot) isContended(k interpret.KindInfo, c placement.PolicyChoice) bool {
	if c.Policy == nil {
		return false
	}
	near, apart := c.Policy.Terms()
	return len(near)+len(apart) > 0 || c.Policy.ByCapacity() || snap.Fleet.Limited() || k.MakesPods() && snap.Fleet.KnowsRoom()
}

// peersOf returns the peers among bindings.
func peersOf(bindings []*v1alpha1.ResourceBinding, labelsOf func(*v1alpha1.ResourceBinding) map[string]string) iter.Seq[Peer] {
	return func(yield func(Peer) bool) {
		for _, b := range bindings {
			if len(b.Spec.RequiredBy) > 0 || len(b.Spec.Clusters) == 0 {
				continue
			}
			gk := b.Spec.Resource.GroupVersionKind().GroupKind()
			if interpret.IsNamespace(gk) {
				continue
			}
			p := Peer{Key: KeyOf(gk, b.Namespace, b.Spec.Resource.Name), Namespace: b.Namespace, Labels: labelsOf(b)}
			for _, c := range b.Spec.Clusters {
				p.Clusters = append(p.Clusters, c.Name)
			}
			slices.Sort(p.Clusters)
			if !yield(p) {
				return
			}
		}
	}
}
