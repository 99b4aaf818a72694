package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TransitionPolicy is how objects get from the clusters that run them to those that are to run them. Without
// it, all fields have their defaults.
type TransitionPolicy struct {
	// MaxSurge is how many replicas may run above the wanted number while replicas move: a number, or a
	// percentage of the wanted number, rounded up. At least one may; 25% if omitted. Objects that run as a whole
	// run in both clusters meanwhile.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^(100|[0-9]{1,2})%$')",message="must be a number, or a percentage from 0% to 100%"
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
	// MaxUnavailable is how many of the wanted replicas may be unavailable while replicas move: a number, or a
	// percentage of the wanted number, rounded down; 0 if omitted. PodDisruptionBudgets hold in addition, over
	// all clusters together. 100% moves at once.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^(100|[0-9]{1,2})%$')",message="must be a number, or a percentage from 0% to 100%"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// Soak is how long new replicas have to be available before old ones leave; 0s if omitted.
	// +optional
	Soak *metav1.Duration `json:"soak,omitempty"`
	// Deadline is how long a transition may wait without progress for replicas in the clusters that it goes
	// to; 10m if omitted.
	// +optional
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// OnFailure is what happens at the deadline; RollBack if omitted.
	// +optional
	OnFailure TransitionFailure `json:"onFailure,omitempty"`
	// Paused: no step is made while it is set.
	// +optional
	Paused *bool `json:"paused,omitempty"`
}

// TransitionFailure is what happens to a transition at its deadline.
// +kubebuilder:validation:Enum=RollBack;Wait
type TransitionFailure string

// Values of TransitionFailure.
const (
	// FailureRollsBack: the object goes back to the clusters that ran it, and avoids the others for a time.
	FailureRollsBack TransitionFailure = "RollBack"
	// FailureWaits: the object stays in both, and the transition goes on when the replicas are available.
	FailureWaits TransitionFailure = "Wait"
)

// ObjectTransition is the content of an object's TransitionAnnotation: settings that take precedence over those
// of policies, and requests.
type ObjectTransition struct {
	TransitionPolicy `json:",inline"`
	// Abort is the ID of a transition that a user aborted: the object goes back.
	// +optional
	Abort string `json:"abort,omitempty"`
	// Retry: clusters that were avoided before this time are tried again.
	// +optional
	Retry *metav1.Time `json:"retry,omitempty"`
}

// Transition has the facts about a transition that must survive a crash.
type Transition struct {
	// ID identifies the transition.
	ID string `json:"id"`
	// Cause of the transition, in CamelCase: see the Cause constants.
	Cause string `json:"cause"`
	// From is the decision that was in effect before. The object returns there if the transition fails.
	// +optional
	// +listType=map
	// +listMapKey=name
	From []ClusterShare `json:"from,omitempty"`
	// StartTime is when the transition began.
	StartTime metav1.Time `json:"startTime"`
	// ProgressTime is when its last step was made.
	ProgressTime metav1.Time `json:"progressTime"`
}

// Causes of a Transition.
const (
	// CauseMoved: the object's labels or its policy select other clusters.
	CauseMoved = "Moved"
	// CauseDrained: a cluster is drained.
	CauseDrained = "Drained"
	// CauseLeaving: a cluster leaves the fleet.
	CauseLeaving = "ClusterLeaving"
	// CauseTainted: a cluster has a taint that the object does not tolerate.
	CauseTainted = "Tainted"
	// CauseFailover: a cluster has been unreachable for too long.
	CauseFailover = "Failover"
	// CauseDegraded: the object was not Healthy in a cluster for too long, while the cluster was Ready.
	CauseDegraded = "Degraded"
	// CauseConsolidated: an earlier one of the policy's clusterGroups has room again.
	CauseConsolidated = "Consolidated"
	// CauseRebalanced: a user requested another division.
	CauseRebalanced = "Rebalanced"
	// CauseRolledBack: an earlier transition failed, or was aborted.
	CauseRolledBack = "RolledBack"
)

// TransitionStatus is how far a transition is.
type TransitionStatus struct {
	ID    string `json:"id"`
	Cause string `json:"cause"`
	// From and To are the decisions in readable form.
	// +optional
	From string `json:"from,omitempty"`
	// +optional
	To string `json:"to,omitempty"`
	// Phase: see the Phase constants.
	Phase TransitionPhase `json:"phase"`
	// WaitingFor is what the next step waits for.
	// +optional
	WaitingFor string `json:"waitingFor,omitempty"`
	// Since is when the phase or the reason to wait last changed.
	Since metav1.Time `json:"since"`
	// Paused: a user paused the transition.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// TransitionPhase is a part of a transition.
// +kubebuilder:validation:Enum=Growing;Waiting;Soaking;Shrinking;Paused;Failed
type TransitionPhase string

// The phases of a transition.
const (
	// PhaseGrowing: clusters get replicas.
	PhaseGrowing TransitionPhase = "Growing"
	// PhaseWaiting: the next step waits for replicas to be available, or to be gone.
	PhaseWaiting TransitionPhase = "Waiting"
	// PhaseSoaking: the replicas are available, but not for long enough.
	PhaseSoaking TransitionPhase = "Soaking"
	// PhaseShrinking: replicas leave clusters.
	PhaseShrinking TransitionPhase = "Shrinking"
	// PhasePaused: a user paused it.
	PhasePaused TransitionPhase = "Paused"
	// PhaseFailed: the deadline has passed, and onFailure is Wait.
	PhaseFailed TransitionPhase = "Failed"
)

// AvoidedCluster is a cluster that failed to run an object.
type AvoidedCluster struct {
	Name string `json:"name"`
	// Reason in CamelCase: see the Avoided constants.
	Reason string `json:"reason"`
	// Message explains it, and continues "the cluster …".
	Message string `json:"message"`
	// Time when the object failed there.
	Time metav1.Time `json:"time"`
	// Until is when the cluster may be tried again. If omitted, it is not before the object, the policy or a
	// label changes, or a user requests it.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Attempts that failed, one after the other.
	Attempts int32 `json:"attempts"`
	// ObjectGeneration is the object's generation then, and Selection identifies the policy and the label that
	// selected the cluster. With another one of either, the cluster may be tried again.
	// +optional
	ObjectGeneration int64 `json:"objectGeneration,omitempty"`
	// +optional
	Selection string `json:"selection,omitempty"`
}

// Reasons of an AvoidedCluster.
const (
	// AvoidedDeadline: a transition to it reached its deadline.
	AvoidedDeadline = "TransitionDeadlineExceeded"
	// AvoidedAborted: a user aborted the transition to it.
	AvoidedAborted = "TransitionAborted"
	// AvoidedDegraded: the object was not Healthy there for too long, while the cluster was Ready.
	AvoidedDegraded = "DegradedThere"
)

// FailbackPolicy is when objects return to a cluster that they left because it was unreachable.
type FailbackPolicy struct {
	// After is how long the cluster has to be Ready before.
	After metav1.Duration `json:"after"`
}

// BindingHome is where an object ran before clusters became unreachable.
type BindingHome struct {
	// Clusters with their shares.
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterShare `json:"clusters"`
	// Inputs of the decision: the object has another home when the policy or the clusters change.
	// +optional
	Inputs string `json:"inputs,omitempty"`
}

// FailoverRecord is one time that an object left a cluster that was unreachable, or in which it was not Healthy.
type FailoverRecord struct {
	Time metav1.Time `json:"time"`
	// Cluster that the object left.
	Cluster string `json:"cluster"`
	// Reason in CamelCase: that of the Cluster's condition Ready, or DegradedThere.
	Reason string `json:"reason"`
	// To are the clusters that took over, in readable form.
	// +optional
	To string `json:"to,omitempty"`
}

// MaxFailoverRecords is the most entries in a binding's failovers.
const MaxFailoverRecords = 5

// ClusterDrain empties a cluster: objects move to other clusters, those for which there is room, and no new
// ones are placed there.
type ClusterDrain struct {
	// Rate is how many objects a second begin to leave; 5 if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Rate *int32 `json:"rate,omitempty"`
	// MaxInFlight is how many objects leave at the same time; 10 if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxInFlight *int32 `json:"maxInFlight,omitempty"`
	// Paused: no further object begins to leave.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// ClusterFailover limits how fast objects leave a cluster that is unreachable.
type ClusterFailover struct {
	// Rate is how many objects a second move to other clusters; 10 if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Rate *int32 `json:"rate,omitempty"`
}

// Defaults of drains and failovers.
const (
	DefaultDrainRate        = 5
	DefaultDrainMaxInFlight = 10
	DefaultFailoverRate     = 10
)
