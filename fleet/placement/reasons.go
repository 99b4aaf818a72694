package placement

import (
	"fmt"
	"strings"
	"time"
)

// Reasons of verdicts on clusters that were chosen.
const (
	// ReasonChosen: Ready, and takes new work.
	ReasonChosen = "Scheduled"
	// ReasonKeptUnschedulable: takes no new work, and keeps what it has.
	ReasonKeptUnschedulable = "KeptWhileUnschedulable"
	// ReasonKeptNotReady: not Ready for less than its toleration.
	ReasonKeptNotReady = "KeptWhileNotReady"
	// ReasonKeptTainted: has a taint that keeps new work away, or that is tolerated
	// for some time.
	ReasonKeptTainted = "KeptWhileTainted"
	// ReasonKeptObstacle: something stands in the way of new work, and what is there stays.
	ReasonKeptObstacle = "KeptDespiteObstacle"
	// ReasonKeptNoAlternative: keeps its share because nobody else could take it.
	ReasonKeptNoAlternative = "KeptWithoutAlternative"
	// ReasonKeptFinished: the object finished there.
	ReasonKeptFinished = "Finished"
)

// Reasons of verdicts on clusters that were not.
const (
	// ReasonNotReady: not Ready, and had no share.
	ReasonNotReady = "ClusterNotReady"
	// ReasonEvicted: not Ready for longer than its toleration; the share moved.
	ReasonEvicted = "ClusterEvicted"
	// ReasonUnschedulable: takes no new work.
	ReasonUnschedulable = "ClusterUnschedulable"
	// ReasonLeaving: the cluster is leaving the fleet.
	ReasonLeaving = "ClusterLeaving"
	// ReasonUnselected: the policy does not choose it.
	ReasonUnselected = "ClusterNotSelected"
	// ReasonTainted: has a taint that is not tolerated.
	ReasonTainted = "ClusterTainted"
	// ReasonAvoided: has a taint PreferNoSchedule, and others can take the object.
	ReasonAvoided = "ClusterAvoided"
	// ReasonNoGroup: lacks the label that the policy spreads over.
	ReasonNoGroup = "NoTopologyLabel"
	// ReasonOtherGroups: the policy's maxGroups are in use without this one's.
	ReasonOtherGroups = "OtherGroupsChosen"
	// ReasonSkew: one cluster more would make its group too large.
	ReasonSkew = "GroupTooLarge"
	// ReasonEnough: the policy's clusterCount is reached without it.
	ReasonEnough = "EnoughClusters"
	// ReasonUnsatisfied: the policy asks for more clusters or groups than there are.
	ReasonUnsatisfied = "PolicyUnsatisfied"
	// ReasonAffinity: what the object wants to be with is elsewhere.
	ReasonAffinity = "WorkloadAffinity"
	// ReasonAntiAffinity: what the object does not want to be with is there.
	ReasonAntiAffinity = "WorkloadAntiAffinity"
	// ReasonFull: the cluster's limits leave no room.
	ReasonFull = "ClusterFull"
	// ReasonCapacityUnknown: replicas go by capacity, and its is not known.
	ReasonCapacityUnknown = "CapacityUnknown"
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
	// Unsatisfied: the policy asks for more than there is. What runs, runs on.
	Unsatisfied = "PolicyUnsatisfied"
	// Unplaced: some replicas have no cluster.
	Unplaced = "ReplicasUnplaced"
)

// message says in a sentence what a reason means for one cluster. Decisions name
// reasons; sentences are made only of what somebody is going to read.
func (d *deciding) message(i int32, reason string) string {
	c, s := &d.fleet.clusters[i], &d.view.seats[i]
	switch reason {
	case ReasonChosen:
		return "Ready and schedulable"
	case ReasonKeptUnschedulable:
		return "unschedulable; keeps what it has"
	case ReasonKeptNotReady:
		return d.keptNotReady(c)
	case ReasonKeptTainted:
		return keptTainted(s)
	case ReasonKeptObstacle:
		return "keeps what it has, though the cluster " + d.r.Obstacles[c.Name].Message
	case ReasonKeptNoAlternative:
		return "keeps its share because no other cluster can take it" + because(d.against(i))
	case ReasonKeptFinished:
		return "the object finished here"
	case ReasonNotReady:
		return "not Ready" + because(c.Why)
	case ReasonEvicted:
		return fmt.Sprintf("not Ready for %s, longer than the tolerated %s%s", d.r.Now.Sub(c.Since).Truncate(time.Second), d.tolerated(c), because(c.Why))
	case ReasonUnschedulable:
		return "unschedulable"
	case ReasonLeaving:
		return "the cluster is leaving the fleet"
	case ReasonUnselected:
		return d.policy.unselected(c, d.fleet.object(i))
	case ReasonTainted:
		return fmt.Sprintf("has the taint %s, which is not tolerated", taintText(s.taint))
	case ReasonAvoided:
		return fmt.Sprintf("has the taint %s, and other clusters can take it", taintText(s.taint))
	case ReasonNoGroup:
		return fmt.Sprintf("has no label %s, over which the policy spreads", d.policy.spread[s.lacks].key)
	case ReasonOtherGroups:
		return "the policy's maxGroups are reached with other groups"
	case ReasonSkew:
		return "its group would have more clusters than the policy's maxSkew allows"
	case ReasonEnough:
		return "as many other clusters are chosen as are wanted"
	case ReasonUnsatisfied:
		return "the policy asks for more than there is: " + d.unsatisfied
	case ReasonAffinity:
		return "none of the objects are here that this one is to be with"
	case ReasonAntiAffinity:
		return "objects are here that this one is not to be with"
	case ReasonFull:
		return "its limits leave no room" + because(d.fullness(i))
	case ReasonCapacityUnknown:
		return "how much room it has is not known, and replicas go by that"
	case ReasonNoReplicas:
		return d.noReplicas(s)
	case ReasonObjectFinished:
		return "the object already finished elsewhere"
	}
	return "the cluster " + d.r.Obstacles[c.Name].Message // the caller's own reason
}

func (d *deciding) keptNotReady(c *Cluster) string {
	until, ends := d.deadline(c)
	switch {
	case !c.Confirmed:
		return "not Ready when last seen; keeps its share until that is confirmed"
	case !ends:
		return "not Ready since " + stamp(c.Since) + ", which the policy tolerates"
	}
	return fmt.Sprintf("not Ready since %s; keeps its share until %s", stamp(c.Since), stamp(until))
}

func keptTainted(s *seat) string {
	switch {
	case s.taint == nil:
		return "tainted; keeps what it has"
	case s.drives == drivesUnknown:
		return fmt.Sprintf("has the taint %s; keeps what it has while it is not known since when (timeAdded)", taintText(s.taint))
	case s.drives == drivesLater:
		return fmt.Sprintf("has the taint %s; keeps what it has until %s", taintText(s.taint), stamp(s.until))
	}
	return fmt.Sprintf("has the taint %s; keeps what it has", taintText(s.taint))
}

func (d *deciding) noReplicas(s *seat) string {
	if d.mode == divided && s.portion == 0 {
		return "no weight of the policy is for it"
	}
	return fmt.Sprintf("%d replicas are fewer than the clusters need", d.r.Object.Replicas)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// several joins reasons, and keeps what thousands of clusters say readable.
func several(reasons []string, all int) string {
	if more := all - len(reasons); more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(reasons, "; "), more)
	}
	return strings.Join(reasons, "; ")
}
