package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Placement says where objects of its namespace run, and how.
//
// Of several that select an object the most specific one decides alone: by name
// before by labels before by kind before whole namespace; then the older one. Any
// Placement comes before any ClusterPlacement.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pl,categories=fleet
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
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

// ClusterPlacement says the same for objects of any namespace, and for those
// that are in none. The one called "default" decides about whatever no other
// policy selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cpl,categories=fleet
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`,priority=1
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
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

// DefaultPlacementName is the name of the ClusterPlacement that decides about
// whatever no other policy selects.
const DefaultPlacementName = "default"

// ClusterPlacementSpec is a PlacementSpec for many namespaces.
type ClusterPlacementSpec struct {
	// NamespaceSelector chooses namespaces by their labels. Without it the policy
	// is for all namespaces and for objects that are in none.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	PlacementSpec `json:",inline"`
}

// PlacementSpec is a policy. An empty one is what holds without any: every Ready
// cluster that takes new work, in the mode that the kind has by default.
//
// +kubebuilder:validation:XValidation:rule="!has(self.division) || !has(self.mode) || self.mode == 'Divided'",message="division is for mode Divided: set mode to Divided or leave division out"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterCount) || !has(self.mode) || self.mode != 'Single'",message="mode Single is one cluster: leave clusterCount out, or choose another mode"
// +kubebuilder:validation:XValidation:rule="!has(self.spread) || !has(self.mode) || self.mode != 'Single'",message="mode Single is one cluster: leave spread out, or choose another mode"
type PlacementSpec struct {
	// Selector says which objects the policy is for. Empty selects all.
	// +optional
	Selector ObjectSelector `json:"selector,omitempty"`
	// Clusters that may run them; all if it is left out.
	// +optional
	Clusters *ClusterSelector `json:"clusters,omitempty"`
	// Affinity are preferences. They rank the clusters where not all of them are
	// wanted, when an object goes to a cluster that does not have it; what runs
	// somewhere does not move for a preference.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Affinity []ClusterPreference `json:"affinity,omitempty"`
	// WorkloadAffinity wants clusters where certain other objects are.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	WorkloadAffinity []WorkloadTerm `json:"workloadAffinity,omitempty"`
	// WorkloadAntiAffinity wants clusters where certain other objects are not.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	WorkloadAntiAffinity []WorkloadTerm `json:"workloadAntiAffinity,omitempty"`
	// Spread says over how many regions, zones or groups of another label the
	// clusters are to be spread. The first one is looked at first, the next one
	// within what that has chosen.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +kubebuilder:validation:MaxItems=8
	Spread []SpreadConstraint `json:"spread,omitempty"`
	// ClusterCount says how many clusters are wanted; all that may if it is left
	// out.
	// +optional
	ClusterCount *CountRange `json:"clusterCount,omitempty"`
	// Tolerations let objects go to, or stay in, clusters with taints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Tolerations []Toleration `json:"tolerations,omitempty"`
	// Mode says what several clusters make of one object. Left out, it is what
	// suits the kind.
	// +optional
	Mode PlacementMode `json:"mode,omitempty"`
	// Division says how replicas are divided; evenly if it is left out.
	// +optional
	Division *ReplicaDivision `json:"division,omitempty"`
	// Overrides change objects for certain clusters. All that select a cluster
	// apply, in this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Overrides []OverridePolicy `json:"overrides,omitempty"`
	// Suspend keeps whatever is decided from the clusters: nothing is written
	// there and nothing deleted until it is taken back. What runs, runs on.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Drift says what happens when somebody changes an object in a cluster.
	// +optional
	// +kubebuilder:default=Correct
	Drift DriftPolicy `json:"drift,omitempty"`
}

// ObjectSelector chooses objects: those that everything given here is true of.
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

// ClusterSelector chooses clusters: those that everything given here is true of.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.labelSelector) || has(self.fields) || has(self.expression)",message="give names, labelSelector, fields or expression; to choose all clusters leave the selector out"
type ClusterSelector struct {
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`
	// LabelSelector chooses by the labels of the Clusters.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// Fields chooses by what else stands in the Clusters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Fields []FieldRequirement `json:"fields,omitempty"`
	// Expression is CEL over the variable cluster, which is the whole object:
	// cluster.status.nodes.ready >= 3. A cluster for which it cannot be evaluated
	// (it has no such field) is not chosen.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression,omitempty"`
}

// FieldRequirement compares one field of a Cluster.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['Exists', 'DoesNotExist']) != has(self.values)",message="Exists and DoesNotExist take no values; the other operators need some"
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

// ClusterPreference is a preference of a certain weight.
type ClusterPreference struct {
	// Weight is added to the rank of clusters that are chosen here; a negative one
	// is for clusters to be avoided.
	// +kubebuilder:validation:Minimum=-100
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:XValidation:rule="self != 0",message="a weight of 0 does nothing: give 1 to 100, or -100 to -1 to avoid clusters"
	Weight   int32           `json:"weight"`
	Clusters ClusterSelector `json:"clusters"`
}

// WorkloadTerm is about other objects of the same namespace.
type WorkloadTerm struct {
	// LabelSelector chooses the other objects, which must be placed on their own
	// (not what merely follows).
	LabelSelector metav1.LabelSelector `json:"labelSelector"`
	// TopologyKey is a label of Clusters: clusters with the same value are together.
	// Left out, each cluster is by itself.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`
	// Weight makes a preference of it. Without one it must be so for a cluster to be
	// chosen anew; where the object is already, it stays.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight *int32 `json:"weight,omitempty"`
}

// SpreadConstraint spreads over groups of clusters. Clusters without the label
// are in no group, and not chosen.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minGroups) || !has(self.maxGroups) || self.minGroups <= self.maxGroups",message="minGroups is more than maxGroups"
type SpreadConstraint struct {
	// TopologyKey is a label of Clusters: region and zone stand for
	// topology.kubernetes.io/region and topology.kubernetes.io/zone.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
	// MinGroups must have a cluster that can take the object, or it goes nowhere
	// anew.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MinGroups *int32 `json:"minGroups,omitempty"`
	// MaxGroups are used at most.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxGroups *int32 `json:"maxGroups,omitempty"`
	// MaxSkew is how many replicas more (or, where they are not divided, clusters
	// more) one chosen group may have than another, as far as the clusters' own
	// bounds allow.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxSkew *int32 `json:"maxSkew,omitempty"`
}

// The labels that region and zone stand for in a TopologyKey.
const (
	TopologyRegion = "topology.kubernetes.io/region"
	TopologyZone   = "topology.kubernetes.io/zone"
)

// CountRange bounds a number of clusters.
//
// +kubebuilder:validation:XValidation:rule="has(self.min) || has(self.max)",message="give min, max or both"
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || self.min <= self.max",message="min is more than max"
type CountRange struct {
	// Min clusters must be able to take the object, or it goes nowhere anew.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Min *int32 `json:"min,omitempty"`
	// Max clusters are used.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Max *int32 `json:"max,omitempty"`
}

// PlacementMode says what several clusters make of one object.
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

// ReplicaDivision says how replicas are divided among the chosen clusters.
//
// +kubebuilder:validation:XValidation:rule="(self.by == 'Weighted') == has(self.weights)",message="weights go with by: Weighted"
// +kubebuilder:validation:XValidation:rule="!has(self.minPerCluster) || !has(self.maxPerCluster) || self.minPerCluster <= self.maxPerCluster",message="minPerCluster is more than maxPerCluster"
type ReplicaDivision struct {
	// +kubebuilder:default=Even
	By DivisionBy `json:"by"`
	// Weights of clusters; the first that selects a cluster counts, and a cluster
	// that none selects has weight 0: it gets no replicas.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Weights []ClusterWeight `json:"weights,omitempty"`
	// MinPerCluster is the smallest share: rather than smaller ones, fewer clusters
	// get one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinPerCluster *int32 `json:"minPerCluster,omitempty"`
	// MaxPerCluster is the largest share. Replicas that find no place wait.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxPerCluster *int32 `json:"maxPerCluster,omitempty"`
}

// DivisionBy says by what replicas are divided.
// +kubebuilder:validation:Enum=Even;Weighted;Capacity
type DivisionBy string

// The values of DivisionBy.
const (
	// DivideEven: shares differ by one at most.
	DivideEven DivisionBy = "Even"
	// DivideWeighted: in proportion to given weights.
	DivideWeighted DivisionBy = "Weighted"
	// DivideCapacity: new replicas go where there is room for them, in proportion
	// to it. What runs does not move because room has changed.
	DivideCapacity DivisionBy = "Capacity"
)

// ClusterWeight gives clusters a weight.
type ClusterWeight struct {
	Clusters ClusterSelector `json:"clusters"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`
}

// DriftPolicy says what happens when somebody changes an object in a cluster.
// +kubebuilder:validation:Enum=Correct;Report
type DriftPolicy string

// The values of DriftPolicy.
const (
	// DriftCorrect: it is put right.
	DriftCorrect DriftPolicy = "Correct"
	// DriftReport: it is left, and the binding says what differs.
	DriftReport DriftPolicy = "Report"
)

// PlacementStatus says whether a policy can be followed.
type PlacementStatus struct {
	// Conditions: Accepted.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PlacementAccepted is the condition of a policy that says whether it can be
// followed. One that cannot (an expression does not compile) decides nothing:
// objects that it selects stay where they are.
const PlacementAccepted = "Accepted"

// Reasons of the condition Accepted.
const (
	ReasonPolicyAccepted = "Accepted"
	ReasonPolicyInvalid  = "Invalid"
)
