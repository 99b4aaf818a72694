package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PlanChanges is a stored piece of a plan's changes. Clients read it through the plan's subresource changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,path=planchanges,singular=planchanges
// +kubebuilder:printcolumn:name="Plan",type=string,JSONPath=`.spec.plan`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PlanChanges struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PlanPieceSpec `json:"spec"`
}

// PlanChangesList is a list of PlanChanges.
//
// +kubebuilder:object:root=true
type PlanChangesList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlanChanges `json:"items"`
}

// PlanSecrets is a stored piece of the data that an apply needs, including all secrets. Like ResourceState it
// is a kind of its own, so that reading it requires a separate right.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,path=plansecrets,singular=plansecrets
// +kubebuilder:printcolumn:name="Plan",type=string,JSONPath=`.spec.plan`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PlanSecrets struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PlanPieceSpec `json:"spec"`
}

// PlanSecretsList is a list of PlanSecrets.
//
// +kubebuilder:object:root=true
type PlanSecretsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlanSecrets `json:"items"`
}

// PlanPieceSpec is a piece of a chunk of a plan.
type PlanPieceSpec struct {
	// Plan of this namespace.
	Plan string `json:"plan"`
	// Chunk and Piece of it, counted from 0.
	// +kubebuilder:validation:Minimum=0
	Chunk int32 `json:"chunk"`
	// +kubebuilder:validation:Minimum=0
	Piece int32 `json:"piece"`
	// Content is compressed data in base64. The schema omits that format, because its validation would take
	// the API server longer than everything else it does with a piece, and readers detect errors.
	// +kubebuilder:validation:Format=""
	Content []byte `json:"content"`
}
