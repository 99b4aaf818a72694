package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodDrainedAnnotation ("true") is on a pod in a cluster whose controller.kubernetes.io/pod-deletion-cost was set by the
// syncer. Without it the cost is a user's, and the syncer does not change it.
const PodDrainedAnnotation = Group + "/drained"

// MaxDrainedAddresses bounds the addresses in an EndpointDrainReport: a Service has at most so many endpoints in one cluster
// that others know.
const MaxDrainedAddresses = MaxExportedEndpoints

// EndpointDrain announces a smaller share. The pods that are about to stop leave the endpoints of exported Services first.
type EndpointDrain struct {
	// Replicas that stay; 0 if the object leaves the cluster.
	Replicas int32 `json:"replicas"`
	// OrdinalStart is the first ordinal that stays, for kinds with numbered replicas.
	// +optional
	OrdinalStart int32 `json:"ordinalStart,omitempty"`
	// Revision is another one whenever other replicas are to stay.
	Revision int32 `json:"revision"`
	// Since is when it was announced.
	Since metav1.Time `json:"since"`
}

// EndpointDrainReport is which endpoints a cluster takes out of exported Services.
type EndpointDrainReport struct {
	// Revision of the EndpointDrain, and the replicas that stay.
	Revision int32 `json:"revision"`
	Replicas int32 `json:"replicas"`
	// Addresses of the pods that are about to stop.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MaxLength=64
	Addresses []string `json:"addresses,omitempty"`
	// Message is why the pods are not known; then there are no addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
