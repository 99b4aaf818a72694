package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Plan is a computed set of changes to the resources of a namespace. It is immutable. If its objects change,
// the affected changes are stale and are rejected when it is applied. Clients read its changes page by page
// from the subresource changes.
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
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a plan is immutable: create another"
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

// PlanMode is the purpose of a plan.
// +kubebuilder:validation:Enum=Normal;Destroy;RefreshOnly
type PlanMode string

// The values of PlanMode.
const (
	// PlanNormal changes resources to match the configuration.
	PlanNormal PlanMode = "Normal"
	// PlanDestroy deletes the resources.
	PlanDestroy PlanMode = "Destroy"
	// PlanRefreshOnly updates the state to match the resources, and changes none of them.
	PlanRefreshOnly PlanMode = "RefreshOnly"
)

// PlanSpec is the request for a plan.
//
// +kubebuilder:validation:XValidation:rule="!has(self.objects) || !has(self.rollback)",message="objects and rollback are mutually exclusive"
type PlanSpec struct {
	// +optional
	// +kubebuilder:default=Normal
	Mode PlanMode `json:"mode,omitempty"`
	// Selector restricts the plan to objects with these labels and their dependencies.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Targets restrict the plan to these objects and their dependencies.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Targets []ObjectReference `json:"targets,omitempty"`
	// Exclude leaves out these objects and their dependents.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Exclude []ObjectReference `json:"exclude,omitempty"`
	// Replace replaces these objects' resources even if no change requires it.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Replace []ObjectReference `json:"replace,omitempty"`
	// Refresh reads every resource from its provider first. Without it, the stored state counts as current,
	// and providers plan only resources whose inputs have changed. A plan of mode RefreshOnly always
	// refreshes.
	// +optional
	Refresh bool `json:"refresh,omitempty"`
	// Parallelism is how many resources are planned concurrently, within the limits of each provider.
	// Default: 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Parallelism int32 `json:"parallelism,omitempty"`
	// Objects are supposed to exist, to show what applying them would do. Such a plan is speculative and
	// cannot be applied.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	Objects []runtime.RawExtension `json:"objects,omitempty"`
	// Rollback restores the specs at the end of the Apply of this name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Rollback string `json:"rollback,omitempty"`
	// TTLSecondsAfterFinished deletes the plan and its changes this long after it was computed, or after it
	// was applied.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// Author is the user who created the plan. The server sets it and ignores the client's value.
	// +optional
	Author *Person `json:"author,omitempty"`
}

// ObjectReference names an object of the namespace.
type ObjectReference struct {
	// Group is the API group of the kind. It is needed if several providers have that kind.
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

// Person is a user as the server authenticated them.
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

// PlanPhase is the phase of a plan.
type PlanPhase string

// The values of PlanPhase.
const (
	PlanPending  PlanPhase = "Pending"
	PlanPlanning PlanPhase = "Planning"
	PlanPlanned  PlanPhase = "Planned"
	PlanApplied  PlanPhase = "Applied"
	PlanFailed   PlanPhase = "Failed"
)

// PlanStatus is the result of a plan.
type PlanStatus struct {
	// +optional
	Phase PlanPhase `json:"phase,omitempty"`
	// Digest covers all changes in every detail. An Approval names it.
	// +optional
	Digest string `json:"digest,omitempty"`
	// +optional
	Summary PlanSummary `json:"summary,omitempty"`
	// Chunks describe how the changes are stored, in order.
	// +optional
	// +listType=atomic
	Chunks []PlanChunk `json:"chunks,omitempty"`
	// +optional
	Progress Progress `json:"progress,omitempty"`
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`
	// Problems are the first hundred reasons why objects could not be planned.
	// +optional
	// +listType=atomic
	Problems []Problem `json:"problems,omitempty"`
	// Warnings are the providers' warnings about planned changes, deduplicated; the first hundred. Providers
	// are not called for unchanged objects.
	// +optional
	// +listType=atomic
	Warnings []Problem `json:"warnings,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PlanSummary counts changes by action.
type PlanSummary struct {
	Create  int64 `json:"create"`
	Update  int64 `json:"update"`
	Replace int64 `json:"replace"`
	Delete  int64 `json:"delete"`
	Read    int64 `json:"read"`
	Import  int64 `json:"import"`
	Forget  int64 `json:"forget"`
	NoOp    int64 `json:"noOp"`
	// Drift counts resources that were changed outside of Atoll, whatever the plan does about them.
	Drift int64 `json:"drift"`
	// Place counts workloads that would change in member clusters. A workload that leaves all clusters counts
	// as a delete.
	Place int64 `json:"place"`
	// Kept counts the resources of Replace that are forgotten instead of destroyed.
	// +optional
	Kept int64 `json:"kept,omitempty"`
	// Move counts resources whose object gets another name, whatever else the plan does about them.
	// +optional
	Move int64 `json:"move,omitempty"`
}

// Changes returns the number of changes that have an effect.
func (s PlanSummary) Changes() int64 {
	return s.Create + s.Update + s.Replace + s.Delete + s.Import + s.Move + s.Forget + s.Place
}

// PlanChunk is a part of the changes, sorted by address, stored in one or more pieces.
type PlanChunk struct {
	// Digest of the chunk.
	Digest string `json:"digest"`
	// Changes is the number of changes in the chunk.
	Changes int32 `json:"changes"`
	// Pieces is the number of pieces that store it.
	Pieces int32 `json:"pieces"`
	// First and Last are the first and the last address in the chunk.
	First ChangeAddress `json:"first"`
	Last  ChangeAddress `json:"last"`
	// Actions counts the changes by action.
	// +optional
	Actions map[string]int32 `json:"actions,omitempty"`
}

// ChangeAddress identifies the resource of a change.
type ChangeAddress struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Type is the provider's name of the type.
	Type string `json:"type"`
	Name string `json:"name"`
	// Data is true for a data source.
	// +optional
	Data bool `json:"data,omitempty"`
	// Deposed is the key of a predecessor that is still to be deleted.
	// +optional
	Deposed string `json:"deposed,omitempty"`
}

// Progress is the progress of a long operation.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
	// PerMinute is the current rate.
	// +optional
	PerMinute int64 `json:"perMinute,omitempty"`
	// Remaining is the estimated time at that rate.
	// +optional
	Remaining *metav1.Duration `json:"remaining,omitempty"`
}

// Problem is an error or a warning about one object.
type Problem struct {
	// Address of the object: KIND.GROUP/NAME.
	Address string `json:"address"`
	// Field is the affected field, if there is one.
	// +optional
	Field string `json:"field,omitempty"`
	// Message states the problem and how to fix it.
	Message string `json:"message"`
}

// Condition types and reasons of a Plan.
const (
	// PlanComplete: everything was planned. It is false while the plan is computed, or if some objects could
	// not be planned.
	PlanComplete = "Complete"
	// PlanApproved: the required approvals of its digest exist.
	PlanApproved = "Approved"
	// PlanCurrent: nothing that the plan was computed from has changed since.
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
