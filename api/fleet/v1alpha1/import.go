package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIResourceImport is one version of a type as one cluster serves it. The fleet writes it. A user
// may set spec.schemaUpdateStrategy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=apiresourceimports,shortName=ari,categories=fleet
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.spec.location`
// +kubebuilder:printcolumn:name="API Group",type=string,JSONPath=`.spec.groupVersion.group`
// +kubebuilder:printcolumn:name="API Version",type=string,JSONPath=`.spec.groupVersion.version`
// +kubebuilder:printcolumn:name="API Resource",type=string,JSONPath=`.spec.plural`
// +kubebuilder:printcolumn:name="Compatible",type=string,JSONPath=`.status.conditions[?(@.type=="Compatible")].status`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Schema update strategy",type=string,JSONPath=`.status.schemaUpdateStrategy`,priority=1
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Compatible")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type APIResourceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec APIResourceImportSpec `json:"spec"`
	// +optional
	Status APIResourceImportStatus `json:"status,omitempty"`
}

// APIResourceImportList is a list of APIResourceImports.
//
// +kubebuilder:object:root=true
type APIResourceImportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []APIResourceImport `json:"items"`
}

// APIResourceImportSpec is the type as the cluster serves it.
type APIResourceImportSpec struct {
	CommonAPIResourceSpec `json:",inline"`

	// Location is the Cluster that serves the type.
	Location string `json:"location"`
	// SchemaUpdateStrategy is how far this import may change the negotiated type. If empty, the
	// TypePolicy of the group sets it; without one it is UpdateUnpublished.
	// +optional
	SchemaUpdateStrategy SchemaUpdateStrategy `json:"schemaUpdateStrategy,omitempty"`
	// Source is where the schema was read.
	// +optional
	Source SchemaSource `json:"source,omitempty"`
}

// SchemaSource is where a schema was read.
// +kubebuilder:validation:Enum=CustomResourceDefinition;OpenAPI
type SchemaSource string

// The values of SchemaSource.
const (
	// FromCRD: the cluster's own CustomResourceDefinition.
	FromCRD SchemaSource = "CustomResourceDefinition"
	// FromOpenAPI: the cluster's OpenAPI v3 document.
	FromOpenAPI SchemaSource = "OpenAPI"
)

// APIResourceImportStatus is the fleet's evaluation of the type.
type APIResourceImportStatus struct {
	// Conditions: Compatible and Available.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// SchemaUpdateStrategy is the effective strategy.
	// +optional
	SchemaUpdateStrategy SchemaUpdateStrategy `json:"schemaUpdateStrategy,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// The conditions of an APIResourceImport. Objects of the type can be placed in the cluster only if
// both are True.
const (
	// ImportCompatible: the cluster accepts every object that the negotiated type does.
	ImportCompatible = "Compatible"
	// ImportAvailable: the cluster serves the type.
	ImportAvailable = "Available"
)

// Reasons of Compatible.
const (
	// ReasonSchemaAccepted: the cluster accepts everything that the negotiated type accepts.
	ReasonSchemaAccepted = "SchemaAccepted"
	// ReasonSchemaIncompatible: the cluster does not accept everything, or it cannot be determined.
	// The message names the fields.
	ReasonSchemaIncompatible = "SchemaIncompatible"
	// ReasonSchemaUnreadable: the cluster's schema cannot be interpreted.
	ReasonSchemaUnreadable = "SchemaUnreadable"
	// ReasonVersionNotEnforced: a user's CRD defines the type without this version.
	ReasonVersionNotEnforced = "VersionNotEnforced"
)

// Reasons of Available.
const (
	// ReasonServed: the cluster serves it.
	ReasonServed = "Served"
	// ReasonNotServed: the cluster does not serve it any more.
	ReasonNotServed = "NotServed"
	// ReasonLastKnown: the cluster cannot be reached; its last known state is used.
	ReasonLastKnown = "LastKnown"
)
