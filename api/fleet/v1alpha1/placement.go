package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
type ClusterPlacementSpec struct {
	// NamespaceSelector selects namespaces by their labels. Without it, the policy applies to all
	// namespaces and to cluster-scoped objects.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

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
	// selects it. Nothing moves back by itself.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ClusterGroups []ClusterGroup `json:"clusterGroups,omitempty"`
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
	// Changes is when an edit of the policy takes effect for the objects that it placed before; at once
	// if omitted. An edit of changes itself follows the rules that are in effect.
	// +optional
	Changes *PolicyChanges `json:"changes,omitempty"`
}

// PolicyChanges is when an edit of a policy takes effect.
//
// +kubebuilder:validation:XValidation:rule="!has(self.above) || self.apply == 'OnApproval'",message="above requires apply: OnApproval"
// +kubebuilder:validation:XValidation:rule="!has(self.objects) || self.apply == 'Staged'",message="objects requires apply: Staged"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || self.apply == 'Staged'",message="interval requires apply: Staged"
type PolicyChanges struct {
	// Apply is the rule: Immediate, Lazy, OnApproval or Staged.
	// +kubebuilder:default=Immediate
	Apply ChangeMode `json:"apply"`
	// Above is how many objects an edit may change without approval; 0 if omitted. An edit of changes
	// always waits for approval.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Above *int32 `json:"above,omitempty"`
	// Objects is how many objects each step changes; 10 if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Objects *int32 `json:"objects,omitempty"`
	// Interval is the minimum time between the starts of two steps; 30s if omitted.
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// Mode returns the rule; Immediate if c is nil.
func (c *PolicyChanges) Mode() ChangeMode {
	if c == nil || c.Apply == "" {
		return ChangeImmediate
	}
	return c.Apply
}

// Threshold returns how many objects an edit may change without approval.
func (c *PolicyChanges) Threshold() int {
	if c == nil || c.Above == nil {
		return 0
	}
	return int(*c.Above)
}

// StepSize returns how many objects each step changes.
func (c *PolicyChanges) StepSize() int {
	if c == nil || c.Objects == nil {
		return 10
	}
	return int(*c.Objects)
}

// StepInterval returns the minimum time between the starts of two steps.
func (c *PolicyChanges) StepInterval() time.Duration {
	if c == nil || c.Interval == nil {
		return 30 * time.Second
	}
	return c.Interval.Duration
}

// ChangeMode is when edits take effect.
// +kubebuilder:validation:Enum=Immediate;Lazy;OnApproval;Staged
type ChangeMode string

// Values of ChangeMode.
const (
	// ChangeImmediate: an edit takes effect at once.
	ChangeImmediate ChangeMode = "Immediate"
	// ChangeLazy: an object follows an edit when the object itself changes, or is rebalanced.
	ChangeLazy ChangeMode = "Lazy"
	// ChangeOnApproval: an edit takes effect when it is approved.
	ChangeOnApproval ChangeMode = "OnApproval"
	// ChangeStaged: an edit takes effect for some objects at a time.
	ChangeStaged ChangeMode = "Staged"
)

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

// ObjectSelector selects objects that match all of its fields.
type ObjectSelector struct {
	// Kinds: Deployment, or with the group Rollout.argoproj.io.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	Kinds []string `json:"kinds,omitempty"`
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// ClusterSelector selects clusters that match all of its fields.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.labelSelector) || has(self.fields) || has(self.expression)",message="set names, labelSelector, fields or expression; to select all clusters, omit the selector"
type ClusterSelector struct {
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`
	// LabelSelector selects by the labels of the Clusters.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Fields selects by other fields of the Clusters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Fields []FieldRequirement `json:"fields,omitempty"`
	// Expression is CEL over the variable cluster, which is the complete object:
	// cluster.status.nodes.ready >= 3. A cluster for which it cannot be evaluated (a missing field)
	// is not selected.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression,omitempty"`
}

// FieldRequirement compares one field of a Cluster.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['Exists', 'DoesNotExist']) != has(self.values)",message="Exists and DoesNotExist take no values; the other operators require values"
// +kubebuilder:validation:XValidation:rule="!(self.operator in ['Gt', 'Lt']) || !has(self.values) || size(self.values) == 1",message="Gt and Lt take one value"
type FieldRequirement struct {
	// Path with dots: status.version, spec.unschedulable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^(metadata|spec|status)(\.[A-Za-z0-9_-]+)+$`
	Path string `json:"path"`
	// Operator. Gt and Lt compare numbers, quantities (16Gi) and versions (v1.36.3).
	Operator FieldOperator `json:"operator"`
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Values []string `json:"values,omitempty"`
}

// FieldOperator compares a field with values.
// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
type FieldOperator string

// The values of FieldOperator.
const (
	FieldIn           FieldOperator = "In"
	FieldNotIn        FieldOperator = "NotIn"
	FieldExists       FieldOperator = "Exists"
	FieldDoesNotExist FieldOperator = "DoesNotExist"
	FieldGt           FieldOperator = "Gt"
	FieldLt           FieldOperator = "Lt"
)

// ClusterPreference is a preference with a weight.
type ClusterPreference struct {
	// Weight is added to the rank of the selected clusters; a negative weight avoids them.
	// +kubebuilder:validation:Minimum=-100
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:XValidation:rule="self != 0",message="a weight of 0 has no effect: set 1 to 100, or -100 to -1 to avoid clusters"
	Weight   int32           `json:"weight"`
	Clusters ClusterSelector `json:"clusters"`
}

// WorkloadTerm selects other objects: of the same namespace, if it names no other.
type WorkloadTerm struct {
	// LabelSelector selects the other objects, which must be placed by policy (not followers).
	LabelSelector metav1.LabelSelector `json:"labelSelector"`
	// Namespaces of the other objects. With a namespaceSelector, those that it selects count, too.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Namespaces []string `json:"namespaces,omitempty"`
	// NamespaceSelector selects the namespaces of the other objects by their labels; an empty one selects
	// all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// TopologyKey is a label of Clusters: clusters with the same value form a domain. If omitted,
	// each cluster is its own domain.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`
	// Weight makes the term a preference. Without a weight it is required for new clusters;
	// existing objects stay.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight *int32 `json:"weight,omitempty"`
}

// SpreadConstraint spreads over groups of clusters. Clusters without the label belong to no group
// and are not chosen.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minGroups) || !has(self.maxGroups) || self.minGroups <= self.maxGroups",message="minGroups is more than maxGroups"
type SpreadConstraint struct {
	// TopologyKey is a label of Clusters. region and zone are short for
	// topology.kubernetes.io/region and topology.kubernetes.io/zone.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
	// MinGroups is the required number of groups with a cluster that can take the object. Otherwise
	// it goes to no new cluster.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinGroups *int32 `json:"minGroups,omitempty"`
	// MaxGroups is the maximum number of groups.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxGroups *int32 `json:"maxGroups,omitempty"`
	// MaxSkew is the maximum difference in replicas (or in clusters, if replicas are not divided)
	// between two chosen groups, as far as the clusters' own limits allow.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxSkew *int32 `json:"maxSkew,omitempty"`
}

// The labels for region and zone in a TopologyKey.
const (
	TopologyRegion = "topology.kubernetes.io/region"
	TopologyZone   = "topology.kubernetes.io/zone"
)

// CountRange bounds a number of clusters.
//
// +kubebuilder:validation:XValidation:rule="has(self.min) || has(self.max)",message="set min, max or both"
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || self.min <= self.max",message="min is more than max"
type CountRange struct {
	// Min is the required number of clusters that can take the object. Otherwise it goes to no new
	// cluster.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Min *int32 `json:"min,omitempty"`
	// Max is the maximum number of clusters.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max *int32 `json:"max,omitempty"`
}

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

// ReplicaDivision is how replicas are divided among the chosen clusters.
//
// +kubebuilder:validation:XValidation:rule="(self.by == 'Weighted') == has(self.weights)",message="weights are required for by: Weighted, and not allowed otherwise"
// +kubebuilder:validation:XValidation:rule="!has(self.minPerCluster) || !has(self.maxPerCluster) || self.minPerCluster <= self.maxPerCluster",message="minPerCluster is more than maxPerCluster"
type ReplicaDivision struct {
	// +kubebuilder:default=Even
	By DivisionBy `json:"by"`
	// Weights of clusters. The first entry that selects a cluster is used. A cluster without one
	// has weight 0: it gets no replicas.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Weights []ClusterWeight `json:"weights,omitempty"`
	// MinPerCluster is the smallest share. Fewer clusters get a share if shares would be smaller.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinPerCluster *int32 `json:"minPerCluster,omitempty"`
	// MaxPerCluster is the largest share. Replicas without a cluster wait.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxPerCluster *int32 `json:"maxPerCluster,omitempty"`
}

// DivisionBy is the criterion for dividing replicas.
// +kubebuilder:validation:Enum=Even;Weighted;Capacity;Fewest
type DivisionBy string

// The values of DivisionBy.
const (
	// DivideEven: shares differ by at most one.
	DivideEven DivisionBy = "Even"
	// DivideWeighted: in proportion to the given weights.
	DivideWeighted DivisionBy = "Weighted"
	// DivideCapacity: new replicas are divided in proportion to free room. Existing replicas do not
	// move when the room changes.
	DivideCapacity DivisionBy = "Capacity"
	// DivideFewest: in as few clusters as have room for all. Existing replicas do not move.
	DivideFewest DivisionBy = "Fewest"
)

// ClusterWeight is the weight of the selected clusters.
type ClusterWeight struct {
	Clusters ClusterSelector `json:"clusters"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`
}

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

// PolicyContent is the content of a policy at one generation.
type PolicyContent struct {
	Generation int64 `json:"generation"`
	// Spec of the policy.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +mapType=atomic
	Spec runtime.RawExtension `json:"spec"`
}

// PolicyStep is one step of an edit.
type PolicyStep struct {
	// Generation of the policy that the objects of the step follow.
	Generation int64 `json:"generation"`
	// Number of the step, from 1.
	Number int32 `json:"number"`
	// StartTime is when the step began.
	StartTime metav1.Time `json:"startTime"`
}

// MaxLaterContents is how many contents a policy keeps beside the active one. Further edits wait.
const MaxLaterContents = 8

// PlacementActive is the condition for whether the latest edit is in effect for all objects.
const PlacementActive = "Active"

// Reasons of the condition Active.
const (
	ReasonPolicyActive = "Active"
	// ReasonAwaitsApproval: the edit has no effect until it is approved.
	ReasonAwaitsApproval = "AwaitsApproval"
	// ReasonInSteps: the edit takes effect in steps.
	ReasonInSteps = "InSteps"
	// ReasonStepUnhealthy: no step begins until all objects of the previous ones are Healthy.
	ReasonStepUnhealthy = "StepUnhealthy"
	// ReasonLazy: objects follow the edit when they change.
	ReasonLazy = "Lazy"
	// ReasonEditInvalid: the edit is invalid, and has no effect.
	ReasonEditInvalid = "EditInvalid"
	// ReasonTooManyContents: objects follow so many earlier contents that the edit waits.
	ReasonTooManyContents = "TooManyContents"
)

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
