package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConsolidationPolicy is when replicas in a later group of clusters go back to an earlier one.
type ConsolidationPolicy struct {
	// After is how long the earlier group has to have room for them before. At least 1m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="at least 1m"
	After metav1.Duration `json:"after"`
}

// MinConsolidation is the shortest ConsolidationPolicy: clusters report their room every few seconds, and pods that come
// and go must not move anything.
const MinConsolidation = time.Minute

// ConsolidationStatus is set while replicas of an object in later groups of clusters could run in earlier ones.
type ConsolidationStatus struct {
	// Since is since when the earlier groups have room.
	Since metav1.Time `json:"since"`
}
