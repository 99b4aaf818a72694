// Package transition leads an object from the clusters that run it to those that are to run it, in safe steps:
// replicas leave a cluster only while enough others are available.
//
// It is pure. The same arguments give the same step, so a transition can be previewed and tested, and goes on after
// a crash at any point: the shares in effect and the goal are arguments, and each step is one write.
package transition

import (
	"time"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Share is one cluster's part of an object.
type Share struct {
	Cluster string
	// Replicas of the cluster, if the object is divided.
	Replicas int32
	// Whole: the cluster runs the whole object, and Replicas is not used.
	Whole bool
	// Start is the first ordinal, if the replicas are numbered.
	Start int32
	// Revision is another one with each step that changes the share. A report names the revision that it is about: a
	// share that returns to an earlier value is not mistaken for it.
	Revision int32
	// Drain announces a smaller share. It does not change the revision.
	Drain Drain
}

// Report is one cluster's report about the object, and how far it can be relied on.
type Report struct {
	// Present: the cluster has a copy, or may have one.
	Present bool
	// Revision of the share that the report is about.
	Revision int32
	// Current: the report is fresh, and is about the object and the share that are in effect now.
	Current bool
	// Settled: no replica is about to be replaced by one of a newer template.
	Settled bool
	// Healthy: the copy as a whole is as it should be.
	Healthy bool
	// Available and Running count the replicas that are available, and all that exist.
	Available, Running int32
	// Unreachable: the cluster does not answer. Its report is not current.
	Unreachable bool
	// Lost: the cluster has been unreachable for so long that its replicas count as lost, or has left. Nothing there
	// has to be waited for.
	Lost bool
	// Message is why the copy is not as it should be, in the cluster's words. It is shown while a transition waits for it.
	Message string
	// Volumes has what the cluster says about transfers, by claim.
	Volumes map[string]VolumeReport
	// Exported: other clusters may send requests to the replicas, by an exported Service.
	Exported bool
	// Drain is how far the replicas that are about to leave are out of its endpoints.
	Drain DrainReport
}

// Rule is how the copies of a kind relate to each other.
type Rule int

// The rules.
const (
	// Overlapping copies may run in several clusters at the same time.
	Overlapping Rule = iota
	// Numbered replicas have ordinals. No ordinal may run twice.
	Numbered
	// Exclusive objects must not run in two clusters at the same time: their work would be done twice.
	Exclusive
	// Autoscaled objects have autoscalers in the clusters that set the counts. Shares are only the initial ones.
	Autoscaled
)

// Input is everything that a step depends on.
type Input struct {
	Rule Rule
	// Now are the shares in effect, Goal the decision, and From the decision that was in effect before.
	Now, Goal, From []Share
	Reports         map[string]Report
	// Wanted is how many replicas there are to be in all clusters together. For an object that runs as a whole it is
	// the count of each copy, 1 if it has no replicas.
	Wanted int32
	// Floor is how many of them have to stay available because of PodDisruptionBudgets.
	Floor  Floor
	Limits Limits
	// Volumes go along with replicas.
	Volumes Volumes
	// Under way: the last step led to Now, at Progress.
	Underway bool
	Progress time.Time
	// Final: the object returns already after a failure. It does not return a second time.
	Final bool
	// Phase and Since are those of the last output, as recorded.
	Phase v1alpha1.TransitionPhase
	Since time.Time
	At    time.Time
}

// Output is the next step.
type Output struct {
	// Next are the shares after this step.
	Next []Share
	// Transfers of volumes.
	Transfers []Transfer
	// Done: Next is the goal, and all volumes are where they belong.
	Done bool
	// Phase, and what the step after this one waits for.
	Phase      v1alpha1.TransitionPhase
	WaitingFor string
	// Recheck is when the next step may be possible without any other change; zero means never.
	Recheck time.Time
	// Failed are the clusters that did not run their share by the deadline. The object returns.
	Failed []string
}

// Step returns the next step. It returns the goal at once if nothing has to be waited for.
func Step(in Input) Output {
	m := newMove(&in)
	switch {
	case m.immediate():
		return Output{Next: m.revised(in.Goal), Done: true}
	case in.Limits.Paused:
		return Output{Next: withoutDrains(in.Now), Transfers: in.Volumes.Transfers, Phase: v1alpha1.PhasePaused, WaitingFor: "a user to resume it"}
	}
	m.dropLost()
	switch {
	case in.Rule == Exclusive:
		m.exclusive()
	case in.Volumes.Together:
		m.together()
	case in.Rule == Autoscaled && m.counted:
		m.autoscaled()
		m.drain()
	case in.Rule == Numbered && m.counted:
		m.numbered()
	case m.counted:
		m.replicas()
		m.drain()
	default:
		m.copies()
		m.drain()
	}
	return m.output()
}
