// Package placement decides which clusters run an object, with which share of
// its replicas, and says why.
//
// It is pure: the same arguments give the same decision, so a decision can be
// previewed, explained and tested. The time is an argument. It is sticky: the
// previous decision is an argument too, and a small change in cause makes a
// small change in effect.
//
// Two rules stand above the others. Nothing is taken from a cluster because
// something is not known: a cluster leaves a decision only when it is known to
// be gone, leaving, or not Ready for longer than its toleration while another
// cluster is there to take over. And scaling never takes an object out of a
// cluster: a share may become zero, and then the object stays there with zero
// replicas, because what it needs (a volume, say) would go with it.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Object is what placement needs to know of an object.
type Object struct {
	// Divided: the clusters share Replicas. Otherwise each runs the whole object.
	Divided  bool
	Replicas int32
	// Finished objects stay where they ran. No other cluster begins them again.
	Finished bool
}

// Cluster is what placement needs to know of a cluster.
type Cluster struct {
	Name string
	// Joined orders the clusters: the remainder of a division goes to the first.
	Joined time.Time
	Ready  bool
	// Since is when Ready last changed.
	Since time.Time
	// Why says in words why the cluster is not Ready.
	Why string
	// Confirmed: whoever asks has itself seen that the cluster is not Ready. What
	// was written down before a restart is not known to hold still.
	Confirmed bool
	// EvictAfter is how long the cluster may be not Ready and keep its share.
	EvictAfter    time.Duration
	Unschedulable bool
	Leaving       bool
}

// Share is one cluster's part of a previous decision.
type Share struct {
	Cluster  string
	Replicas int32
}

// Request is all that a decision depends on.
type Request struct {
	Object   Object
	Clusters []Cluster // in any order
	Previous []Share   // in any order; empty if there was no decision
	Now      time.Time
}

// Reasons of verdicts.
const (
	// ReasonChosen: Ready, and takes new work.
	ReasonChosen = "Scheduled"
	// ReasonKeptUnschedulable: takes no new work, and keeps what it has.
	ReasonKeptUnschedulable = "KeptWhileUnschedulable"
	// ReasonKeptNotReady: not Ready for less than its toleration.
	ReasonKeptNotReady = "KeptWhileNotReady"
	// ReasonKeptNoAlternative: keeps its share because nobody else could take it.
	ReasonKeptNoAlternative = "KeptWithoutAlternative"
	// ReasonKeptFinished: the object finished there.
	ReasonKeptFinished = "Finished"

	// ReasonNotReady: not Ready, and had no share.
	ReasonNotReady = "ClusterNotReady"
	// ReasonEvicted: not Ready for longer than its toleration; the share moved.
	ReasonEvicted = "ClusterEvicted"
	// ReasonUnschedulable: takes no new work.
	ReasonUnschedulable = "ClusterUnschedulable"
	// ReasonLeaving: the cluster is leaving the fleet.
	ReasonLeaving = "ClusterLeaving"
	// ReasonNoReplicas: there are fewer replicas than clusters.
	ReasonNoReplicas = "NoReplicasLeft"
	// ReasonObjectFinished: the object finished elsewhere.
	ReasonObjectFinished = "ObjectFinished"
)

// Reasons of decisions.
const (
	// Placed: every replica has a cluster.
	Placed = "Placed"
	// NoClusters: no cluster has joined.
	NoClusters = "NoClusters"
	// NoReadyClusters: no cluster can take the object. What runs, runs on.
	NoReadyClusters = "NoReadyClusters"
	// Unplaced: some replicas have no cluster.
	Unplaced = "ReplicasUnplaced"
)

// Verdict says whether one cluster was chosen, and why.
type Verdict struct {
	Cluster  string
	Chosen   bool
	Replicas int32 // of a divided object
	Reason   string
	Message  string
}

// Decision is the answer.
type Decision struct {
	// Verdicts has one entry for each cluster, in order of joining.
	Verdicts []Verdict
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

// Chosen gives the verdicts of the clusters that run the object.
func (d Decision) Chosen() []Verdict {
	return slices.DeleteFunc(slices.Clone(d.Verdicts), func(v Verdict) bool { return !v.Chosen })
}

// candidate is a cluster while its verdict is being found.
type candidate struct {
	Cluster
	verdict Verdict
	had     bool
	prev    int32
	capped  bool // may keep its share but not grow
}

// Decide places one object by the default policy: on every Ready cluster, with
// replicas, where they are divided, spread evenly.
func Decide(r Request) Decision {
	candidates, recheck := judge(r)
	var d Decision
	d.Recheck = recheck

	growing := false // somebody can take new work
	for _, c := range candidates {
		growing = growing || c.verdict.Chosen && !c.capped
	}
	if r.Object.Divided {
		d.Unplaced = divide(r.Object.Replicas, candidates)
	}
	var chosen, rejected []string
	for _, c := range candidates {
		d.Verdicts = append(d.Verdicts, c.verdict)
		if c.verdict.Chosen {
			chosen = append(chosen, c.Name)
		} else {
			rejected = append(rejected, c.Name+": "+c.verdict.Message)
		}
	}
	switch {
	case len(candidates) == 0:
		d.Reason, d.Message = NoClusters, "no cluster has joined; add one with `atoll join NAME --kubeconfig FILE`"
	case r.Object.Finished && len(chosen) > 0:
		d.Scheduled, d.Reason, d.Message = true, Placed, "finished in "+strings.Join(chosen, ", ")
	case !growing && (len(chosen) == 0 || d.Unplaced > 0):
		d.Reason, d.Message = NoReadyClusters, "no cluster can take it: "+several(rejected)
	case d.Unplaced > 0:
		d.Reason, d.Message = Unplaced, fmt.Sprintf("%d of %d replicas have no cluster: %s", d.Unplaced, r.Object.Replicas, several(rejected))
	default:
		d.Scheduled, d.Reason = true, Placed
		d.Message = fmt.Sprintf("on %d of %d clusters", len(chosen), len(candidates))
		if len(rejected) > 0 {
			d.Message += "; not on " + several(rejected)
		}
	}
	return d
}

// several joins reasons, and keeps what thousands of clusters say readable.
func several(reasons []string) string {
	const most = 5
	if len(reasons) > most {
		return fmt.Sprintf("%s; and %d more", strings.Join(reasons[:most], "; "), len(reasons)-most)
	}
	return strings.Join(reasons, "; ")
}

// judge finds for each cluster whether it may run the object at all.
func judge(r Request) ([]candidate, time.Time) {
	prev := map[string]int32{}
	for _, s := range r.Previous {
		prev[s.Cluster] = s.Replicas
	}
	candidates := make([]candidate, 0, len(r.Clusters))
	alternative := false
	for _, c := range r.Clusters {
		n, had := prev[c.Name]
		candidates = append(candidates, candidate{Cluster: c, verdict: Verdict{Cluster: c.Name}, had: had, prev: n})
		alternative = alternative || c.Ready && !c.Unschedulable && !c.Leaving
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(a.Joined.Compare(b.Joined), cmp.Compare(a.Name, b.Name))
	})
	finishedSomewhere := r.Object.Finished && len(r.Previous) > 0
	var recheck time.Time
	for i := range candidates {
		c := &candidates[i]
		c.judge(finishedSomewhere, alternative, r.Now)
		due := c.Since.Add(c.EvictAfter)
		if c.verdict.Reason == ReasonKeptNotReady && due.After(r.Now) && (recheck.IsZero() || due.Before(recheck)) {
			recheck = due
		}
	}
	return candidates, recheck
}

func (c *candidate) judge(finishedSomewhere, alternative bool, now time.Time) {
	v := &c.verdict
	say := func(chosen bool, reason, format string, args ...any) {
		v.Chosen, v.Reason, v.Message = chosen, reason, fmt.Sprintf(format, args...)
		c.capped = chosen && reason != ReasonChosen
	}
	down := now.Sub(c.Since).Truncate(time.Second)
	switch {
	case c.Leaving:
		say(false, ReasonLeaving, "the cluster is leaving the fleet")
	case finishedSomewhere && c.had:
		say(true, ReasonKeptFinished, "the object finished here")
	case finishedSomewhere:
		say(false, ReasonObjectFinished, "the object already finished elsewhere")
	case !c.Ready && !c.had:
		say(false, ReasonNotReady, "not Ready%s", because(c.Why))
	case !c.Ready && !c.Confirmed:
		say(true, ReasonKeptNotReady, "not Ready when last seen; keeps its share until that is confirmed")
	case !c.Ready && now.Before(c.Since.Add(c.EvictAfter)):
		say(true, ReasonKeptNotReady, "not Ready since %s; keeps its share until %s",
			c.Since.UTC().Format(time.RFC3339), c.Since.Add(c.EvictAfter).UTC().Format(time.RFC3339))
	case !c.Ready && !alternative:
		say(true, ReasonKeptNoAlternative, "not Ready; keeps its share because no other cluster can take it")
	case !c.Ready:
		say(false, ReasonEvicted, "not Ready for %s, longer than the tolerated %s%s", down, c.EvictAfter, because(c.Why))
	case c.Unschedulable && c.had:
		say(true, ReasonKeptUnschedulable, "unschedulable; keeps what it has")
	case c.Unschedulable:
		say(false, ReasonUnschedulable, "unschedulable")
	default:
		say(true, ReasonChosen, "Ready and schedulable")
	}
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}
