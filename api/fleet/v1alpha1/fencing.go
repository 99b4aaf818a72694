package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FencingPolicy lets clusters that lose contact stop replicas themselves, before others take them over. It works in clusters
// in mode Pull, for kinds with replicas. From other clusters, objects of the policy do not fail over.
type FencingPolicy struct {
	// Lease is how long a cluster runs the replicas without contact to Atoll; 2m if omitted.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('45s')",message="at least 45s: a cluster reports every 20s"
	Lease *metav1.Duration `json:"lease,omitempty"`
	// Grace is how long the replicas may take to stop after that; 1m if omitted. It has to be longer than the
	// terminationGracePeriodSeconds of their pods.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="at least 1s"
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// BindingFencing is the fencing of one object.
type BindingFencing struct {
	// Lease is how long a cluster runs the replicas without contact to Atoll.
	Lease metav1.Duration `json:"lease"`
}

// Defaults of a FencingPolicy.
const (
	DefaultFencingLease = 2 * time.Minute
	DefaultFencingGrace = time.Minute
	// FencingMargin is added to lease and grace before other clusters take over: clocks do not run at exactly the same
	// rate.
	FencingMargin = 15 * time.Second
)

// Times returns the lease, and how long a cluster has to be unreachable before others take over.
func (f *FencingPolicy) Times() (lease, takeover time.Duration) {
	lease, grace := DefaultFencingLease, DefaultFencingGrace
	if f.Lease != nil {
		lease = f.Lease.Duration
	}
	if f.Grace != nil {
		grace = f.Grace.Duration
	}
	return lease, lease + grace + FencingMargin
}
