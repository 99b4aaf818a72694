package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// WorkspaceLimits bound what a workspace stores. A request that would exceed a limit is forbidden. Deletions, and updates that do not make
// an object larger, are not, also if the limit was lowered below the usage.
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
}

// WorkspaceUsage is what a workspace has stored.
type WorkspaceUsage struct {
	// Objects is their number.
	Objects int64 `json:"objects"`
	// Bytes is their size as they are stored.
	Bytes resource.Quantity `json:"bytes"`
}
