// Package placement decides which clusters run an object, with which share of
// its replicas, and says why.
//
// It is pure: the same arguments give the same decision, so a decision can be
// previewed, explained and tested. The time is an argument. It is sticky: the
// previous decision is an argument too, and a small change in cause makes a
// small change in effect.
//
// Three rules stand above the others. Nothing is taken from a cluster because
// something is not known: a cluster leaves a decision only when it is known to
// be gone or leaving, or when something that is known speaks against it (the
// policy, a taint, an obstacle, being not Ready for longer than is tolerated)
// and another cluster is there to take over. Of a cluster whose state is not
// known, not even a policy takes anything. And scaling never takes an object out
// of a cluster: a share may become zero, and then the object stays there with
// zero replicas, because what it needs (a volume, say) would go with it.
package placement

import (
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Object is what placement needs to know of an object.
type Object struct {
	// Key tells it from all others. Where several clusters are as good, the key
	// decides, so that many objects spread.
	Key         string
	Group, Kind string
	// Mode is what suits the kind; empty is Duplicated.
	Mode v1alpha1.PlacementMode
	// Divisible: it has replicas that clusters can share.
	Divisible bool
	// Single: it can run in one cluster only, whatever a policy says.
	Single   bool
	Replicas int32
	// Finished objects stay where they ran. No other cluster begins them again.
	Finished bool
	// Needs is what one replica requests, or the whole object if it has none.
	Needs Amount
}

// Share is one cluster's part of a previous decision.
type Share struct {
	Cluster  string
	Replicas int32
	// Whole: the cluster runs all of it; Replicas says nothing.
	Whole bool
}

// Obstacle is what keeps one object from one cluster.
type Obstacle struct {
	Reason  string // for machines
	Message string // continues "the cluster …"
	// Keeps: what the cluster has of the object stays there, and does not grow. It is
	// for what is not sure, and for what is in no hurry.
	Keeps bool
}

// Request is all that a decision depends on.
type Request struct {
	Object Object
	Fleet  *Fleet
	// Policy is the one that decides; nil is what holds without any.
	Policy   *Policy
	Previous []Share // in any order; empty if there was no decision
	// Obstacles by name of cluster.
	Obstacles map[string]Obstacle
	// Near and Apart are the clusters where the objects are that the policy's terms
	// of workload affinity and anti-affinity are about, term by term.
	Near, Apart []Neighbours
	// Ledger knows what the fleet has put where; nil if no bounds are to be kept.
	Ledger *Ledger
	Now    time.Time
}

// Neighbours are the objects that one term of a policy is about.
type Neighbours struct {
	Clusters []string
	// Self: the term is about the object itself too, so that the first one of a
	// group that wants to be together can go anywhere.
	Self bool
}

// Verdict says whether one cluster was chosen, and why.
type Verdict struct {
	Cluster string
	Chosen  bool
	// Counted: Replicas says how many; otherwise the cluster runs it whole.
	Counted  bool
	Replicas int32
	Reason   string
	Message  string
}

// Decision is the answer.
type Decision struct {
	// Chosen are the clusters that run the object, in order of joining.
	Chosen []Verdict
	// Mode that came of the policy and the kind.
	Mode v1alpha1.PlacementMode
	// Reason and Message sum it up. Scheduled is false where somebody should look.
	Scheduled bool
	Reason    string
	Message   string
	// Unplaced counts replicas that no cluster could take.
	Unplaced int32
	// Recheck is when the decision may change although nothing else does: a
	// toleration runs out. Zero if never.
	Recheck time.Time
}

// Decide places one object.
func Decide(r Request) Decision {
	d := newDeciding(&r)
	return d.decision()
}

// Explain gives the same decision, and a verdict on each cluster of the fleet in
// order of joining.
func Explain(r Request) (Decision, []Verdict) {
	d := newDeciding(&r)
	decision := d.decision()
	return decision, d.verdicts()
}

// Shares gives the decision as the previous one of the next.
func (d Decision) Shares() []Share {
	out := make([]Share, 0, len(d.Chosen))
	for _, v := range d.Chosen {
		out = append(out, Share{Cluster: v.Cluster, Replicas: v.Replicas, Whole: !v.Counted})
	}
	return out
}
