package placement

import (
	"fmt"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Reasons of verdicts on chosen clusters.
const (
	// ReasonChosen: Ready, and accepts new objects.
	ReasonChosen = "Scheduled"
	// ReasonKeptUnschedulable: accepts no new objects, and keeps its share.
	ReasonKeptUnschedulable = "KeptWhileUnschedulable"
	// ReasonKeptNotReady: unreachable for less than its toleration.
	ReasonKeptNotReady = "KeptWhileNotReady"
	// ReasonKeptMayRun: not Ready, but not unreachable, so its workloads may run.
	ReasonKeptMayRun = "KeptWhileWorkloadsMayRun"
	// ReasonKeptFailoverHeld: unreachable together with so many others that the fault is probably Atoll's own.
	ReasonKeptFailoverHeld = "KeptWhileFailoverHeld"
	// ReasonKeptTainted: has a taint that rejects new objects, or that is tolerated for some time.
	ReasonKeptTainted = "KeptWhileTainted"
	// ReasonKeptUntilItsTurn: unreachable or drained, and only so many objects leave at a time.
	ReasonKeptUntilItsTurn = "KeptUntilItsTurn"
	// ReasonKeptObstacle: an obstacle rejects new objects, and the share stays.
	ReasonKeptObstacle = "KeptDespiteObstacle"
	// ReasonKeptNoAlternative: keeps its share because no other cluster can take it.
	ReasonKeptNoAlternative = "KeptWithoutAlternative"
	// ReasonKeptFinished: the object finished there.
	ReasonKeptFinished = "Finished"
)

// Reasons of verdicts on other clusters.
const (
	// ReasonNotReady: not Ready, and had no share.
	ReasonNotReady = "ClusterNotReady"
	// ReasonEvicted: unreachable for longer than its toleration; the share moved.
	ReasonEvicted = "ClusterEvicted"
	// ReasonDrained: the cluster is drained.
	ReasonDrained = "ClusterDrained"
	// ReasonUnschedulable: accepts no new objects.
	ReasonUnschedulable = "ClusterUnschedulable"
	// ReasonLeaving: the cluster is leaving the fleet.
	ReasonLeaving = "ClusterLeaving"
	// ReasonUnselected: the policy does not select it.
	ReasonUnselected = "ClusterNotSelected"
	// ReasonTainted: has a taint that is not tolerated.
	ReasonTainted = "ClusterTainted"
	// ReasonAvoided: has a taint PreferNoSchedule, and others can take the object.
	ReasonAvoided = "ClusterAvoided"
	// ReasonNoGroup: lacks the label that the policy spreads over.
	ReasonNoGroup = "NoTopologyLabel"
	// ReasonOtherGroups: the policy's maxGroups are reached without its group.
	ReasonOtherGroups = "OtherGroupsChosen"
	// ReasonOtherGroup: another one of the policy's clusterGroups takes the object.
	ReasonOtherGroup = "OtherClusterGroup"
	// ReasonSkew: another cluster would make its group too large.
	ReasonSkew = "GroupTooLarge"
	// ReasonEnough: the policy's clusterCount is reached without it.
	ReasonEnough = "EnoughClusters"
	// ReasonUnsatisfied: the policy requires more clusters or groups than exist.
	ReasonUnsatisfied = "PolicyUnsatisfied"
	// ReasonHome: the object returns to where it ran before it failed over.
	ReasonHome = "ReturnedHome"
	// ReasonGroup: the object's group is elsewhere.
	ReasonGroup = "GroupElsewhere"
	// ReasonAffinity: the objects of the policy's workload affinity are elsewhere.
	ReasonAffinity = "WorkloadAffinity"
	// ReasonAntiAffinity: an object of the policy's workload anti-affinity is there.
	ReasonAntiAffinity = "WorkloadAntiAffinity"
	// ReasonPending: the object's pods have had no node there for too long.
	ReasonPending = "PodsPending"
	// ReasonFull: the cluster's nodes or limits leave no room.
	ReasonFull = "ClusterFull"
	// ReasonPreempted: the object's pods there made room for others of a higher priority.
	ReasonPreempted = "Preempted"
	// ReasonCapacityUnknown: replicas are divided by capacity, and the cluster's capacity is
	// unknown.
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
	// NoReadyClusters: no cluster can take the object. Running objects keep running.
	NoReadyClusters = "NoReadyClusters"
	// Unsatisfied: the policy requires more than exists. Running objects keep running.
	Unsatisfied = "PolicyUnsatisfied"
	// Unplaced: some replicas have no cluster.
	Unplaced = "ReplicasUnplaced"
)

// message explains a reason for one cluster in a sentence. Decisions have only reasons, and
// sentences are built only when needed.
func (d *decider) message(i int32, reason string) string {
	c, s := &d.fleet.clusters[i], &d.view.clusters[i]
	switch reason {
	case ReasonChosen:
		return "Ready and schedulable" + d.groupNote(s) + d.pendingNote(i) + d.preemptedNote(i) + d.homeNote(i) + d.consolidationNote(i)
	case ReasonKeptUnschedulable:
		return "unschedulable; keeps its share"
	case ReasonKeptNotReady:
		return d.keptNotReady(c)
	case ReasonKeptMayRun:
		return fmt.Sprintf("not Ready since %s: %s; keeps its share", stamp(c.Since), mayRun(c.Why))
	case ReasonKeptFailoverHeld:
		return fmt.Sprintf("unreachable since %s, %s; keeps its share until fewer are unreachable, or the Cluster leaves or has a NoExecute taint", stamp(c.Since), c.hold)
	case ReasonKeptTainted:
		return keptTainted(s)
	case ReasonKeptUntilItsTurn:
		return d.turnText(i)
	case ReasonKeptObstacle:
		return "keeps its share, though the cluster " + d.r.Obstacles[c.Name].Message
	case ReasonKeptNoAlternative:
		why := d.against(i)
		if why == "" && d.mode == divided && s.divisionWeight == 0 {
			why = noWeight
		}
		const kept = "keeps its share because no other cluster can take it"
		if blocked := d.blockedText(i); blocked != "" {
			return why + "; " + kept + blocked
		}
		return kept + because(why)
	case ReasonKeptVolumes:
		return d.heldMessage(i)
	case ReasonKeptFinished:
		return "the object finished here"
	case ReasonNotReady:
		return "not Ready" + because(c.Why)
	case ReasonEvicted:
		return fmt.Sprintf("unreachable for %s, longer than the tolerated %s", d.r.Now.Sub(c.Since).Truncate(time.Second), d.policy.tolerates(c, &d.r.Object))
	case ReasonDrained:
		return "the cluster is drained"
	case ReasonDegraded:
		if _, recorded := d.r.Obstacles[c.Name]; !recorded {
			return d.degradedText(i)
		}
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
		return fmt.Sprintf("has no label %s, which the policy spreads over", d.policy.spread[s.missingKey].key)
	case ReasonOtherGroups:
		return "the policy's maxGroups are reached with other groups"
	case ReasonOtherGroup:
		return fmt.Sprintf("in group %s, and another group takes the object", d.policy.spec.ClusterGroups[s.group].Name)
	case ReasonSkew:
		return "its group would have more clusters than the policy's maxSkew allows"
	case ReasonEnough:
		return "enough other clusters are chosen"
	case ReasonUnsatisfied:
		return "the policy cannot be satisfied: " + d.unsatisfied
	case ReasonHome:
		return "the object returns to the clusters where it ran before they were unreachable"
	case ReasonGroup:
		return d.r.Group.Why
	case ReasonAffinity:
		return "no object that the policy's workload affinity selects is here"
	case ReasonAntiAffinity:
		return "an object that the policy's workload anti-affinity selects is here"
	case ReasonFull:
		return d.fullness(i)
	case ReasonPreempted:
		return "makes room for " + d.r.Preempted[c.Name].By
	case ReasonPending:
		return pendingText(d.r.Pending[c.Name])
	case ReasonCapacityUnknown:
		return "its free capacity is unknown, and replicas are divided by capacity"
	case ReasonNoReplicas:
		return d.noReplicas(s)
	case ReasonObjectFinished:
		return "the object already finished elsewhere"
	}
	return "the cluster " + d.r.Obstacles[c.Name].Message // a reason of the caller
}

func (d *decider) keptNotReady(c *Cluster) string {
	until, ends := d.deadline(c)
	switch {
	case !c.Confirmed:
		return "not Ready when last seen; keeps its share until that is confirmed"
	case !ends && d.policy.unfenced(c, &d.r.Object):
		return "unreachable since " + stamp(c.Since) + "; keeps its share because it does not stop the replicas itself: spec.fencing of the policy needs a cluster in mode Pull with a syncer of this version, and an object with replicas"
	case !ends:
		return "unreachable since " + stamp(c.Since) + ", which the policy tolerates"
	}
	return fmt.Sprintf("unreachable since %s; keeps its share until %s", stamp(c.Since), stamp(until))
}

func keptTainted(s *clusterView) string {
	switch {
	case s.taint == nil:
		return "tainted; keeps its share"
	case s.eviction == evictUnknown:
		return fmt.Sprintf("has the taint %s without timeAdded; keeps its share until that time is known", taintText(s.taint))
	case s.eviction == evictLater:
		return fmt.Sprintf("has the taint %s; keeps its share until %s", taintText(s.taint), stamp(s.until))
	}
	return fmt.Sprintf("has the taint %s; keeps its share", taintText(s.taint))
}

func pendingText(n int32) string {
	return fmt.Sprintf("no node there for %d of its pods for too long", n)
}

// groupNote names the group of a cluster in the policy's order.
func (d *decider) groupNote(s *clusterView) string {
	if len(d.policy.groups) == 0 {
		return ""
	}
	return ", in group " + d.policy.spec.ClusterGroups[s.group].Name
}

// pendingNote says that a cluster has pods without a node, and why they stay there.
func (d *decider) pendingNote(at int32) string {
	n := d.r.Pending[d.fleet.clusters[at].Name]
	if n == 0 || d.mode == v1alpha1.ModeDuplicated {
		return ""
	}
	if d.stays[at] {
		return "; " + pendingText(n) + ", which wait for room in other clusters"
	}
	return "; " + pendingText(n) + ", which go to other clusters"
}

const noWeight = "the policy gives it no weight"

func (d *decider) noReplicas(s *clusterView) string {
	if d.mode == divided && s.divisionWeight == 0 {
		return noWeight
	}
	if d.policy.by == v1alpha1.DivideFewest {
		return "fewer clusters have room for all replicas"
	}
	return fmt.Sprintf("%d replicas are too few for all clusters", d.r.Object.Replicas)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// several joins reasons, and stays readable with thousands of clusters.
func several(reasons []string, all int) string {
	if more := all - len(reasons); more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(reasons, "; "), more)
	}
	return strings.Join(reasons, "; ")
}
