package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// PolicyChanges is when an edit of a policy takes effect.
//
// +kubebuilder:validation:XValidation:rule="!has(self.above) || self.apply == 'OnApproval'",message="above requires apply: OnApproval"
// +kubebuilder:validation:XValidation:rule="!has(self.objects) || self.apply == 'Staged'",message="objects requires apply: Staged"
// +kubebuilder:validation:XValidation:rule="!has(self.interval) || self.apply == 'Staged'",message="interval requires apply: Staged"
type PolicyChanges struct {
	// Apply is the rule: Immediate, Lazy, OnApproval or Staged.
	// +kubebuilder:default=Immediate
	Apply ChangeMode `json:"apply"`
	// Above is how many objects an edit may change without approval; 0 if omitted. An edit of changes
	// always waits for approval.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Above *int32 `json:"above,omitempty"`
	// Objects is how many objects each step changes; 10 if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Objects *int32 `json:"objects,omitempty"`
	// Interval is the minimum time between the starts of two steps; 30s if omitted.
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// Mode returns the rule; Immediate if c is nil.
func (c *PolicyChanges) Mode() ChangeMode {
	if c == nil || c.Apply == "" {
		return ChangeImmediate
	}
	return c.Apply
}

// Threshold returns how many objects an edit may change without approval.
func (c *PolicyChanges) Threshold() int {
	if c == nil || c.Above == nil {
		return 0
	}
	return int(*c.Above)
}

// StepSize returns how many objects each step changes.
func (c *PolicyChanges) StepSize() int {
	if c == nil || c.Objects == nil {
		return 10
	}
	return int(*c.Objects)
}

// StepInterval returns the minimum time between the starts of two steps.
func (c *PolicyChanges) StepInterval() time.Duration {
	if c == nil || c.Interval == nil {
		return 30 * time.Second
	}
	return c.Interval.Duration
}

// ChangeMode is when edits take effect.
// +kubebuilder:validation:Enum=Immediate;Lazy;OnApproval;Staged
type ChangeMode string

// Values of ChangeMode.
const (
	// ChangeImmediate: an edit takes effect at once.
	ChangeImmediate ChangeMode = "Immediate"
	// ChangeLazy: an object follows an edit when the object itself changes, or is rebalanced.
	ChangeLazy ChangeMode = "Lazy"
	// ChangeOnApproval: an edit takes effect when it is approved.
	ChangeOnApproval ChangeMode = "OnApproval"
	// ChangeStaged: an edit takes effect for some objects at a time.
	ChangeStaged ChangeMode = "Staged"
)

// PolicyContent is the content of a policy at one generation.
type PolicyContent struct {
	Generation int64 `json:"generation"`
	// Spec of the policy.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +mapType=atomic
	Spec runtime.RawExtension `json:"spec"`
}

// PolicyStep is one step of an edit.
type PolicyStep struct {
	// Generation of the policy that the objects of the step follow.
	Generation int64 `json:"generation"`
	// Number of the step, from 1.
	Number int32 `json:"number"`
	// StartTime is when the step began.
	StartTime metav1.Time `json:"startTime"`
}

// MaxLaterContents is how many contents a policy keeps beside the active one. Further edits wait.
const MaxLaterContents = 8

// PlacementActive is the condition for whether the latest edit is in effect for all objects.
const PlacementActive = "Active"

// Reasons of the condition Active.
const (
	ReasonPolicyActive = "Active"
	// ReasonAwaitsApproval: the edit has no effect until it is approved.
	ReasonAwaitsApproval = "AwaitsApproval"
	// ReasonInSteps: the edit takes effect in steps.
	ReasonInSteps = "InSteps"
	// ReasonStepUnhealthy: no step begins until all objects of the previous ones are Healthy.
	ReasonStepUnhealthy = "StepUnhealthy"
	// ReasonLazy: objects follow the edit when they change.
	ReasonLazy = "Lazy"
	// ReasonEditInvalid: the edit is invalid, and has no effect.
	ReasonEditInvalid = "EditInvalid"
	// ReasonTooManyContents: objects follow so many earlier contents that the edit waits.
	ReasonTooManyContents = "TooManyContents"
)
