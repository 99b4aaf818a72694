package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Approval says that a plan may be carried out, as it is: it names the digest of
// all its changes. Creating one is a right of its own.
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

	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an approval does not change: delete it to take it back"
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

// ApprovalSpec is what is approved of.
type ApprovalSpec struct {
	// Plan of this namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Plan string `json:"plan"`
	// Digest of it, as its status shows it.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
	// Reason is for those who read it later.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Reason string `json:"reason,omitempty"`
	// Approver is who it is. The server fills it in, whatever was given.
	// +optional
	Approver *Person `json:"approver,omitempty"`
}

// Apply carries out a plan that was approved.
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

// ApplySpec is what is carried out.
//
// +kubebuilder:validation:XValidation:rule="self.plan == oldSelf.plan && self.digest == oldSelf.digest",message="an apply does not change its plan: make another"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",message="an apply that was cancelled stays so: plan what is left, and apply that"
type ApplySpec struct {
	// Plan of this namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Plan string `json:"plan"`
	// Digest of it, as its status shows it.
	// +kubebuilder:validation:Pattern=`^sha256:[0-9a-f]{64}$`
	Digest string `json:"digest"`
	// Parallelism is how many changes are carried out at a time, besides what each
	// provider allows.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// Cancel ends it: what runs ends, and nothing else begins.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
	// Author is who asked for it. The server fills it in, whatever was given.
	// +optional
	Author *Person `json:"author,omitempty"`
}

// ApplyPhase is how far an Apply is.
type ApplyPhase string

// The values of ApplyPhase.
const (
	// ApplyPending waits for an approval, a window, or another Apply.
	ApplyPending   ApplyPhase = "Pending"
	ApplyRunning   ApplyPhase = "Running"
	ApplyCanceling ApplyPhase = "Canceling"
	ApplySucceeded ApplyPhase = "Succeeded"
	// ApplyFailed: something failed or was refused; the rest was done.
	ApplyFailed   ApplyPhase = "Failed"
	ApplyCanceled ApplyPhase = "Canceled"
)

// ApplyStatus is how it goes.
type ApplyStatus struct {
	// +optional
	Phase ApplyPhase `json:"phase,omitempty"`
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// Succeeded, Failed, Refused and Blocked add up to what is done. Refused is what had moved since
	// the plan; Blocked is what depends on something that failed or was refused.
	// +optional
	Succeeded int64 `json:"succeeded,omitempty"`
	// +optional
	Failed int64 `json:"failed,omitempty"`
	// +optional
	Refused int64 `json:"refused,omitempty"`
	// +optional
	Blocked int64 `json:"blocked,omitempty"`
	// Done is what it did, by kind of change.
	// +optional
	Done PlanSummary `json:"done,omitempty"`
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// Problems are what failed or was refused; the first hundred.
	// +optional
	// +listType=atomic
	Problems []Problem `json:"problems,omitempty"`
	// Warnings are what providers said when they were asked to make changes, and what kept nothing from happening; each
	// thing once, the first hundred. What they said before a server that carried it out was lost is not among them.
	// +optional
	// +listType=atomic
	Warnings []Problem `json:"warnings,omitempty"`
	// ApprovedBy is by whose approvals it ran: names of users, or of the policy.
	// +optional
	// +listType=atomic
	ApprovedBy []string `json:"approvedBy,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Conditions of an Apply, and why they are as they are.
const (
	// ApplyComplete: nothing is left to do; false says why it waits or what failed.
	ApplyComplete = "Complete"

	ReasonSucceeded     = "Succeeded"
	ReasonRunning       = "Running"
	ReasonFailed        = "Failed"
	ReasonCanceled      = "Canceled"
	ReasonNotApproved   = "NotApproved"
	ReasonOutsideWindow = "OutsideWindow"
	ReasonAnotherApply  = "AnotherApply"
)
