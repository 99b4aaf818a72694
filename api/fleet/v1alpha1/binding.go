package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// ResourceBinding is the decision for one object: the clusters that run it, each
// with its share and the reason, and what each of them reports. The object
// itself is not copied; the binding stands beside it, in its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rb,categories=fleet
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.placed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
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

// ClusterResourceBinding is a ResourceBinding of an object that has no namespace,
// and like it has none. In memory there is one type for both: a ResourceBinding
// with an empty namespace; BindingResource says which of them that is in the API.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=crb,categories=fleet
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.placed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`
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
	// Clusters are those that run the object.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterShare `json:"clusters,omitempty"`
	// RequiredBy are the objects that use this one and therefore decide where it
	// goes: the first MaxRequirers of them. Empty for what is placed on its own.
	// +optional
	// +listType=atomic
	RequiredBy []Requirer `json:"requiredBy,omitempty"`
	// ScaledBy is what sets the number of replicas in each cluster (an autoscaler that
	// goes along), so that the shares are only what the object begins with there.
	// +optional
	ScaledBy *Requirer `json:"scaledBy,omitempty"`
	// Policy that decided, and why this one. Absent for what merely follows.
	// +optional
	Policy *PolicyReference `json:"policy,omitempty"`
	// Overrides that apply in some clusters; the shares say which, by position.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overrides []Override `json:"overrides,omitempty"`
	// Suspend: the syncers neither write nor delete the object.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Drift says what the syncers do about changes that somebody makes in a cluster;
	// empty is Correct.
	// +optional
	Drift DriftPolicy `json:"drift,omitempty"`
	// RequestedRemovals are the clusters that the object is to leave because of what
	// somebody deleted, and not because a decision changed: syncers count only the
	// others before they remove much at once. An entry is written with the decision that
	// no longer names the cluster, or when the object is gone, and lasts until the
	// object has left the cluster or the cluster is chosen again.
	// +optional
	// +listType=map
	// +listMapKey=name
	RequestedRemovals []RequestedRemoval `json:"requestedRemovals,omitempty"`
	// Manual is there where a SyncPolicy wants clusters to be changed by applied plans only.
	// +optional
	Manual *ManualBinding `json:"manual,omitempty"`
	// Approved is the digest of the proposal, in the status, that may be carried out. Whoever
	// applies a plan writes it; it means nothing without manual.
	// +optional
	Approved string `json:"approved,omitempty"`
}

// ManualBinding is what the plan allowed that was applied last.
type ManualBinding struct {
	// Content is the digest of the object that clusters may have. While the object here is
	// another one, nothing is written to them.
	// +optional
	Content string `json:"content,omitempty"`
	// Removal says that the object may leave them, since it was deleted here.
	// +optional
	Removal bool `json:"removal,omitempty"`
}

// RequestedRemoval says that an object leaves a cluster on somebody's request.
type RequestedRemoval struct {
	// Name of the cluster.
	Name string `json:"name"`
	// Reason says what was deleted: see the Removal constants.
	Reason string `json:"reason"`
}

// Reasons of a RequestedRemoval.
const (
	// RemovalUsersDeleted: all that needed the object in the cluster was deleted.
	RemovalUsersDeleted = "UsersDeleted"
	// RemovalObjectDeleted: the object itself was, after a decision had taken it out of
	// the cluster, or while it was being taken out.
	RemovalObjectDeleted = "ObjectDeleted"
	// RemovalTypeDeleted: its CustomResourceDefinition was, which deletes all objects.
	RemovalTypeDeleted = "TypeDeleted"
)

// PolicyReference names what decided about an object.
type PolicyReference struct {
	// Kind: Placement, ClusterPlacement, or Default for what holds without any.
	Kind string `json:"kind"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Why this policy and no other, and what a label decided instead of it.
	Why string `json:"why"`
}

// PolicyDefault is the Kind of a PolicyReference where no policy is concerned.
const PolicyDefault = "Default"

// MaxRequirers is how many users a binding names. A PriorityClass may have
// thousands; a binding that listed them all would be written with each.
const MaxRequirers = 20

// ObjectReference names one object of the binding's namespace, or if the binding
// has none, one without.
type ObjectReference struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
	// Resource is the kind's name in URLs, so that the object can be found in a
	// cluster when nobody here knows its type any more.
	// +optional
	Resource string `json:"resource,omitempty"`
}

// GroupVersionKind gives the kind of the object.
func (r ObjectReference) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(r.APIVersion, r.Kind)
}

// Requirer names an object that needs another, in the binding's namespace unless
// it says which.
type Requirer struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
}

// ClusterShare is one cluster's part of the decision.
type ClusterShare struct {
	Name string `json:"name"`
	// Replicas is the cluster's share; absent for kinds that are not divided.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// Reason says why the cluster was chosen, for machines.
	Reason string `json:"reason"`
	// Message says the same in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// OrdinalStart is the first ordinal of the share, of kinds whose replicas are
	// numbered. Ranges of clusters do not overlap.
	// +optional
	OrdinalStart *int32 `json:"ordinalStart,omitempty"`
	// Overrides are the positions, in the binding's overrides, of those that apply
	// here, in order.
	// +optional
	// +listType=atomic
	Overrides []int32 `json:"overrides,omitempty"`
}

// ResourceBindingStatus is what became of the decision. Each syncer owns its own
// entry of Clusters; the conditions belong to the controllers.
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
	// Placed lists the clusters, for people.
	// +optional
	Placed string `json:"placed,omitempty"`
	// Ready counts healthy clusters out of those chosen, for people.
	// +optional
	Ready string `json:"ready,omitempty"`
	// Proposal is what would be changed if a plan allowed it; absent if there is nothing to
	// change, or nothing that has to be allowed.
	// +optional
	Proposal *BindingProposal `json:"proposal,omitempty"`
}

// BindingProposal is a decision that waits for a plan.
type BindingProposal struct {
	// Digest of the object and of the decision.
	Digest string `json:"digest"`
	// Object is the digest of the object alone; absent if it is removed.
	// +optional
	Object string `json:"object,omitempty"`
	// Clusters as the decision would have them.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterShare `json:"clusters,omitempty"`
	// Content says that the object is not the one that clusters have.
	// +optional
	Content bool `json:"content,omitempty"`
	// Remove says that the object would leave all clusters.
	// +optional
	Remove bool `json:"remove,omitempty"`
	// Message says it in a sentence.
	Message string `json:"message"`
}

// ClusterState is what one cluster reports of the object. An entry exists from
// before the object is first written to the cluster until it is known to be gone
// from there; so whatever crashes, nothing is left behind unknown.
type ClusterState struct {
	Name string `json:"name"`
	// UID of the object in the cluster; empty until it was applied.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// Generation of the object in the control plane that the cluster runs.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Replicas that were asked of the cluster, for kinds that are divided.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// MemberGeneration is the generation of the object in the cluster.
	// +optional
	MemberGeneration int64 `json:"memberGeneration,omitempty"`
	// ObservedGeneration is what the cluster's controllers have acted on.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Health: Healthy, Progressing, Degraded or Unknown.
	Health Health `json:"health"`
	// Reason is set when something stands in the way: see the StateReason constants.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message says what stands in the way and what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
	// Applied identifies what was applied last, so that a change of it there can be
	// told from a change of it here.
	// +optional
	Applied string `json:"applied,omitempty"`
	// Status as the cluster reports it.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +mapType=atomic
	Status *runtime.RawExtension `json:"status,omitempty"`
	// LastUpdateTime is when anything in this entry last changed.
	LastUpdateTime metav1.Time `json:"lastUpdateTime"`
	// Stale is set while the cluster cannot be asked: everything else in this entry
	// is what was last known. The status controller sets it, not the syncer.
	// +optional
	Stale *Staleness `json:"stale,omitempty"`
}

// Staleness says since when a report may be outdated, and why.
type Staleness struct {
	Since metav1.Time `json:"since"`
	// Reason is that of the Cluster's condition Ready.
	Reason string `json:"reason"`
}

// Health is how an object fares in one cluster.
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
	// StateApplying: about to be written for the first time.
	StateApplying = "Applying"
	// StateConflict: an object that is not the fleet's has the name.
	StateConflict = "Conflict"
	// StateApplyFailed: the cluster refused it or could not be asked.
	StateApplyFailed = "ApplyFailed"
	// StateRemoving: no longer wanted there, and not yet known to be gone.
	StateRemoving = "Removing"
	// StateHeld: no longer wanted there, and not removed before somebody has said
	// that so much may be removed at once, or that what it holds may go with it.
	StateHeld = "RemovalHeld"
	// StateDrifted: somebody changed it there, and the policy is to say so only.
	StateDrifted = "Drifted"
	// StateContested: somebody there keeps changing it back, so it is put right ever
	// more slowly.
	StateContested = "Contested"
	// StateUnwatched: it is as it should be, but changes of it there are not told, so
	// it is only looked at now and then.
	StateUnwatched = "Unwatched"
	// StateSuspended: a policy suspends it, or it waits for a plan, so nothing is written there.
	StateSuspended = "Suspended"
)

// The conditions of a ResourceBinding.
const (
	BindingScheduled = "Scheduled"
	BindingApplied   = "Applied"
	BindingHealthy   = "Healthy"
)

// Share gives the part of the decision that concerns a cluster.
func (b *ResourceBinding) Share(cluster string) (ClusterShare, bool) {
	for _, c := range b.Spec.Clusters {
		if c.Name == cluster {
			return c, true
		}
	}
	return ClusterShare{}, false
}

// RequestedRemoval tells whether the object's leaving a cluster was asked for.
func (b *ResourceBinding) RequestedRemoval(cluster string) (RequestedRemoval, bool) {
	for _, r := range b.Spec.RequestedRemovals {
		if r.Name == cluster {
			return r, true
		}
	}
	return RequestedRemoval{}, false
}

// OverridesOf gives the overrides of a share, in the order in which they apply.
func (b *ResourceBinding) OverridesOf(share ClusterShare) []Override {
	var out []Override
	for _, i := range share.Overrides {
		if i >= 0 && int(i) < len(b.Spec.Overrides) {
			out = append(out, b.Spec.Overrides[i])
		}
	}
	return out
}

// State gives what a cluster reports.
func (b *ResourceBinding) State(cluster string) (ClusterState, bool) {
	for _, c := range b.Status.Clusters {
		if c.Name == cluster {
			return c, true
		}
	}
	return ClusterState{}, false
}

// Key names the binding: without a namespace it is a ClusterResourceBinding.
func (b *ResourceBinding) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
}

// ObjectName names the object that the binding is about.
func (b *ResourceBinding) ObjectName() types.NamespacedName {
	return types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}
}

// BindingResource gives the resource that the bindings of a namespace's objects
// are, or with "" those of objects without a namespace.
func BindingResource(namespace string) schema.GroupVersionResource {
	if namespace == "" {
		return ClusterResourceBindingResource
	}
	return ResourceBindingResource
}

// BindingKind gives the kind that goes with BindingResource.
func BindingKind(namespace string) string {
	if namespace == "" {
		return "ClusterResourceBinding"
	}
	return "ResourceBinding"
}
