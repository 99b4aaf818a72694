package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Placement is a policy for where and how objects of its namespace run.
//
// If several select an object, only the most specific one applies: name before labels before kind
// before whole namespace, and then the older one. Any Placement takes precedence over any
// ClusterPlacement.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pl,categories=fleet
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.conditions[?(@.type=="Active")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Placement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec PlacementSpec `json:"spec,omitempty"`
	// +optional
	Status PlacementStatus `json:"status,omitempty"`
}

// PlacementList is a list of Placements.
//
// +kubebuilder:object:root=true
type PlacementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Placement `json:"items"`
}

// ClusterPlacement is a policy for objects of any namespace, and for cluster-scoped objects. The
// one named "default" applies to every object that no other policy selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cpl,categories=fleet
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.conditions[?(@.type=="Active")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterPlacement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ClusterPlacementSpec `json:"spec,omitempty"`
	// +optional
	Status PlacementStatus `json:"status,omitempty"`
}

// ClusterPlacementList is a list of ClusterPlacements.
//
// +kubebuilder:object:root=true
type ClusterPlacementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterPlacement `json:"items"`
}

// DefaultPlacementName is the name of the ClusterPlacement for objects that no other policy
// selects.
const DefaultPlacementName = "default"

// ClusterPlacementSpec is a PlacementSpec for many namespaces.
//
// +kubebuilder:validation:XValidation:rule="!has(self.bounds) || !has(self.selector) || !(has(self.selector.kinds) || has(self.selector.names) || has(self.selector.labelSelector))",message="bounds apply to all objects of the namespaces: omit selector, or set bounds in a ClusterPlacement of their own"
type ClusterPlacementSpec struct {
	// NamespaceSelector selects namespaces by their labels. Without it, the policy applies to all
	// namespaces and to cluster-scoped objects.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// Bounds are the clusters that objects of the namespaces may use at all. No Placement, no label of an object and no
	// other policy leads to another cluster. Objects leave a cluster that is out of bounds. If several
	// ClusterPlacements have bounds for a namespace, a cluster has to be in all of them. An edit takes effect at once,
	// whatever changes says. A policy that has nothing else does not decide where objects run.
	// +optional
	Bounds *ClusterSelector `json:"bounds,omitempty"`

	PlacementSpec `json:",inline"`
}

// PlacementSpec is a policy. An empty policy equals the built-in default: every Ready and
// schedulable cluster, in the kind's default mode.
//
// +kubebuilder:validation:XValidation:rule="!has(self.division) || !has(self.mode) || self.mode == 'Divided'",message="division requires mode Divided: set mode to Divided or omit division"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterCount) || !has(self.mode) || self.mode != 'Single'",message="mode Single is one cluster: omit clusterCount, or choose another mode"
// +kubebuilder:validation:XValidation:rule="!has(self.spread) || !has(self.mode) || self.mode != 'Single'",message="mode Single is one cluster: omit spread, or choose another mode"
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusters) || !has(self.clusterGroups)",message="clusters and clusterGroups exclude each other"
// +kubebuilder:validation:XValidation:rule="!has(self.consolidation) || has(self.clusterGroups)",message="consolidation requires clusterGroups: set clusterGroups or omit consolidation"
type PlacementSpec struct {
	// Selector selects the objects of the policy. Empty selects all.
	// +optional
	Selector ObjectSelector `json:"selector,omitempty"`
	// Priority decides between policies of one kind that select the same object: the highest one
	// applies, whatever is more specific. Between equal ones the more specific one does, and then the
	// older one. A Placement applies before any ClusterPlacement.
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Clusters that may run them; all if omitted.
	// +optional
	Clusters *ClusterSelector `json:"clusters,omitempty"`
	// ClusterGroups are clusters in an order, instead of clusters: objects go to the first group, as far
	// as its clusters can take them, and then to the next. A cluster belongs to the first group that
	// selects it. Running replicas go back to an earlier group by themselves only with consolidation.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ClusterGroups []ClusterGroup `json:"clusterGroups,omitempty"`
	// Consolidation is when replicas in a later one of the clusterGroups go back to an earlier one that has room; never by
	// themselves if omitted.
	// +optional
	Consolidation *ConsolidationPolicy `json:"consolidation,omitempty"`
	// Affinity are preferences. They rank the clusters when an object goes to new clusters, and not
	// all are needed. Existing objects do not move because of a preference.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Affinity []ClusterPreference `json:"affinity,omitempty"`
	// WorkloadAffinity requires or prefers clusters that have certain other objects.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	WorkloadAffinity []WorkloadTerm `json:"workloadAffinity,omitempty"`
	// WorkloadAntiAffinity excludes or avoids clusters that have certain other objects.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	WorkloadAntiAffinity []WorkloadTerm `json:"workloadAntiAffinity,omitempty"`
	// Spread distributes over regions, zones or groups of another label. The first constraint is
	// applied first, and each following one within its result.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MaxItems=8
	Spread []SpreadConstraint `json:"spread,omitempty"`
	// ClusterCount is the number of clusters; all that qualify if omitted.
	// +optional
	ClusterCount *CountRange `json:"clusterCount,omitempty"`
	// Tolerations let objects go to, or stay in, clusters with taints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// Mode is how several clusters run one object; the kind's default if omitted.
	// +optional
	Mode PlacementMode `json:"mode,omitempty"`
	// Division is how replicas are divided; evenly if omitted.
	// +optional
	Division *ReplicaDivision `json:"division,omitempty"`
	// Capacity is whether the free room of clusters' nodes bounds their shares; Respect if omitted.
	// Replicas without room wait, with the reason. Ignore lets them wait in a cluster instead.
	// +optional
	Capacity CapacityPolicy `json:"capacity,omitempty"`
	// Overrides change objects for certain clusters. All that select a cluster apply, in this
	// order. A policy that has nothing else does not decide where objects run: it applies beside
	// the one that does.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overrides []OverridePolicy `json:"overrides,omitempty"`
	// Suspend keeps decisions from the clusters: nothing is written or deleted there while it is
	// set. Running objects keep running.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Configuration is where ConfigMaps, Secrets, Services and other configuration of the policy's
	// namespaces go; WithNamespace if omitted.
	// +optional
	Configuration ConfigurationScope `json:"configuration,omitempty"`
	// Dependencies is whether the ConfigMaps, accounts, types and other objects that an object needs go
	// where it runs; Follow if omitted. With Stay, the clusters have them already.
	// +optional
	Dependencies DependencyPolicy `json:"dependencies,omitempty"`
	// OnDeletion applies when the policy is deleted and no other but the default selects its objects:
	// Release (if omitted) places them by the default, Keep leaves them where they are.
	// +optional
	OnDeletion DeletionPolicy `json:"onDeletion,omitempty"`
	// Drift is how changes that are made in a cluster are handled.
	// +optional
	// +kubebuilder:default=Correct
	Drift DriftPolicy `json:"drift,omitempty"`
	// Transition is how objects get to other clusters.
	// +optional
	Transition *TransitionPolicy `json:"transition,omitempty"`
	// Failback is when objects return to a cluster that was unreachable; never by themselves if omitted.
	// +optional
	Failback *FailbackPolicy `json:"failback,omitempty"`
	// Fencing lets clusters that lose contact stop the replicas themselves, before others take them over.
	// +optional
	Fencing *FencingPolicy `json:"fencing,omitempty"`
	// ApplicationFailover is when an object leaves a cluster that is Ready and in which the object is not Healthy; never
	// if omitted.
	// +optional
	ApplicationFailover *ApplicationFailoverPolicy `json:"applicationFailover,omitempty"`
	// Changes is when an edit of the policy takes effect for the objects that it placed before; at once
	// if omitted. An edit of changes itself follows the rules that are in effect.
	// +optional
	Changes *PolicyChanges `json:"changes,omitempty"`
}

// ClusterGroup is a group in an order of groups.
type ClusterGroup struct {
	// Name of the group, for explanations.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name     string          `json:"name"`
	Clusters ClusterSelector `json:"clusters"`
}

// DependencyPolicy is whether dependencies follow.
// +kubebuilder:validation:Enum=Follow;Stay
type DependencyPolicy string

// Values of DependencyPolicy.
const (
	DependenciesFollow DependencyPolicy = "Follow"
	DependenciesStay   DependencyPolicy = "Stay"
)

// DeletionPolicy is where the objects of a deleted policy go.
// +kubebuilder:validation:Enum=Release;Keep
type DeletionPolicy string

// Values of DeletionPolicy.
const (
	DeletionReleases DeletionPolicy = "Release"
	DeletionKeeps    DeletionPolicy = "Keep"
)

// CapacityPolicy is whether free room bounds placement.
// +kubebuilder:validation:Enum=Respect;Ignore
type CapacityPolicy string

// Values of CapacityPolicy.
const (
	CapacityRespect CapacityPolicy = "Respect"
	CapacityIgnore  CapacityPolicy = "Ignore"
)

// PlacementMode is how several clusters run one object.
// +kubebuilder:validation:Enum=Duplicated;Divided;Single
type PlacementMode string

// The values of PlacementMode.
const (
	// ModeDuplicated: each cluster runs the whole object.
	ModeDuplicated PlacementMode = "Duplicated"
	// ModeDivided: the clusters share the replicas.
	ModeDivided PlacementMode = "Divided"
	// ModeSingle: one cluster runs it.
	ModeSingle PlacementMode = "Single"
)

// DriftPolicy is how changes that are made in a cluster are handled.
// +kubebuilder:validation:Enum=Correct;Report
type DriftPolicy string

// The values of DriftPolicy.
const (
	// DriftCorrect: the change is reverted.
	DriftCorrect DriftPolicy = "Correct"
	// DriftReport: the change stays, and the binding reports the difference.
	DriftReport DriftPolicy = "Report"
)

// PlacementStatus is whether a policy is valid, and which content of it is in effect.
type PlacementStatus struct {
	// Conditions: Accepted. If spec.changes is set, also Active.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Active is the content that is in effect for all objects that do not follow a later one. Without
	// it, the spec is in effect for all objects.
	// +optional
	Active *PolicyContent `json:"active,omitempty"`
	// Later are contents that some objects follow already, oldest first. All other objects follow them
	// later, or never if the spec changes before.
	// +optional
	// +listType=map
	// +listMapKey=generation
	// +kubebuilder:validation:MaxItems=8
	Later []PolicyContent `json:"later,omitempty"`
	// Step is the last step of an edit that takes effect in steps.
	// +optional
	Step *PolicyStep `json:"step,omitempty"`
}

// PlacementAccepted is the condition for whether a policy is valid and can have an effect. An invalid
// policy (for example an expression that does not compile) decides nothing: the objects that it
// selects stay where they are.
const PlacementAccepted = "Accepted"

// Reasons of the condition Accepted.
const (
	ReasonPolicyAccepted = "Accepted"
	ReasonPolicyInvalid  = "Invalid"
	// ReasonPolicyIneffective: it selects only kinds that it never places.
	ReasonPolicyIneffective = "NoSuchObjects"
)

// Home is where the controller works that keeps the status of custom resources.
type Home string

const (
	// HomeAbove: in the control plane. The objects go to no cluster.
	HomeAbove Home = "Above"
	// HomeMembers: in the clusters, where the objects go.
	HomeMembers Home = "Members"
)

// ConfigurationScope is where the configuration of a namespace goes.
// +kubebuilder:validation:Enum=WithNamespace;WhereNeeded
type ConfigurationScope string

const (
	// WithNamespace: to all clusters that run a workload of the namespace. Programs may read it through
	// the API, and what an operator creates there may use it.
	WithNamespace ConfigurationScope = "WithNamespace"
	// WhereNeeded: only to clusters that run an object that refers to it.
	WhereNeeded ConfigurationScope = "WhereNeeded"
)
