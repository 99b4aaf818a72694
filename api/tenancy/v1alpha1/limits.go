package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// WorkspaceLimits bound what a workspace stores. A request that would exceed a limit is forbidden. Deletions, and updates that do not make
// an object larger, are not, also if the limit was lowered below the usage.
//
// A Workspace in a workspace with limits takes its own limits from those: it needs each limit that the workspace has. Values above 32Ti
// are the same as 32Ti.
//
// +kubebuilder:validation:XValidation:rule="!has(self.bytes) || (type(self.bytes) == int ? self.bytes >= 0 : quantity(self.bytes).compareTo(quantity('0')) >= 0)",message="bytes must not be negative"
type WorkspaceLimits struct {
	// Objects is how many objects it has at most, of all kinds: also Events, Leases, and the roles that each workspace has.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Objects *int64 `json:"objects,omitempty"`
	// Bytes is the size of all objects as they are stored, such as 100Mi. History does not count.
	// +optional
	Bytes *resource.Quantity `json:"bytes,omitempty"`
	// Workspaces is how many workspaces may be in it, at all depths; 0 permits none.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Workspaces *int64 `json:"workspaces,omitempty"`
	// Definitions is how many CustomResourceDefinitions it may have: 200 if it is not set. A workspace in another one has at most the limit of that one.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Definitions *int64 `json:"definitions,omitempty"`
	// Expressions is how many expressions its CustomResourceDefinitions, admission policies and webhooks may have together: 1000 if it is not set. A
	// policy or webhook without one counts as one. A workspace in another one has at most the limit of that one.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Expressions *int64 `json:"expressions,omitempty"`
}

// Limits of a workspace that sets none.
const (
	DefaultDefinitions = 200
	DefaultExpressions = 1000
)

// WorkspaceUsage is the part of the limits that a workspace uses: its own objects, and the limits of the workspaces in it.
type WorkspaceUsage struct {
	// Objects is the number of its objects, with spec.limits.objects of the workspaces in it.
	Objects int64 `json:"objects"`
	// Bytes is the size of its objects as they are stored, with spec.limits.bytes of the workspaces in it.
	Bytes resource.Quantity `json:"bytes"`
	// Workspaces is the number of workspaces in it, with spec.limits.workspaces of each.
	// +optional
	Workspaces int64 `json:"workspaces"`
	// Definitions is the number of its CustomResourceDefinitions.
	// +optional
	Definitions int64 `json:"definitions"`
	// Expressions is the number of expressions of its CustomResourceDefinitions, admission policies and webhooks. A policy or webhook without one counts as one.
	// +optional
	Expressions int64 `json:"expressions"`
}
