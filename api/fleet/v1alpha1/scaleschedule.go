package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScaleSchedule sets the replicas of a workload, or the bounds of a HorizontalPodAutoscaler, at
// certain times. Between these times it changes nothing: what users or autoscalers set meanwhile
// stays until the next run.
//
// It acts with the rights of its author, the user who last changed its spec, and FleetQuotas limit it
// as they limit that user.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=scaleschedules,singular=scaleschedule,shortName=ssch,categories=fleet
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.target.kind`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target.name`
// +kubebuilder:printcolumn:name="Next",type=string,JSONPath=`.status.nextScheduleTime`,description="Time of the next run"
// +kubebuilder:printcolumn:name="Rule",type=string,JSONPath=`.status.nextRule`,description="Rule of the next run"
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Author",type=string,priority=1,JSONPath=`.spec.author.username`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ScaleSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ScaleScheduleSpec `json:"spec"`
	// +optional
	Status ScaleScheduleStatus `json:"status,omitempty"`
}

// ScaleScheduleList is a list of ScaleSchedules.
//
// +kubebuilder:object:root=true
type ScaleScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ScaleSchedule `json:"items"`
}

// MaxScaleRules is the maximum number of rules of a ScaleSchedule.
const MaxScaleRules = 64

// ScaleScheduleSpec has the target and the times.
//
// +kubebuilder:validation:XValidation:rule="!(self.target.kind == 'HorizontalPodAutoscaler' && self.target.apiVersion.startsWith('autoscaling/')) || self.rules.all(r, !has(r.replicas))",message="rules: an autoscaler decides the replicas itself: set minReplicas and maxReplicas instead of replicas, or name the autoscaler's target in target"
// +kubebuilder:validation:XValidation:rule="self.target.kind == 'HorizontalPodAutoscaler' && self.target.apiVersion.startsWith('autoscaling/') || self.rules.all(r, !has(r.minReplicas) && !has(r.maxReplicas))",message="rules: minReplicas and maxReplicas are the bounds of a HorizontalPodAutoscaler: set replicas instead, or name the autoscaler in target"
type ScaleScheduleSpec struct {
	// Target is the object that is scaled. It is in the schedule's namespace.
	Target ScaleTarget `json:"target"`
	// TimeZone in which the schedules of the rules are read, as an IANA name such as Europe/Berlin.
	// The default is UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// Suspend all rules. Times that pass meanwhile are not made up.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// Rules, each with its times. If several rules are due at the same time, they are applied in this
	// order, so the last one wins.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Rules []ScaleRule `json:"rules"`
	// Author is the user who last changed the spec. The server sets it. Runs have this user's rights,
	// with the groups that the user had then.
	// +optional
	Author *ScaleScheduleAuthor `json:"author,omitempty"`
}

// ScaleTarget names an object with a subresource scale, or a HorizontalPodAutoscaler.
//
// +kubebuilder:validation:XValidation:rule="!(self.kind == 'ScaleSchedule' && self.apiVersion.startsWith('fleet.atoll.dev/'))",message="a ScaleSchedule cannot scale a ScaleSchedule: name a workload or a HorizontalPodAutoscaler"
type ScaleTarget struct {
	// APIVersion such as apps/v1, autoscaling/v2, or v1.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z][a-z0-9]*$')",message="an API version is GROUP/VERSION or VERSION, such as apps/v1"
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([a-z0-9.:-]*[a-z0-9])?$')",message="a name consists of lower case letters, digits, dashes and dots: write the name of the object alone, such as web"
	Name string `json:"name"`
}

// ScaleRule sets replicas or bounds at certain times.
//
// +kubebuilder:validation:XValidation:rule="has(self.replicas) || has(self.minReplicas) || has(self.maxReplicas)",message="the rule sets nothing: set replicas for a workload, or minReplicas or maxReplicas for a HorizontalPodAutoscaler"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.minReplicas) && !has(self.maxReplicas)",message="replicas excludes minReplicas and maxReplicas: set replicas for a workload, or the other two for a HorizontalPodAutoscaler"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas is greater than maxReplicas: lower minReplicas, or raise maxReplicas"
type ScaleRule struct {
	// Name of the rule, unique in the schedule.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Schedule has the syntax of a CronJob's: minute, hour, day of month, month and day of week, or
	// @hourly, @daily, @weekly, @monthly and @yearly.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Schedule string `json:"schedule"`
	// TimeZone of this rule, instead of the schedule's.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
	// Replicas of the target.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// MinReplicas of the target, which is a HorizontalPodAutoscaler. If omitted, it is not changed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// MaxReplicas of the target, which is a HorizontalPodAutoscaler. If omitted, it is not changed.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// Suspend the rule. Times that pass meanwhile are not made up.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// StartingDeadlineSeconds: a run that could not begin or succeed within so many seconds after its
	// time is not made up. The default is 3600.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=604800
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`
}

// ScaleScheduleAuthor is a user as the server authenticated them.
type ScaleScheduleAuthor struct {
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

// ScaleScheduleStatus is the observed state of a ScaleSchedule.
type ScaleScheduleStatus struct {
	// ObservedGeneration is the generation of the spec that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// NextScheduleTime is the time of the next run of any rule.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// NextRule is the rule of that run, the last one if there are several.
	// +optional
	NextRule string `json:"nextRule,omitempty"`
	// Run is the run of the rules whose lastResult is Running.
	// +optional
	Run *ScaleRun `json:"run,omitempty"`
	// Rules of the spec, in its order.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Rules []ScaleRuleStatus `json:"rules,omitempty"`
}

// ScaleRun is a write of the target that has begun. It is recorded before the write, so a server that
// takes over can tell from the target whether the write happened.
type ScaleRun struct {
	// Generation of the spec whose rules are running.
	Generation int64 `json:"generation"`
	// Previous is what the target had before, in the fields that the run sets.
	Previous ScaleValues `json:"previous"`
}

// ScaleValues are the fields that a ScaleSchedule sets.
type ScaleValues struct {
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
}

// ScaleRuleStatus is the observed state of a rule.
type ScaleRuleStatus struct {
	Name string `json:"name"`
	// Definition is the target, the schedule and the time zone that the status is about. When one of
	// them changes, the rule begins again, and its earlier times are not made up.
	Definition string `json:"definition"`
	// ActiveSince is since when the rule has had this definition without being suspended. It is absent
	// while the rule is suspended. Only later times count.
	// +optional
	ActiveSince *metav1.Time `json:"activeSince,omitempty"`
	// LastScheduleTime is the last time of the schedule that was handled, whatever the result.
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	// LastSuccessfulTime is when a run of the rule last succeeded.
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`
	// NextScheduleTime is the next time of the schedule. It is absent while the rule is suspended.
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	// LastResult is the result of the run at LastScheduleTime.
	// +optional
	LastResult ScaleResult `json:"lastResult,omitempty"`
	// Message explains LastResult.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// ScaleResult is the result of a run.
//
// +kubebuilder:validation:Enum=Running;Succeeded;Failed;Missed;Superseded
type ScaleResult string

const (
	// ScaleRunning means that the run has begun and is retried until its deadline.
	ScaleRunning ScaleResult = "Running"
	// ScaleSucceeded means that the target has the values.
	ScaleSucceeded ScaleResult = "Succeeded"
	// ScaleFailed means that the API refused the change, which is not retried.
	ScaleFailed ScaleResult = "Failed"
	// ScaleMissed means that the run could not begin or succeed before its deadline.
	ScaleMissed ScaleResult = "Missed"
	// ScaleSuperseded means that a later rule, another client or a change of the schedule came first.
	ScaleSuperseded ScaleResult = "Superseded"
)

// The condition of a ScaleSchedule, and its reasons.
const (
	// ScaleScheduleReady is False if runs would fail, as of the last check or run.
	ScaleScheduleReady = "Ready"

	ReasonScaleScheduled   = "Scheduled"
	ReasonScaleSuspended   = "Suspended"
	ReasonScaleInvalid     = "Invalid"
	ReasonScaleNotFound    = "TargetNotFound"
	ReasonScaleNotScalable = "TargetNotScalable"
	ReasonScaleForbidden   = "Forbidden"
	ReasonScaleRefused     = "Refused"
	ReasonScaleRetrying    = "Retrying"
)

// Events of a ScaleSchedule.
const (
	EventScaled          = "Scaled"
	EventScaleFailed     = "ScaleFailed"
	EventScaleMissed     = "ScaleMissed"
	EventScaleSuperseded = "ScaleSuperseded"
)

// DefaultScaleDeadlineSeconds is the default of a rule's startingDeadlineSeconds.
const DefaultScaleDeadlineSeconds = 3600
