package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumePolicy says whether objects with volumes of some StorageClasses may move to other clusters. Without
// one, they do not: they would begin there with empty volumes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=volumepolicies,singular=volumepolicy,categories=fleet
// +kubebuilder:printcolumn:name="Classes",type=string,JSONPath=`.spec.storageClasses`,description="StorageClasses that the policy names; all others if empty or *"
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VolumePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumePolicySpec `json:"spec"`
	// +optional
	Status VolumePolicyStatus `json:"status,omitempty"`
}

// VolumePolicyList is a list of VolumePolicies.
//
// +kubebuilder:object:root=true
type VolumePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VolumePolicy `json:"items"`
}

// VolumePolicySpec is a policy for the volumes of some StorageClasses.
//
// +kubebuilder:validation:XValidation:rule="(self.mode == 'Replicated') == has(self.replication)",message="replication is required with mode Replicated, and allowed only with it",fieldPath=".replication"
type VolumePolicySpec struct {
	// StorageClasses are names of StorageClasses. With "*", or if omitted, the policy applies to all classes that
	// no other policy names, and to claims without a class. Of two policies for a class, the older one applies.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	// +kubebuilder:validation:XValidation:rule="size(self) == 1 || !self.exists(c, c == '*')",message="\"*\" selects all classes that no other policy names: use it alone, or create a second policy for it"
	StorageClasses []string `json:"storageClasses,omitempty"`
	// Mode is what moves mean for the volumes.
	Mode VolumeMode `json:"mode"`
	// Replication says how to change the direction of the replication. Required with mode Replicated.
	// +optional
	Replication *VolumeReplication `json:"replication,omitempty"`
}

// VolumeReplication is what a replication system is asked for when a replica goes to another cluster: by annotations of
// the claim there, which it answers with a condition of the claim.
type VolumeReplication struct {
	// Release is for the cluster that the replica leaves, when the replica has stopped.
	Release VolumeHook `json:"release"`
	// Acquire is for the cluster that the replica goes to, after that. The replica starts when it is done.
	Acquire VolumeHook `json:"acquire"`
}

// VolumeHook is one request to a replication system.
type VolumeHook struct {
	// Annotations to set on the claim.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=16
	Annotations map[string]string `json:"annotations"`
	// Condition is the type of the claim's condition that is True when the request is done.
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$`
	// +kubebuilder:validation:MaxLength=316
	Condition string `json:"condition"`
}

// VolumeMode is the effect on volumes if their object moves to another cluster.
// +kubebuilder:validation:Enum=None;Shared;Reattach;Replicated
type VolumeMode string

// The values of VolumeMode.
const (
	// VolumesNone: a volume exists in one cluster only. Objects do not move away from it.
	VolumesNone VolumeMode = "None"
	// VolumesShared: claims with the same namespace and name lead to the same data in every cluster, as with NFS
	// and a path that is made of these names. Objects move as if they had no volumes.
	VolumesShared VolumeMode = "Shared"
	// VolumesReattach: the volumes are of a CSI driver that reaches the same storage from every cluster. They go along
	// with the pods that mount them: these stop, the volume is detached in one cluster and attached in the other one,
	// and they start there. The replicas of a StatefulSet go one after the other; those that mount the same claim go
	// together.
	VolumesReattach VolumeMode = "Reattach"
	// VolumesReplicated: a replication system keeps a copy of each volume in the other clusters, with a claim of the same
	// name. The pods go as with Reattach, and the system is asked to change the direction meanwhile.
	VolumesReplicated VolumeMode = "Replicated"
)

// AllStorageClasses in a VolumePolicy stands for all classes that no policy names.
const AllStorageClasses = "*"

// VolumePolicyStatus is the observed state of a VolumePolicy.
type VolumePolicyStatus struct {
	// Conditions: Accepted. It is False if older policies apply to all classes of the policy.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ReasonPolicyOverruled: older policies apply to all that the policy selects.
const ReasonPolicyOverruled = "Overruled"
