// Package placement decides which clusters run an object, with which share of its replicas, and
// why.
//
// It is pure: the same arguments give the same decision, so a decision can be previewed, explained
// and tested. The time is an argument. It is sticky: the previous decision is an argument too, and
// a small change of the input makes a small change of the result.
//
// Three rules take precedence. First, missing information never removes an object: a cluster leaves
// a decision only when it is known to be gone or leaving, or when a known fact speaks against it
// and another cluster can take over. Such facts are the policy, a taint, an obstacle, or being
// unreachable for longer than is tolerated. Second, not even a policy removes an object from a cluster
// whose state is unknown. Third, scaling never removes an object from a cluster: a share may become
// zero, and the object stays there with zero replicas, because its dependencies (a volume, for
// example) would be removed with it.
package placement

import (
	"slices"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Object has the facts about an object that placement uses.
type Object struct {
	// Key identifies the object.
	Key string
	// Namespace is empty for objects without one.
	Namespace   string
	Group, Kind string
	// Together names what the object belongs to, its namespace. Among equally good clusters, a hash
	// with this name decides, so that an application's objects stay together and many applications
	// spread. An object without it is ranked by its key.
	Together string
	// Mode is the kind's default mode; empty means Duplicated.
	Mode v1alpha1.PlacementMode
	// Divisible: clusters can share its replicas.
	Divisible bool
	// Single: it can run in only one cluster, whatever a policy says.
	Single   bool
	Replicas int32
	// Finished objects stay where they ran. No other cluster starts them again.
	Finished bool
	// Needs is what one replica requests, or the whole object if it has no replicas.
	Needs Resources
	// Pods are the pods of one replica, or of the whole object; empty if it makes none, or if they may wait for
	// nodes in their cluster.
	Pods []Pods
	// Rebalance is another text for each request to decide as if the object were new, although nothing else changed.
	Rebalance string
	// Stays: a rebalance moves no whole copy, and chooses no other clusters: work would be repeated, or data left behind.
	Stays bool
	// AtOnce is how many of the replicas run at the same time; 0 means all.
	AtOnce int32
}

// Share is one cluster's part of a previous decision.
type Share struct {
	Cluster  string
	Replicas int32
	// Whole: the cluster runs the whole object, and Replicas is not used.
	Whole bool
}

// Obstacle is a reason that keeps one object out of one cluster.
type Obstacle struct {
	Reason  string // a condition reason
	Message string // continues "the cluster …"
	// Keeps: the cluster keeps its current share, which does not grow. It is for uncertain facts,
	// and for facts that are not urgent.
	Keeps bool
	// Leaves: a ready cluster loses its share, whether or not another can take it.
	Leaves bool
}

// Request is the complete input of a decision.
type Request struct {
	Object Object
	Fleet  *Fleet
	// Policy is the policy that applies to the object; nil means no policy.
	Policy   *Policy
	Previous []Share // in any order; empty if there was no decision
	// Running are the replicas that clusters still run which are not in the previous decision, because it is not in
	// effect yet. They need no further room there.
	Running map[string]int32
	// Settled is the total of the previous shares if autoscalers in the clusters own the counts now;
	// otherwise 0. The shares stay while this total still divides so, whatever Object.Replicas is.
	Settled int32
	// Ordinals are the current ranges of an object whose replicas are numbered; empty for others. They
	// stay where they are if the replicas can be divided so.
	Ordinals []Range
	// Obstacles by cluster name.
	Obstacles map[string]Obstacle
	// Affinity and AntiAffinity are the placed objects that the policy's terms of workload affinity
	// and anti-affinity select, term by term.
	Affinity, AntiAffinity []TermMatches
	// Group is nil if the object belongs to no group.
	Group *Group
	// Allocations records what the fleet has placed where; nil if no limits apply.
	Allocations *Allocations
	// Room is the room that nodes have for the object; nil if that is not considered.
	Room *Room
	// Home is where the object returns to after it failed over; nil if it has no home, or does not return by itself.
	Home *Home
	// Consolidate is when the object goes back to earlier ones of the policy's clusterGroups; nil if it does not by itself.
	Consolidate *Consolidation
	// Inputs are the Inputs of the previous decision.
	Inputs string
	// Pending is how many of the object's pods have had no node for too long, by cluster. They go where there is
	// room, or stay.
	Pending map[string]int32
	// Preempted bounds the object in clusters where it makes room for an object of higher priority.
	Preempted map[string]Preempted
	// Held are the clusters that keep the object whatever speaks against them, unless they leave: its volumes are there.
	Held map[string]bool
	// Fixed is why nothing changes: the shares stay as they were. It is empty if they may change.
	Fixed string
	// Degraded are the clusters in which the object is not Healthy for too long, with since when. It leaves those that
	// are Ready when others take its share.
	Degraded map[string]time.Time
	// Awaits are the clusters that the object may not leave yet because it is not its turn: see Decision.Departures.
	Awaits map[string]bool
	// Exceeds is why clusters may not run the whole object as decided; empty if they may. The object then stays where
	// it is.
	Exceeds string
	Now     time.Time
}

// TermMatches are the objects that one term of a policy selects.
type TermMatches struct {
	Clusters []string
	// Self: the term also selects the object itself, so the first object of an affinity group can
	// go anywhere.
	Self bool
}

// Verdict is whether one cluster was chosen, and why.
type Verdict struct {
	Cluster string
	Chosen  bool
	// Counted: Replicas is the share; otherwise the cluster runs the whole object.
	Counted  bool
	Replicas int32
	Reason   string
	Message  string
}

// Decision is the result of Decide.
type Decision struct {
	// Chosen are the clusters that run the object, in order of joining.
	Chosen []Verdict
	// Mode results from the policy and the kind.
	Mode v1alpha1.PlacementMode
	// Reason and Message summarize the decision. Scheduled is false if a user should act.
	Scheduled bool
	Reason    string
	Message   string
	// Unplaced is the number of replicas that no cluster could take.
	Unplaced int32
	// Inputs identifies what the decision depends on, apart from replica counts and free room. While it is the
	// same, no replicas move just because there is room somewhere else. It is empty if free room does not matter.
	Inputs string
	// Evicted are the clusters that the object leaves with this decision because they have been unreachable for
	// longer than is tolerated.
	Evicted []string
	// Degraded are the clusters that the object leaves because it is not Healthy there.
	Degraded []string
	// Home is whether an object that failed over returns.
	Home HomeDecision
	// Consolidation is whether replicas go back to earlier ones of the policy's clusterGroups.
	Consolidation ConsolidationDecision
	// Waits: more room in some cluster would change the decision.
	Waits bool
	// Departures are the clusters that the object leaves because they are unreachable or drained, or because it is not
	// Healthy there.
	Departures []Departure
	// Blocked: a cluster is drained, or the object is not Healthy there, and it stays because no other one can take it.
	Blocked bool
	// Recheck is when the decision may change without any other change, because a toleration
	// expires. Zero means never.
	Recheck time.Time
}

// Decide places one object.
func Decide(r Request) Decision {
	_, out := decide(&r)
	return out
}

// Explain returns the same decision, and a verdict for each cluster of the fleet in order of
// joining.
func Explain(r Request) (Decision, []Verdict) {
	d, out := decide(&r)
	return out, d.verdicts()
}

// decide makes the decision. The counts of an autoscaled object follow its load, and the bounds of
// its autoscalers follow the shares. If the shares followed the counts, each change of a bound could
// cause the next one. So the shares depend on the counts only when something else moves them.
func decide(r *Request) (*decider, Decision) {
	if r.Settled > 0 {
		settled := *r
		settled.Object.Replicas = r.Settled
		d := newDecider(&settled)
		if out := d.decision(); !d.rebalances && out.keeps(r.Previous) {
			return d, out
		}
	}
	d := newDecider(r)
	return d, d.decision()
}

// keeps reports whether a decision leaves all shares as they were.
func (d Decision) keeps(previous []Share) bool {
	if len(d.Chosen) != len(previous) {
		return false
	}
	for _, v := range d.Chosen {
		if !slices.ContainsFunc(previous, func(s Share) bool {
			return s.Cluster == v.Cluster && s.Replicas == v.Replicas && s.Whole == !v.Counted
		}) {
			return false
		}
	}
	return true
}

// Shares returns the decision as the previous one for the next request.
func (d Decision) Shares() []Share {
	out := make([]Share, 0, len(d.Chosen))
	for _, v := range d.Chosen {
		out = append(out, Share{Cluster: v.Cluster, Replicas: v.Replicas, Whole: !v.Counted})
	}
	return out
}
