package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NegotiatedAPIResource is one version of a type that all clusters with the type accept: the
// intersection of their schemas. A user may set spec.publish. The fleet writes the rest.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=negotiatedapiresources,shortName=nar,categories=fleet
// +kubebuilder:printcolumn:name="API Group",type=string,JSONPath=`.spec.groupVersion.group`
// +kubebuilder:printcolumn:name="API Version",type=string,JSONPath=`.spec.groupVersion.version`
// +kubebuilder:printcolumn:name="API Resource",type=string,JSONPath=`.spec.plural`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.compatible`
// +kubebuilder:printcolumn:name="Publish",type=boolean,JSONPath=`.spec.publish`,priority=1
// +kubebuilder:printcolumn:name="Published",type=string,JSONPath=`.status.conditions[?(@.type=="Published")].status`
// +kubebuilder:printcolumn:name="Enforced",type=string,JSONPath=`.status.conditions[?(@.type=="Enforced")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Published")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NegotiatedAPIResource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NegotiatedAPIResourceSpec `json:"spec"`
	// +optional
	Status NegotiatedAPIResourceStatus `json:"status,omitempty"`
}

// NegotiatedAPIResourceList is a list of NegotiatedAPIResources.
//
// +kubebuilder:object:root=true
type NegotiatedAPIResourceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NegotiatedAPIResource `json:"items"`
}

// NegotiatedAPIResourceSpec is the type, and whether it is published.
type NegotiatedAPIResourceSpec struct {
	CommonAPIResourceSpec `json:",inline"`

	// Publish is whether the control plane serves the type with a CustomResourceDefinition. If
	// empty, the TypePolicy of the group decides; without one the type is not published.
	// +optional
	Publish *bool `json:"publish,omitempty"`
}

// NegotiatedAPIResourceStatus is the observed state of the type.
type NegotiatedAPIResourceStatus struct {
	// Conditions: Submitted, Published and Enforced.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Compatible is accepting/serving clusters in readable form.
	// +optional
	Compatible string `json:"compatible,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// The conditions of a NegotiatedAPIResource.
const (
	// NegotiatedSubmitted: a CustomResourceDefinition of the type was applied.
	NegotiatedSubmitted = "Submitted"
	// NegotiatedPublished: the control plane serves the type.
	NegotiatedPublished = "Published"
	// NegotiatedEnforced: a user's CustomResourceDefinition, or the control plane itself, defines
	// the type. Clusters are checked against it, and nothing is negotiated.
	NegotiatedEnforced = "Enforced"
)

// Reasons of Submitted, Published and Enforced.
const (
	// ReasonPublished: the control plane serves the type.
	ReasonPublished = "Published"
	// ReasonNotRequested: publishing was not requested.
	ReasonNotRequested = "NotRequested"
	// ReasonSubmitted: the CRD was applied, and is up to date.
	ReasonSubmitted = "Submitted"
	// ReasonNotSubmitted: no CRD was applied.
	ReasonNotSubmitted = "NotSubmitted"
	// ReasonNotEstablished: the CRD was applied, and is not served yet.
	ReasonNotEstablished = "NotEstablished"
	// ReasonRefused: the control plane rejected the CRD.
	ReasonRefused = "Refused"
	// ReasonNotConvertible: another version of the type is published, and a conversion between the
	// two would lose data.
	ReasonNotConvertible = "NotConvertible"
	// ReasonObjectsExist: the type should no longer be published, and stays because it has objects.
	ReasonObjectsExist = "ObjectsExist"
	// ReasonUpdateWaits: the negotiated type has changed, and the published type stays. Stored
	// objects would lose fields, or versions would differ.
	ReasonUpdateWaits = "UpdateWaits"
	// ReasonEnforced: a user's CRD, or the control plane, defines the type.
	ReasonEnforced = "Enforced"
	// ReasonNegotiated: only the clusters define the type.
	ReasonNegotiated = "Negotiated"
	// ReasonNotNegotiable: the clusters' schemas cannot be reconciled, or none is known.
	ReasonNotNegotiable = "NotNegotiable"
	// ReasonReservedGroup: the group belongs to Kubernetes, so no CRD may define it.
	ReasonReservedGroup = "ReservedGroup"
)

// PublishedLabel ("true") on a CustomResourceDefinition of the control plane: the fleet generated
// it from NegotiatedAPIResources. One without the label belongs to another owner: it is enforced,
// and never changed or deleted.
const PublishedLabel = Group + "/published"

// PublishedTypesAnnotation, on such a CRD, has a digest of each version that the fleet applied. So
// later edits are not mistaken for the negotiated type.
const PublishedTypesAnnotation = Group + "/published-types"
