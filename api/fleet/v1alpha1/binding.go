package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ResourceBinding is the decision for one object: the clusters that run it, each with its share and
// the reason, and each cluster's report. The object itself is not copied. The binding exists beside
// it, in its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rb,categories=fleet
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.placed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Transition",type=string,JSONPath=`.status.transition.phase`
// +kubebuilder:printcolumn:name="Scheduled",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceBindingSpec `json:"spec"`
	// +optional
	Status ResourceBindingStatus `json:"status,omitempty"`
}

// ResourceBindingList is a list of ResourceBindings.
//
// +kubebuilder:object:root=true
type ResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceBinding `json:"items"`
}

// ClusterResourceBinding is the ResourceBinding of a cluster-scoped object, and is itself
// cluster-scoped. In memory there is one type for both: a ResourceBinding with an empty namespace.
// BindingResource returns the resource in the API.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=crb,categories=fleet
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.placed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Transition",type=string,JSONPath=`.status.transition.phase`
// +kubebuilder:printcolumn:name="Scheduled",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterResourceBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceBindingSpec `json:"spec"`
	// +optional
	Status ResourceBindingStatus `json:"status,omitempty"`
}

// ClusterResourceBindingList is a list of ClusterResourceBindings.
//
// +kubebuilder:object:root=true
type ClusterResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterResourceBinding `json:"items"`
}

// ResourceBindingSpec is the decision. The scheduler writes it.
type ResourceBindingSpec struct {
	Resource ObjectReference `json:"resource"`
	// Clusters are the clusters that run the object, as is in effect now.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterShare `json:"clusters,omitempty"`
	// Goal is the decision, while it is not reached yet. Clusters is changed step by step until it is
	// equal. Absent if it is.
	// +optional
	// +listType=map
	// +listMapKey=name
	Goal []ClusterShare `json:"goal,omitempty"`
	// Transition is set while there is a goal.
	// +optional
	Transition *Transition `json:"transition,omitempty"`
	// Avoided are clusters that failed to run the object.
	// +optional
	// +listType=map
	// +listMapKey=name
	Avoided []AvoidedCluster `json:"avoided,omitempty"`
	// Volumes are claims that go along to another cluster with the pods that mount them.
	// +optional
	// +listType=map
	// +listMapKey=claim
	// +kubebuilder:validation:MaxItems=32
	Volumes []VolumeTransfer `json:"volumes,omitempty"`
	// Home is where the object returns when clusters are reachable again.
	// +optional
	Home *BindingHome `json:"home,omitempty"`
	// Fencing is set if clusters that lose contact stop the replicas.
	// +optional
	Fencing *BindingFencing `json:"fencing,omitempty"`
	// RequiredBy are the objects that use this one and therefore determine where it runs: the first
	// MaxRequirers of them. Empty for an object that is placed by policy.
	// +listType=atomic
	RequiredBy []Requirer `json:"requiredBy,omitempty"`
	// ScaledBy is the autoscaler that sets the replicas in each cluster. The shares are then only
	// the initial values.
	// +optional
	ScaledBy *Requirer `json:"scaledBy,omitempty"`
	// WantedReplicas is how many replicas the users of an autoscaler or a disruption budget are to have in all
	// clusters together, while their shares add up to another number because of a transition.
	// +optional
	WantedReplicas int32 `json:"wantedReplicas,omitempty"`
	// Policy that applies, and the reason. Absent for followers.
	// +optional
	Policy *PolicyReference `json:"policy,omitempty"`
	// Adopted are policies whose edit this object follows while other objects still follow an earlier
	// content.
	// +optional
	// +listType=map
	// +listMapKey=uid
	Adopted []PolicyVersion `json:"adopted,omitempty"`
	// ObjectGeneration is the generation of the object when it was last decided. It is set only if a
	// policy with changes: Lazy selects the object.
	// +optional
	ObjectGeneration int64 `json:"objectGeneration,omitempty"`
	// Overrides that apply in some clusters. The shares reference them by position.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overrides []Override `json:"overrides,omitempty"`
	// Inputs identifies what the decision depended on, apart from replica counts and free room. While
	// it is the same, no replicas move just because there is room in another cluster.
	// +optional
	Inputs string `json:"inputs,omitempty"`
	// Preemption is the room that objects of lower priority make for this one while it waits.
	// +optional
	Preemption *Preemption `json:"preemption,omitempty"`
	// Dependencies is the policy's setting: with Stay, nothing that the object needs goes along.
	// +optional
	Dependencies DependencyPolicy `json:"dependencies,omitempty"`
	// Keep: the object stays where it is if the policy is deleted.
	// +optional
	Keep bool `json:"keep,omitempty"`
	// Suspend: syncers neither write nor delete the object.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Drift is how syncers handle changes that are made in a cluster; empty means Correct.
	// +optional
	Drift DriftPolicy `json:"drift,omitempty"`
	// RequestedRemovals are the clusters that the object leaves because a user deleted something,
	// and not because a decision changed. Syncers do not count these removals against their
	// deletion limit. An entry is written with the decision that drops the cluster, or when the
	// object is deleted. It is removed when the object has left the cluster, or the cluster is
	// chosen again. An object that stays only until its users have left has their entry before.
	// +optional
	// +listType=map
	// +listMapKey=name
	RequestedRemovals []RequestedRemoval `json:"requestedRemovals,omitempty"`
	// Manual is set if a SyncPolicy requires applied plans for changes of clusters.
	// +optional
	Manual *ManualBinding `json:"manual,omitempty"`
	// Approved is the digest of the proposal (in the status) that may be executed. It is written
	// when a plan is applied, and has no effect without manual.
	// +optional
	Approved string `json:"approved,omitempty"`
}

// ManualBinding is what the last applied plan allows.
type ManualBinding struct {
	// Content is the digest of the object that clusters may have. While the object here has another
	// digest, nothing is written to them.
	// +optional
	Content string `json:"content,omitempty"`
	// Labels of that object. A policy that selects by them applies until a plan allows the object without
	// them, so that no one leaves a policy in the change that it is about.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Removal: the object was deleted here, and may leave the clusters.
	// +optional
	Removal bool `json:"removal,omitempty"`
}

// RequestedRemoval is a removal from a cluster that a user requested.
type RequestedRemoval struct {
	// Name of the cluster.
	Name string `json:"name"`
	// Reason is what was deleted: see the Removal constants.
	Reason string `json:"reason"`
}

// Reasons of a RequestedRemoval.
const (
	// RemovalUsersDeleted: everything that needed the object in the cluster was deleted.
	RemovalUsersDeleted = "UsersDeleted"
	// RemovalObjectDeleted: the object itself was deleted, after or while a decision removed it
	// from the cluster.
	RemovalObjectDeleted = "ObjectDeleted"
	// RemovalTypeDeleted: its CustomResourceDefinition was deleted, and with it all objects.
	RemovalTypeDeleted = "TypeDeleted"
	// RemovalReplaced: other clusters have taken the object over since this one was unreachable, or the object was not
	// Healthy there, or gave it back after that. The syncer removes it only while they run it.
	RemovalReplaced = "Replaced"
)

// PolicyReference names the policy that applies to an object.
type PolicyReference struct {
	// Kind: Placement, ClusterPlacement, or Default if no policy applies.
	Kind string `json:"kind"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Why this policy applies, and whether a label overrides it.
	Why string `json:"why"`
}

// PolicyVersion is a policy at one generation.
type PolicyVersion struct {
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	Generation int64     `json:"generation"`
}

// PolicyDefault is the Kind of a PolicyReference if no policy applies.
const PolicyDefault = "Default"

// MaxRequirers is how many users a binding lists. A PriorityClass may have thousands. A binding
// that listed all of them would be written for each change.
const MaxRequirers = 20

// ObjectReference names an object in the binding's namespace, or a cluster-scoped one for a
// ClusterResourceBinding.
type ObjectReference struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	// Resource is the kind's name in URLs. With it, the object can be found in a cluster after its
	// type was deleted here.
	// +optional
	Resource string `json:"resource,omitempty"`
}

// GroupVersionKind returns the kind of the object.
func (r ObjectReference) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
}

// Requirer names an object that needs another one. It is in the binding's namespace unless
// Namespace is set.
type Requirer struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
}

// ClusterShare is one cluster's part of the decision.
type ClusterShare struct {
	Name string `json:"name"`
	// Replicas is the cluster's share; absent if the object is not divided.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// Reason why the cluster was chosen, in CamelCase.
	Reason string `json:"reason"`
	// Message explains the reason.
	// +optional
	Message string `json:"message,omitempty"`
	// OrdinalStart is the first ordinal of the share, for kinds with numbered replicas. The ranges
	// of clusters do not overlap.
	// +optional
	OrdinalStart *int32 `json:"ordinalStart,omitempty"`
	// Revision is another one whenever a step of a transition changes the share.
	// +optional
	Revision int32 `json:"revision,omitempty"`
	// Drain is set before a step of a transition makes the share smaller, if exported Services select the pods.
	// +optional
	Drain *EndpointDrain `json:"drain,omitempty"`
	// Overrides that apply in this cluster, as positions in the binding's overrides, in order.
	// +optional
	// +listType=atomic
	Overrides []int32 `json:"overrides,omitempty"`
}

// ResourceBindingStatus is the observed state of the decision. Each syncer owns its own entry of
// Clusters. The conditions belong to the controllers.
type ResourceBindingStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterState `json:"clusters,omitempty"`
	// Conditions: Scheduled, Applied, Healthy.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Placed lists the clusters in readable form.
	// +optional
	Placed string `json:"placed,omitempty"`
	// Ready is healthy/chosen clusters in readable form.
	// +optional
	Ready string `json:"ready,omitempty"`
	// Proposal is the change that waits for a plan; absent if there is no change, or if changes
	// need no plan.
	// +optional
	Proposal *BindingProposal `json:"proposal,omitempty"`
	// Transition is how far the transition to the goal is.
	// +optional
	Transition *TransitionStatus `json:"transition,omitempty"`
	// Consolidation is set while replicas in later ones of the policy's clusterGroups could run in earlier ones, if the
	// policy has spec.consolidation.
	// +optional
	Consolidation *ConsolidationStatus `json:"consolidation,omitempty"`
	// Failovers are the last times that the object left clusters that were unreachable, or in which it was not
	// Healthy, latest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=5
	Failovers []FailoverRecord `json:"failovers,omitempty"`
}

// BindingProposal is a decision that waits for a plan.
type BindingProposal struct {
	// Digest of the object and of the decision.
	Digest string `json:"digest"`
	// Object is the digest of the object alone; absent if the object is removed.
	// +optional
	Object string `json:"object,omitempty"`
	// Clusters of the proposed decision.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterShare `json:"clusters,omitempty"`
	// Content: the object's content differs from the clusters' content.
	// +optional
	Content bool `json:"content,omitempty"`
	// Remove: the object would leave all clusters.
	// +optional
	Remove bool `json:"remove,omitempty"`
	// Message summarizes the proposal.
	Message string `json:"message"`
}

// ClusterState is one cluster's report about the object. The entry is added before the object is
// first written to the cluster, and removed when the object is known to be gone. So a crash never
// leaves an unrecorded object.
type ClusterState struct {
	Name string `json:"name"`
	// UID of the object in the cluster; empty until it is applied.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Generation of the object in the control plane that the cluster runs.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Replicas that the cluster should run, if the object is divided.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// ShareRevision is the revision of the share that the cluster runs.
	// +optional
	ShareRevision int32 `json:"shareRevision,omitempty"`
	// MemberGeneration is the generation of the object in the cluster.
	// +optional
	MemberGeneration int64 `json:"memberGeneration,omitempty"`
	// ObservedGeneration is the generation that the cluster's controllers have acted on.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Health: Healthy, Progressing, Degraded or Unknown.
	Health Health `json:"health"`
	// UnhealthySince is since when the object is not Healthy with this generation and this share; absent while it is.
	// +optional
	UnhealthySince *metav1.Time `json:"unhealthySince,omitempty"`
	// WasHealthy: it was Healthy before that, with the same generation and share.
	// +optional
	WasHealthy bool `json:"wasHealthy,omitempty"`
	// Reason is set if there is a problem: see the State constants.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message explains the problem and its remedy.
	// +optional
	Message string `json:"message,omitempty"`
	// Applied identifies the last applied version, to distinguish changes in the cluster from
	// changes in the control plane.
	// +optional
	Applied string `json:"applied,omitempty"`
	// Status as the cluster reports it.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +mapType=atomic
	Status *runtime.RawExtension `json:"status,omitempty"`
	// Volumes are claims that come to the cluster, or leave it.
	// +optional
	// +listType=map
	// +listMapKey=claim
	// +kubebuilder:validation:MaxItems=32
	Volumes []VolumeReport `json:"volumes,omitempty"`
	// ClusterIPs are the addresses of a Service that was derived from a ServiceImport.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	ClusterIPs []string `json:"clusterIPs,omitempty"`
	// Drain is set from the announcement of a smaller share until its pods are gone, or it is called off.
	// +optional
	Drain *EndpointDrainReport `json:"drain,omitempty"`
	// LastUpdateTime is when anything in this entry last changed.
	LastUpdateTime metav1.Time `json:"lastUpdateTime"`
	// Stale is set while the cluster cannot be reached: all other fields are the last known state.
	// The status controller sets it, not the syncer.
	// +optional
	Stale *Staleness `json:"stale,omitempty"`
}

// Staleness is since when a report may be outdated, and why.
type Staleness struct {
	Since metav1.Time `json:"since"`
	// Reason of the Cluster's condition Ready.
	Reason string `json:"reason"`
}

// Health is the health of an object in one cluster.
// +kubebuilder:validation:Enum=Healthy;Progressing;Degraded;Unknown
type Health string

// The values of Health.
const (
	Healthy     Health = "Healthy"
	Progressing Health = "Progressing"
	Degraded    Health = "Degraded"
	Unknown     Health = "Unknown"
)

// Reasons in a ClusterState.
const (
	// StateApplying: the object is about to be written for the first time.
	StateApplying = "Applying"
	// StateConflict: an object of the same name exists, and does not belong to the fleet; or the namespace does, and is
	// not adopted.
	StateConflict = "Conflict"
	// StateApplyFailed: the cluster rejected the object or could not be reached.
	StateApplyFailed = "ApplyFailed"
	// StateForbidden: the identity that Atoll uses in the cluster lacks a permission there. Objects of other kinds are not
	// affected.
	StateForbidden = "Forbidden"
	// StateRemoving: the object is being deleted there, and not yet known to be gone. If it is still
	// wanted there, it is created again then.
	StateRemoving = "Removing"
	// StateHeld: the object is no longer wanted there. It is not removed until a user allows so
	// many deletions at once, or the deletion of what it contains.
	StateHeld = "RemovalHeld"
	// StateAwaitsReplacement: other clusters have taken the object over, and it is removed there when they
	// run it.
	StateAwaitsReplacement = "AwaitsReplacement"
	// StateDrifted: the object was changed there, and the policy is Report.
	StateDrifted = "Drifted"
	// StateContested: another client keeps reverting the object, so the syncer corrects it less and
	// less often.
	StateContested = "Contested"
	// StateUnwatched: the object is up to date, but the member allows no watch, so it is polled.
	StateUnwatched = "Unwatched"
	// StateSuspended: a policy suspends the object, or it waits for a plan, so nothing is written
	// there.
	StateSuspended = "Suspended"
)

// The conditions of a ResourceBinding.
const (
	BindingScheduled = "Scheduled"
	BindingApplied   = "Applied"
	BindingHealthy   = "Healthy"
)

// Share returns a cluster's part of the decision.
func (b *ResourceBinding) Share(cluster string) (ClusterShare, bool) {
	for _, c := range b.Spec.Clusters {
		if c.Name == cluster {
			return c, true
		}
	}
	return ClusterShare{}, false
}

// Decided returns the decision: the goal, or the clusters if no goal is set.
func (b *ResourceBinding) Decided() []ClusterShare {
	if b.Spec.Transition != nil {
		return b.Spec.Goal
	}
	return b.Spec.Clusters
}

// DecidedShare returns a cluster's part of Decided.
func (b *ResourceBinding) DecidedShare(cluster string) (ClusterShare, bool) {
	for _, c := range b.Decided() {
		if c.Name == cluster {
			return c, true
		}
	}
	return ClusterShare{}, false
}

// RequestedRemoval returns the entry of a cluster, if the removal from it was requested.
func (b *ResourceBinding) RequestedRemoval(cluster string) (RequestedRemoval, bool) {
	for _, r := range b.Spec.RequestedRemovals {
		if r.Name == cluster {
			return r, true
		}
	}
	return RequestedRemoval{}, false
}

// OverridesOf returns the overrides of a share, in the order in which they apply.
func (b *ResourceBinding) OverridesOf(share ClusterShare) []Override {
	var out []Override
	for _, i := range share.Overrides {
		if i >= 0 && int(i) < len(b.Spec.Overrides) {
			out = append(out, b.Spec.Overrides[i])
		}
	}
	return out
}

// State returns the report of a cluster.
func (b *ResourceBinding) State(cluster string) (ClusterState, bool) {
	for _, c := range b.Status.Clusters {
		if c.Name == cluster {
			return c, true
		}
	}
	return ClusterState{}, false
}

// Key returns the name of the binding. Without a namespace it is a ClusterResourceBinding.
func (b *ResourceBinding) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// ObjectName returns the name of the binding's object.
func (b *ResourceBinding) ObjectName() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
}

// BindingResource returns the resource for the bindings of a namespace's objects, or, with "", of
// cluster-scoped objects.
func BindingResource(namespace string) schema.GroupVersionResource {
	if namespace == "" {
		return ClusterResourceBindingResource
	}
	return ResourceBindingResource
}

// BindingKind returns the kind of BindingResource.
func BindingKind(namespace string) string {
	if namespace == "" {
		return "ClusterResourceBinding"
	}
	return "ResourceBinding"
}
