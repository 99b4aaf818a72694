package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceInterpretation teaches the fleet a kind: how its objects run in several
// clusters, what they need, how they fare, and how the statuses of the clusters
// become one. What it leaves out stays as it was: by the table for built-in kinds,
// by conventions for others.
//
// Expressions are in CEL. In all of them self is the object: as the cluster has it
// in health, else as the control plane has it. What an expression may cost is
// limited, and it sees nothing but its variables. Try one out with
// `atoll interpret -f FILE --interpretation FILE`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=resourceinterpretations,categories=fleet
// +kubebuilder:printcolumn:name="API Version",type=string,JSONPath=`.spec.target.apiVersion`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.target.kind`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceInterpretation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceInterpretationSpec `json:"spec"`
	// +optional
	Status ResourceInterpretationStatus `json:"status,omitempty"`
}

// ResourceInterpretationList is a list of ResourceInterpretations.
//
// +kubebuilder:object:root=true
type ResourceInterpretationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceInterpretation `json:"items"`
}

// ResourceInterpretationSpec is what is taught.
type ResourceInterpretationSpec struct {
	// Target is the kind. Of several that teach one kind, the oldest counts.
	Target InterpretationTarget `json:"target"`
	// Mode is how objects of the kind run unless a policy says otherwise: Duplicated
	// (whole, in each chosen cluster), Divided (the clusters share the replicas) or
	// Single (whole, in one cluster).
	// +optional
	// +kubebuilder:validation:Enum=Duplicated;Divided;Single
	Mode string `json:"mode,omitempty"`
	// Replicas says where the replica count is, which makes the kind divisible.
	// +optional
	Replicas *InterpretedReplicas `json:"replicas,omitempty"`
	// Pods says which pods objects of the kind make, for the Services, budgets and
	// network policies that select them.
	// +optional
	Pods *InterpretedPods `json:"pods,omitempty"`
	// Needs gives the objects that have to be where self is, as a list of
	// {'kind': 'Secret', 'name': self.spec.secretName}. Kinds outside the core group
	// say 'group'; 'namespace' is that of self unless it is given, and '' for kinds
	// that have none.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Needs string `json:"needs,omitempty"`
	// Follows gives what self goes along with, in the same form, or with
	// {'pods': {'app': 'web'}} all workloads of its namespace whose pods have these
	// labels. A kind that follows is not placed by itself.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Follows string `json:"follows,omitempty"`
	// Retain lists fields that each cluster decides for itself, such as
	// .spec.clusterIP or .spec.listeners[*].nodePort: they are not sent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	Retain []string `json:"retain,omitempty"`
	// Health gives 'Healthy', 'Progressing', 'Degraded' or 'Unknown', or a map with
	// that as 'health' and the reason as 'message'.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Health string `json:"health,omitempty"`
	// Finished tells whether self has done its work for good, so that no other
	// cluster should begin it again.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Finished string `json:"finished,omitempty"`
	// Status says how fields of the statuses become one. Fields that are not named
	// are summarised by convention.
	// +optional
	// +listType=map
	// +listMapKey=field
	// +kubebuilder:validation:MaxItems=64
	Status []InterpretedField `json:"status,omitempty"`
}

// InterpretationTarget names a kind.
type InterpretationTarget struct {
	// APIVersion is the group and version of the kind. Its other versions are meant too.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
}

// GroupKind gives the kind without its version.
func (t InterpretationTarget) GroupKind() schema.GroupKind {
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).GroupKind()
}

// InterpretedReplicas says where a replica count is.
type InterpretedReplicas struct {
	// Path is the field that a cluster's share is written to: .spec.replicas.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// Count gives the whole count, where that is not what stands at the path.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Count string `json:"count,omitempty"`
}

// InterpretedPods says which pods objects of a kind make.
type InterpretedPods struct {
	// Template is the path of a pod template, such as .spec.template: what its pods
	// name is needed, and its labels are theirs.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Template string `json:"template,omitempty"`
	// Labels gives the labels of the pods where there is no template that has them.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Labels string `json:"labels,omitempty"`
}

// InterpretedField says how one field of status is summarised.
//
// +kubebuilder:validation:XValidation:rule="has(self.merge) != has(self.expression)",message="give either merge or expression"
type InterpretedField struct {
	// Field is the path in status: readyReplicas, or loadBalancer.ingress.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Field string `json:"field"`
	// Merge takes what the clusters report: Sum, Min, Max (of numbers; Min and Max also
	// of times), First (of the first cluster that has it), Concat (of lists, one after
	// the other), Agreed (what all say alike).
	// +optional
	// +kubebuilder:validation:Enum=Sum;Min;Max;First;Concat;Agreed
	Merge string `json:"merge,omitempty"`
	// Expression gives the value; null leaves the field out. members is the list of
	// what the clusters report: each with cluster, replicas (null if it runs the
	// whole), current (it has acted on the latest change), stale (it does not answer)
	// and status ({} if none).
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression,omitempty"`
}

// ResourceInterpretationStatus says whether it is understood.
type ResourceInterpretationStatus struct {
	// Conditions: Valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// InterpretationValid is the condition of a ResourceInterpretation: all of it is
// understood, and it is what counts for its kind.
const InterpretationValid = "Valid"

// Reasons of the condition Valid.
const (
	// InterpretationUnderstood: what it teaches is in use.
	InterpretationUnderstood = "Understood"
	// InterpretationInvalid: an expression or a path is wrong. Nothing of it is in use.
	InterpretationInvalid = "Invalid"
	// InterpretationDuplicate: an older one teaches the same kind.
	InterpretationDuplicate = "Duplicate"
)
