package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Approval permits a plan to be applied exactly as it is: it names the digest of all changes. Creating one
// requires a separate right.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,path=approvals,singular=approval,categories=infra
// +kubebuilder:printcolumn:name="Plan",type=string,JSONPath=`.spec.plan`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.approver.username`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.spec.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Approval struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an approval is immutable: delete it to withdraw it"
	Spec ApprovalSpec `json:"spec"`
}

// ApprovalList is a list of Approvals.
//
// +kubebuilder:object:root=true
type ApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Approval `json:"items"`
}

// ApprovalSpec identifies the approved plan.
type ApprovalSpec struct {
	// Plan of this namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Plan string `json:"plan"`
	// Digest of it, as its status shows it.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
	// Reason explains the approval to later readers.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Reason string `json:"reason,omitempty"`
	// Approver is the user who approves. The server sets it and ignores the client's value.
	// +optional
	Approver *Person `json:"approver,omitempty"`
}

// Apply carries out an approved plan.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=applies,singular=apply,categories=infra
// +kubebuilder:printcolumn:name="Plan",type=string,JSONPath=`.spec.plan`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Done",type=integer,JSONPath=`.status.progress.done`
// +kubebuilder:printcolumn:name="Total",type=integer,JSONPath=`.status.progress.total`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failed`
// +kubebuilder:printcolumn:name="By",type=string,priority=1,JSONPath=`.spec.author.username`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Apply struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ApplySpec `json:"spec"`
	// +optional
	Status ApplyStatus `json:"status,omitempty"`
}

// ApplyList is a list of Applies.
//
// +kubebuilder:object:root=true
type ApplyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Apply `json:"items"`
}

// ApplySpec identifies the plan to carry out.
//
// +kubebuilder:validation:XValidation:rule="self.plan == oldSelf.plan && self.digest == oldSelf.digest",message="the plan of an apply is immutable: create another apply"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",message="a cancelled apply cannot be resumed: create another plan for the rest and apply that"
type ApplySpec struct {
	// Plan of this namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Plan string `json:"plan"`
	// Digest of it, as its status shows it.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
	// Parallelism is how many changes are carried out concurrently, within the limits of each provider.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// Cancel stops the apply: running changes finish, and no others start.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// Author is the user who created the apply. The server sets it and ignores the client's value.
	// +optional
	Author *Person `json:"author,omitempty"`
}

// ApplyPhase is the phase of an Apply.
type ApplyPhase string

// The values of ApplyPhase.
const (
	// ApplyPending waits for an approval, a window, or another Apply.
	ApplyPending   ApplyPhase = "Pending"
	ApplyRunning   ApplyPhase = "Running"
	ApplyCanceling ApplyPhase = "Canceling"
	ApplySucceeded ApplyPhase = "Succeeded"
	// ApplyFailed: some changes failed or were rejected; the others were carried out.
	ApplyFailed   ApplyPhase = "Failed"
	ApplyCanceled ApplyPhase = "Canceled"
)

// ApplyStatus is the progress and the result of an Apply.
type ApplyStatus struct {
	// +optional
	Phase ApplyPhase `json:"phase,omitempty"`
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// Succeeded, Failed, Refused and Blocked add up to the finished changes. Refused changes were stale:
	// their objects changed after the plan. Blocked changes depend on failed or refused ones.
	// +optional
	Succeeded int64 `json:"succeeded,omitempty"`
	// +optional
	Failed int64 `json:"failed,omitempty"`
	// +optional
	Refused int64 `json:"refused,omitempty"`
	// +optional
	Blocked int64 `json:"blocked,omitempty"`
	// Done counts the changes that were made, by action.
	// +optional
	Done PlanSummary `json:"done,omitempty"`
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// Problems are the first hundred failures and rejections.
	// +optional
	// +listType=atomic
	Problems []Problem `json:"problems,omitempty"`
	// Warnings are the providers' warnings about changes, deduplicated; the first hundred. Warnings from
	// before a change of the leading server are lost.
	// +optional
	// +listType=atomic
	Warnings []Problem `json:"warnings,omitempty"`
	// ApprovedBy names the users or policy rules that approved the plan.
	// +optional
	// +listType=atomic
	ApprovedBy []string `json:"approvedBy,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition types and reasons of an Apply.
const (
	// ApplyComplete: everything was carried out. If false, the message says what the apply waits for or what
	// failed.
	ApplyComplete = "Complete"

	ReasonSucceeded     = "Succeeded"
	ReasonRunning       = "Running"
	ReasonFailed        = "Failed"
	ReasonCanceled      = "Canceled"
	ReasonNotApproved   = "NotApproved"
	ReasonOutsideWindow = "OutsideWindow"
	ReasonAnotherApply  = "AnotherApply"
)
