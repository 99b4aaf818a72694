package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetQuota limits what the workloads of a namespace request in all clusters together. An API
// request that would exceed a limit is refused, and an object that runs whole in each of its
// clusters gets no further cluster. A lowered limit removes nothing.
//
// What counts is what the objects request, not what runs at the moment: the pods of an object, times
// its replicas, times the clusters that run the whole object. An autoscaled object counts with its
// autoscaler's maximum. DaemonSets do not count, because the nodes decide how many pods they have.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=fq,categories=fleet
// +kubebuilder:printcolumn:name="Hard",type=string,JSONPath=`.spec.hard`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.used`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type FleetQuota struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FleetQuotaSpec `json:"spec"`
	// +optional
	Status FleetQuotaStatus `json:"status,omitempty"`
}

// FleetQuotaList is a list of FleetQuotas.
//
// +kubebuilder:object:root=true
type FleetQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FleetQuota `json:"items"`
}

// FleetQuotaSpec is a set of limits.
type FleetQuotaSpec struct {
	// Hard are the limits, with the names of a ResourceQuota: pods, cpu or requests.cpu, memory or
	// requests.memory, limits.cpu, limits.memory, requests.nvidia.com/gpu and the like. Pods must
	// then specify the limited resources.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['pods', 'cpu', 'memory', 'ephemeral-storage'] || k.startsWith('requests.') || k.startsWith('limits.'))",message="a FleetQuota limits pods, cpu, memory, ephemeral-storage, requests.NAME and limits.NAME; use a ResourceQuota to limit numbers of objects"
	Hard map[corev1.ResourceName]resource.Quantity `json:"hard"`
	// Selector restricts the quota to objects with certain labels. By default all objects of the
	// namespace count.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// FleetQuotaStatus is the use of a quota.
type FleetQuotaStatus struct {
	// ObservedGeneration is the generation of the spec that was counted; 0 before the first count.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Used is what counts at the moment, requests that were just admitted included.
	// +optional
	Used corev1.ResourceList `json:"used,omitempty"`
	// Free is the difference between the limits and Used; 0 if more is used than the limit.
	// +optional
	Free corev1.ResourceList `json:"free,omitempty"`
	// Admitted are requests that were admitted a moment ago, and may not be part of the count yet.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Admitted []AdmittedWrite `json:"admitted,omitempty"`
	// Conditions: Valid.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AdmittedWrite is what an object uses after a write that was admitted.
type AdmittedWrite struct {
	// Object that uses it.
	Object QuotaObject `json:"object"`
	// By is the written object, if it is another one: an autoscaler or a binding.
	// +optional
	By *QuotaObject `json:"by,omitempty"`
	// Uses is what the object uses afterwards, at most.
	Uses corev1.ResourceList `json:"uses"`
	// Revision: the write gets a later resource version.
	Revision int64 `json:"revision"`
	// Time of the admission. The write is abandoned if it is not seen within a minute and a half.
	Time metav1.Time `json:"time"`
}

// QuotaObject names an object of the quota's namespace.
type QuotaObject struct {
	// +optional
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// Conditions of a FleetQuota, and their reasons.
const (
	// QuotaValid is False if the quota cannot be counted. It then admits nothing that uses more.
	QuotaValid           = "Valid"
	QuotaCounted         = "Counted"
	QuotaInvalidSelector = "InvalidSelector"
)
