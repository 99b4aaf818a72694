package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Plan is what would be done to the resources of a namespace, computed once. It
// does not change; what it is about may, and then what moved is refused when it is
// applied. Its changes are read page by page from its subresource changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,path=plans,singular=plan,categories=infra
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Create",type=integer,JSONPath=`.status.summary.create`
// +kubebuilder:printcolumn:name="Update",type=integer,JSONPath=`.status.summary.update`
// +kubebuilder:printcolumn:name="Replace",type=integer,JSONPath=`.status.summary.replace`
// +kubebuilder:printcolumn:name="Delete",type=integer,JSONPath=`.status.summary.delete`
// +kubebuilder:printcolumn:name="Drift",type=integer,JSONPath=`.status.summary.drift`
// +kubebuilder:printcolumn:name="Author",type=string,priority=1,JSONPath=`.spec.author.username`
// +kubebuilder:printcolumn:name="Digest",type=string,priority=1,JSONPath=`.status.digest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Plan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a plan does not change: make another"
	Spec PlanSpec `json:"spec,omitempty"`
	// +optional
	Status PlanStatus `json:"status,omitempty"`
}

// PlanList is a list of Plans.
//
// +kubebuilder:object:root=true
type PlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Plan `json:"items"`
}

// PlanMode is what a plan is to achieve.
// +kubebuilder:validation:Enum=Normal;Destroy;RefreshOnly
type PlanMode string

// The values of PlanMode.
const (
	// PlanNormal makes what is there like what is written.
	PlanNormal PlanMode = "Normal"
	// PlanDestroy removes it.
	PlanDestroy PlanMode = "Destroy"
	// PlanRefreshOnly takes into state what became of it, and changes nothing.
	PlanRefreshOnly PlanMode = "RefreshOnly"
)

// PlanSpec is what a plan is about.
//
// +kubebuilder:validation:XValidation:rule="!has(self.objects) || !has(self.rollback)",message="a plan is of objects that are given, or of a rollback, not of both"
type PlanSpec struct {
	// +optional
	// +kubebuilder:default=Normal
	Mode PlanMode `json:"mode,omitempty"`
	// Selector narrows the plan to objects with these labels, and what they need.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Targets narrow it to these objects, and what they need.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Targets []ObjectReference `json:"targets,omitempty"`
	// Exclude leaves out these, and what needs them.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Exclude []ObjectReference `json:"exclude,omitempty"`
	// Replace makes these anew, though nothing forces it.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Replace []ObjectReference `json:"replace,omitempty"`
	// Refresh asks the providers what became of every resource first. Without, what is known is taken
	// for what is there, and providers are asked about that only which has changed since they were last
	// asked. A plan of mode RefreshOnly refreshes in any case.
	// +optional
	Refresh bool `json:"refresh,omitempty"`
	// Parallelism is how many resources are looked at at a time, besides what each
	// provider allows: 64, unless set.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// Objects are taken for written, though they are not: what would be if they
	// were applied. Such a plan cannot be applied.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	Objects []runtime.RawExtension `json:"objects,omitempty"`
	// Rollback plans what was written when an Apply of this name had ended.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Rollback string `json:"rollback,omitempty"`
	// TTLSecondsAfterFinished deletes a plan, with its changes, so long after it was
	// computed if nothing has applied it, or after it was applied.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Author is who made the plan. The server fills it in, whatever was given.
	// +optional
	Author *Person `json:"author,omitempty"`
}

// ObjectReference names an object of the namespace.
type ObjectReference struct {
	// Group of its kind; of several providers with one kind, it says which.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// Person is who asked for something, as the server knew them.
type Person struct {
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	UID string `json:"uid,omitempty"`
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	Groups []string `json:"groups,omitempty"`
}

// PlanPhase is how far a plan is.
type PlanPhase string

// The values of PlanPhase.
const (
	PlanPending  PlanPhase = "Pending"
	PlanPlanning PlanPhase = "Planning"
	PlanPlanned  PlanPhase = "Planned"
	PlanApplied  PlanPhase = "Applied"
	PlanFailed   PlanPhase = "Failed"
)

// PlanStatus is what the plan says.
type PlanStatus struct {
	// +optional
	Phase PlanPhase `json:"phase,omitempty"`
	// Digest stands for all changes, in every detail. An Approval names it.
	// +optional
	Digest string `json:"digest,omitempty"`
	// +optional
	Summary PlanSummary `json:"summary,omitempty"`
	// Chunks are the pieces in which the changes are stored, in order.
	// +optional
	// +listType=atomic
	Chunks []PlanChunk `json:"chunks,omitempty"`
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// Problems are what kept objects from being planned; the first hundred.
	// +optional
	// +listType=atomic
	Problems []Problem `json:"problems,omitempty"`
	// Warnings are what providers say of what is planned, and what keeps nothing from happening; each thing once, the
	// first hundred. Providers are not asked about what has not changed since it was planned before.
	// +optional
	// +listType=atomic
	Warnings []Problem `json:"warnings,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PlanSummary counts changes by what they do.
type PlanSummary struct {
	Create  int64 `json:"create"`
	Update  int64 `json:"update"`
	Replace int64 `json:"replace"`
	Delete  int64 `json:"delete"`
	Read    int64 `json:"read"`
	Import  int64 `json:"import"`
	Forget  int64 `json:"forget"`
	NoOp    int64 `json:"noOp"`
	// Drift is what changed outside, whatever is done about it.
	Drift int64 `json:"drift"`
	// Place counts workloads that would be changed in member clusters. One that would leave all of them counts as a
	// delete.
	Place int64 `json:"place"`
}

// Changes are how many there are that change something.
func (s PlanSummary) Changes() int64 {
	return s.Create + s.Update + s.Replace + s.Delete + s.Import + s.Forget + s.Place
}

// PlanChunk is some of the changes, sorted by address, in one or more pieces.
type PlanChunk struct {
	// Digest of the chunk.
	Digest string `json:"digest"`
	// Changes in it.
	Changes int32 `json:"changes"`
	// Pieces that it is stored in.
	Pieces int32 `json:"pieces"`
	// First and Last are the addresses of its ends.
	First ChangeAddress `json:"first"`
	Last  ChangeAddress `json:"last"`
	// Actions is how many changes there are of each.
	// +optional
	Actions map[string]int32 `json:"actions,omitempty"`
}

// ChangeAddress is what a change is about.
type ChangeAddress struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Type is the provider's own name for the type.
	Type string `json:"type"`
	Name string `json:"name"`
	// Data is of a data source.
	// +optional
	Data bool `json:"data,omitempty"`
	// Deposed names a predecessor that is still to be deleted.
	// +optional
	Deposed string `json:"deposed,omitempty"`
}

// Progress is how much of something long is done.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// PerMinute is how fast it goes at present.
	// +optional
	PerMinute int64 `json:"perMinute,omitempty"`
	// Remaining is how long it will take at that pace.
	// +optional
	Remaining *metav1.Duration `json:"remaining,omitempty"`
}

// Problem is what is wrong with one object, or a warning about it.
type Problem struct {
	// Address of the object: KIND.GROUP/NAME.
	Address string `json:"address"`
	// Field that it is about, if one.
	// +optional
	Field string `json:"field,omitempty"`
	// Message says what is wrong, and what to do.
	Message string `json:"message"`
}

// Conditions of a Plan, and why they are as they are.
const (
	// PlanComplete: everything is planned; false while it is not, or cannot be.
	PlanComplete = "Complete"
	// PlanApproved: as many as have to have approved of its digest.
	PlanApproved = "Approved"
	// PlanCurrent: nothing that it was computed from has moved since.
	PlanCurrent = "Current"

	ReasonPlanned      = "Planned"
	ReasonProblems     = "Problems"
	ReasonCycle        = "Cycle"
	ReasonApproved     = "Approved"
	ReasonAutoApproved = "AutoApproved"
	ReasonWaiting      = "Waiting"
	ReasonSpeculative  = "Speculative"
	ReasonNothingToDo  = "NothingToDo"
	ReasonMoved        = "Moved"
	ReasonOtherDigest  = "OtherDigest"
)
