package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SyncPolicy decides when changes in a namespace are applied, and who has to approve them. If several
// policies select an object, the most specific applies: one with a selector before one with providers, and
// those before the others; a SyncPolicy before a ClusterSyncPolicy; then the older. Without any policy,
// infrastructure is Manual and workloads are Auto.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=syncpolicies,singular=syncpolicy,categories=infra
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Applies to",type=string,JSONPath=`.spec.appliesTo`
// +kubebuilder:printcolumn:name="Approvals",type=integer,JSONPath=`.spec.approval.required`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SyncPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SyncPolicySpec `json:"spec"`
	// +optional
	Status SyncPolicyStatus `json:"status,omitempty"`
}

// SyncPolicyList is a list of SyncPolicies.
//
// +kubebuilder:object:root=true
type SyncPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncPolicy `json:"items"`
}

// ClusterSyncPolicy is a SyncPolicy for the namespaces that it selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=clustersyncpolicies,singular=clustersyncpolicy,categories=infra
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Applies to",type=string,JSONPath=`.spec.appliesTo`
// +kubebuilder:printcolumn:name="Approvals",type=integer,JSONPath=`.spec.approval.required`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterSyncPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterSyncPolicySpec `json:"spec"`
	// +optional
	Status SyncPolicyStatus `json:"status,omitempty"`
}

// ClusterSyncPolicyList is a list of ClusterSyncPolicies.
//
// +kubebuilder:object:root=true
type ClusterSyncPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterSyncPolicy `json:"items"`
}

// ClusterSyncPolicySpec is a policy for a selection of namespaces.
type ClusterSyncPolicySpec struct {
	// Namespaces selects namespaces by label. Default: all.
	// +optional
	Namespaces     *metav1.LabelSelector `json:"namespaces,omitempty"`
	SyncPolicySpec `json:",inline"`
}

// SyncMode states whether a policy acts without a user.
// +kubebuilder:validation:Enum=Manual;Auto
type SyncMode string

// The values of SyncMode.
const (
	// SyncManual changes resources only by an Apply of an approved plan.
	SyncManual SyncMode = "Manual"
	// SyncAuto plans automatically, and applies plans that are approved.
	SyncAuto SyncMode = "Auto"
)

// SyncSubject is what a policy applies to.
// +kubebuilder:validation:Enum=Infrastructure;Workloads
type SyncSubject string

// The values of SyncSubject.
const (
	// SyncInfrastructure are the resources of providers.
	SyncInfrastructure SyncSubject = "Infrastructure"
	// SyncWorkloads are objects in member clusters.
	SyncWorkloads SyncSubject = "Workloads"
)

// SyncPolicySpec is the specification of a policy.
type SyncPolicySpec struct {
	// +optional
	// +kubebuilder:default=Manual
	Mode SyncMode `json:"mode,omitempty"`
	// AppliesTo is infrastructure, workloads, or both.
	// +optional
	// +listType=set
	// +kubebuilder:default={"Infrastructure"}
	// +kubebuilder:validation:MinItems=1
	AppliesTo []SyncSubject `json:"appliesTo,omitempty"`
	// Selector restricts the policy to objects with these labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Providers restrict the policy to resources of these Providers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Providers []string `json:"providers,omitempty"`
	// DriftInterval is how often resources are compared with the providers' view, in either mode; 0 disables
	// it. Drift is reported as a condition of the object, and as a plan.
	// +optional
	DriftInterval *metav1.Duration `json:"driftInterval,omitempty"`
	// Windows are the times at which applies may begin in mode Auto. Default: always.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Windows []SyncWindow `json:"windows,omitempty"`
	// Approval states who has to approve plans.
	// +optional
	// +kubebuilder:default={}
	Approval ApprovalPolicy `json:"approval,omitempty"`
}

// SyncWindow is a recurring period.
type SyncWindow struct {
	// Schedule is when the window opens, in a CronJob's syntax.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	Schedule string `json:"schedule"`
	// TimeZone of the schedule, such as Europe/Berlin. Default: UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// Duration is how long the window stays open.
	Duration metav1.Duration `json:"duration"`
}

// ApprovalPolicy states who has to approve a plan.
type ApprovalPolicy struct {
	// Required is how many users have to approve.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	Required *int32 `json:"required,omitempty"`
	// AllowAuthor also counts the approvals of the plan's authors: the user who created it, and the users who
	// last changed or deleted the objects that it changes. If it is false and a change has no recorded
	// author, one more approval is required.
	// +optional
	// +kubebuilder:default=true
	AllowAuthor *bool `json:"allowAuthor,omitempty"`
	// Auto approves a plan automatically if one of these rules returns true.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Auto []AutoApproval `json:"auto,omitempty"`
}

// AutoApproval is a rule that approves plans.
type AutoApproval struct {
	// Name identifies the rule in an Apply's approvedBy.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Expression is a CEL expression that returns true for plans to approve. The variable "plan" is the Plan
	// with its status, as in: plan.status.summary.delete == 0 && plan.status.summary.replace == 0 &&
	// plan.status.summary.update <= 20
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// SyncPolicyStatus reports whether the policy is valid.
type SyncPolicyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
