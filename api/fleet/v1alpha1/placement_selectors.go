package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
