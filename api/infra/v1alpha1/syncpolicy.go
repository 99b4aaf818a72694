package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SyncPolicy says when what is written in a namespace is carried out, and who has
// to approve of it. Of several that select an object the most specific holds: one
// with a selector before one that names kinds or providers, those before one for
// all; a SyncPolicy before a ClusterSyncPolicy; of two alike the older. Without
// any, infrastructure is Manual and workloads are Auto.
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

// ClusterSyncPolicySpec is a policy and where it holds.
type ClusterSyncPolicySpec struct {
	// Namespaces selects them by their labels; all, unless said.
	// +optional
	Namespaces     *metav1.LabelSelector `json:"namespaces,omitempty"`
	SyncPolicySpec `json:",inline"`
}

// SyncMode is who decides when.
// +kubebuilder:validation:Enum=Manual;Auto
type SyncMode string

// The values of SyncMode.
const (
	// SyncManual changes nothing but by an Apply of a plan that was approved.
	SyncManual SyncMode = "Manual"
	// SyncAuto plans by itself, and applies what may be approved by itself.
	SyncAuto SyncMode = "Auto"
)

// SyncSubject is what a policy is about.
// +kubebuilder:validation:Enum=Infrastructure;Workloads
type SyncSubject string

// The values of SyncSubject.
const (
	// SyncInfrastructure is resources of providers.
	SyncInfrastructure SyncSubject = "Infrastructure"
	// SyncWorkloads is what runs in member clusters.
	SyncWorkloads SyncSubject = "Workloads"
)

// SyncPolicySpec is the policy.
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
	// Selector narrows it to objects with these labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Providers narrow it to resources of these Providers.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Providers []string `json:"providers,omitempty"`
	// DriftInterval is how often providers are asked what became of resources, in either
	// mode; 0 is never. What is found is a condition of the object, and a plan.
	// +optional
	DriftInterval *metav1.Duration `json:"driftInterval,omitempty"`
	// Windows are when applies may begin, in mode Auto; always, unless said.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Windows []SyncWindow `json:"windows,omitempty"`
	// Approval is who has to approve.
	// +optional
	// +kubebuilder:default={}
	Approval ApprovalPolicy `json:"approval,omitempty"`
}

// SyncWindow is a time that comes again and again.
type SyncWindow struct {
	// Schedule is when it opens, as a CronJob's.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=128
	Schedule string `json:"schedule"`
	// TimeZone of the schedule, such as Europe/Berlin; UTC, unless said.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// Duration is how long it stays open.
	Duration metav1.Duration `json:"duration"`
}

// ApprovalPolicy is who has to approve of a plan.
type ApprovalPolicy struct {
	// Required is how many persons have to.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	Required *int32 `json:"required,omitempty"`
	// AllowAuthor counts the approval of who made the plan.
	// +optional
	// +kubebuilder:default=true
	AllowAuthor *bool `json:"allowAuthor,omitempty"`
	// Auto approves without a person where one of these holds.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Auto []AutoApproval `json:"auto,omitempty"`
}

// AutoApproval is a rule.
type AutoApproval struct {
	// Name by which an Apply says that it was this.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Expression is CEL that says true of plans to let through. It knows "plan", the Plan with
	// its status, as in: plan.status.summary.delete == 0 && plan.status.summary.replace == 0 && plan.status.summary.update <= 20
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Expression string `json:"expression"`
}

// SyncPolicyStatus tells whether the policy can be followed.
type SyncPolicyStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
