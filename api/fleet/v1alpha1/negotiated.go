package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NegotiatedAPIResource is one version of a type that all clusters which have it can
// accept: what their schemas have in common. A person may set spec.publish; the
// fleet writes the rest.
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

// NegotiatedAPIResourceSpec is the type, and whether people can use it.
type NegotiatedAPIResourceSpec struct {
	CommonAPIResourceSpec `json:",inline"`

	// Publish says whether the control plane serves the type by a
	// CustomResourceDefinition. Where it says nothing the TypePolicy of the group
	// decides, and without one the type is not published.
	// +optional
	Publish *bool `json:"publish,omitempty"`
}

// NegotiatedAPIResourceStatus is what became of the type.
type NegotiatedAPIResourceStatus struct {
	// Conditions: Submitted, Published and Enforced.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Compatible counts the clusters that accept it out of those that have it, for
	// people.
	// +optional
	Compatible string `json:"compatible,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// The conditions of a NegotiatedAPIResource.
const (
	// NegotiatedSubmitted: a CustomResourceDefinition of it was applied.
	NegotiatedSubmitted = "Submitted"
	// NegotiatedPublished: the control plane serves it.
	NegotiatedPublished = "Published"
	// NegotiatedEnforced: a CustomResourceDefinition that a person made, or the control
	// plane itself, defines the type. Clusters are checked against it, and nothing
	// is negotiated.
	NegotiatedEnforced = "Enforced"
)

// Reasons of Submitted, Published and Enforced.
const (
	// ReasonPublished: the control plane serves the type.
	ReasonPublished = "Published"
	// ReasonNotRequested: nobody asked for it to be published.
	ReasonNotRequested = "NotRequested"
	// ReasonSubmitted: the CRD was applied, and is as it should be.
	ReasonSubmitted = "Submitted"
	// ReasonNotSubmitted: nothing was applied.
	ReasonNotSubmitted = "NotSubmitted"
	// ReasonNotEstablished: the CRD was applied, and is not served (yet).
	ReasonNotEstablished = "NotEstablished"
	// ReasonRefused: the control plane refused the CRD.
	ReasonRefused = "Refused"
	// ReasonNotConvertible: another version of the type is published, and objects
	// could not be read as both without losing something.
	ReasonNotConvertible = "NotConvertible"
	// ReasonObjectsExist: the type is not to be published any more, and stays since
	// objects of it exist.
	ReasonObjectsExist = "ObjectsExist"
	// ReasonUpdateWaits: what is published stays as it is, although something else is
	// negotiated: stored objects would lose fields, or versions would differ.
	ReasonUpdateWaits = "UpdateWaits"
	// ReasonEnforced: a person's CRD defines the type, or the control plane does.
	ReasonEnforced = "Enforced"
	// ReasonNegotiated: nobody but the clusters defines it.
	ReasonNegotiated = "Negotiated"
	// ReasonNotNegotiable: no two schemas of it could be reconciled, or none is known.
	ReasonNotNegotiable = "NotNegotiable"
	// ReasonReservedGroup: the group belongs to Kubernetes, so no CRD may define it.
	ReasonReservedGroup = "ReservedGroup"
)

// PublishedLabel ("true") on a CustomResourceDefinition of the control plane says
// that the fleet made it of NegotiatedAPIResources. One without it is somebody
// else's: it is enforced, and never changed or deleted.
const PublishedLabel = Group + "/published"
