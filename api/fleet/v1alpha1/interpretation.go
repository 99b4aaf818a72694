package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ResourceInterpretation customizes how the fleet interprets a kind: how its objects run in several
// clusters, what they need, their health, and how the clusters' statuses become one. Fields that
// are not set keep their defaults: by the built-in table for built-in kinds, and by conventions for
// others.
//
// Expressions are in CEL. In all of them self is the object: the cluster's object in health, and
// the control plane's in all others. The cost of an expression is limited, and it can read only its
// variables. Try one out with `atoll interpret -f FILE --interpretation FILE`.
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

// ResourceInterpretationSpec is a customization of one kind.
//
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('InterpretReplica' in self.webhook.operations) || !has(self.replicas) || !has(self.replicas.count)",message="webhook.operations has InterpretReplica, and replicas.count is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('ReviseReplica' in self.webhook.operations) || !has(self.replicas)",message="webhook.operations has ReviseReplica, and replicas is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('InterpretComponent' in self.webhook.operations) || !has(self.components)",message="webhook.operations has InterpretComponent, and components is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('Retain' in self.webhook.operations) || !has(self.retain)",message="webhook.operations has Retain, and retain is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('AggregateStatus' in self.webhook.operations) || !has(self.status)",message="webhook.operations has AggregateStatus, and status is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('InterpretHealth' in self.webhook.operations) || !has(self.health)",message="webhook.operations has InterpretHealth, and health is set: remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.webhook) || !('InterpretDependency' in self.webhook.operations) || !has(self.needs)",message="webhook.operations has InterpretDependency, and needs is set: remove one of them"
type ResourceInterpretationSpec struct {
	// Target is the kind. If several target one kind, the oldest is used.
	Target InterpretationTarget `json:"target"`
	// Mode is how objects of the kind run unless a policy says otherwise: Duplicated
	// (whole, in each chosen cluster), Divided (the clusters share the replicas) or
	// Single (whole, in one cluster).
	// +optional
	// +kubebuilder:validation:Enum=Duplicated;Divided;Single
	Mode string `json:"mode,omitempty"`
	// Replicas is where the replica count is, which makes the kind divisible.
	// +optional
	Replicas *InterpretedReplicas `json:"replicas,omitempty"`
	// Pods describes the pods that objects of the kind create, for the Services, budgets and
	// network policies that select them.
	// +optional
	Pods *InterpretedPods `json:"pods,omitempty"`
	// Components returns the parts of an object that its operator makes, as a list of {'name': 'worker',
	// 'replicas': 3, 'template': self.spec.worker.template}. Instead of a pod template, 'requests' may be
	// the requests of one pod: {'cpu': '1', 'memory': '2Gi'}. The object runs in one cluster that has room
	// for all, unless mode or a policy is Duplicated.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Components string `json:"components,omitempty"`
	// Needs returns the objects that have to be where self is, as a list of {'kind': 'Secret',
	// 'name': self.spec.secretName}. Kinds outside the core group need 'group'. 'namespace'
	// defaults to that of self, and is '' for cluster-scoped kinds.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Needs string `json:"needs,omitempty"`
	// Follows returns the objects that self follows, in the same form. {'pods': {'app': 'web'}}
	// stands for all workloads of its namespace whose pods have these labels. A kind that follows
	// is not placed by policy.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Follows string `json:"follows,omitempty"`
	// Retain lists fields that each cluster sets itself, such as .spec.clusterIP or
	// .spec.listeners[*].nodePort: they are not sent.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	Retain []string `json:"retain,omitempty"`
	// Health returns 'Healthy', 'Progressing', 'Degraded' or 'Unknown', or a map with that as
	// 'health' and the reason as 'message'.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Health string `json:"health,omitempty"`
	// Finished returns whether self has completed its work for good, so that no other cluster
	// should start it again.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Finished string `json:"finished,omitempty"`
	// Status is how fields of the clusters' statuses become one. Fields that are not listed are
	// aggregated by convention.
	// +optional
	// +listType=map
	// +listMapKey=field
	// +kubebuilder:validation:MaxItems=64
	Status []InterpretedField `json:"status,omitempty"`
	// Webhook answers the questions for which there is no field above. A question that is not
	// answered yet changes nothing: counts, shares, needs and statuses stay, and the health is Unknown.
	// +optional
	Webhook *InterpretationWebhook `json:"webhook,omitempty"`
}

// InterpretationTarget names a kind.
type InterpretationTarget struct {
	// APIVersion is the group and version of the kind. All versions of the kind are targeted.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
}

// GroupKind returns the kind without its version.
func (t InterpretationTarget) GroupKind() schema.GroupKind {
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).GroupKind()
}

// InterpretedReplicas is where a replica count is.
type InterpretedReplicas struct {
	// Path is the field that a cluster's share is written to: .spec.replicas.
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// Count returns the total count, if it is not the value at the path.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Count string `json:"count,omitempty"`
}

// InterpretedPods describes the pods that objects of a kind create.
type InterpretedPods struct {
	// Template is the path of a pod template, such as .spec.template. Objects that its pods
	// reference are needed, and its labels are those of the pods.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Template string `json:"template,omitempty"`
	// Labels returns the labels of the pods, if there is no template with them.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Labels string `json:"labels,omitempty"`
}

// InterpretedField is how one field of the status is aggregated.
//
// +kubebuilder:validation:XValidation:rule="has(self.merge) != has(self.expression)",message="set either merge or expression"
type InterpretedField struct {
	// Field is the path in status: readyReplicas, or loadBalancer.ingress.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Field string `json:"field"`
	// Merge is a function of the reported values: Sum, Min, Max (of numbers; Min and Max also of
	// times), First (the first cluster that has it), Concat (of lists), Agreed (the value if all
	// clusters report the same).
	// +optional
	// +kubebuilder:validation:Enum=Sum;Min;Max;First;Concat;Agreed
	Merge string `json:"merge,omitempty"`
	// Expression returns the value; null omits the field. members is the list of the clusters'
	// reports: each with cluster, replicas (null if it runs the whole object), current (it has
	// acted on the latest change), stale (it does not answer) and status ({} if none).
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Expression string `json:"expression,omitempty"`
}

// ResourceInterpretationStatus is whether the customization is in use.
type ResourceInterpretationStatus struct {
	// Conditions: Valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// InterpretationValid is the condition of a ResourceInterpretation that is valid and in use for its
// kind.
const InterpretationValid = "Valid"

// Reasons of the condition Valid.
const (
	// InterpretationUnderstood: the customization is in use.
	InterpretationUnderstood = "Understood"
	// InterpretationInvalid: an expression or a path is invalid. No part of it is in use.
	InterpretationInvalid = "Invalid"
	// InterpretationDuplicate: an older one targets the same kind.
	InterpretationDuplicate = "Duplicate"
)
