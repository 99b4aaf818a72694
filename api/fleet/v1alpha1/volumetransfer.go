package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// VolumeTransfer is a claim that goes to another cluster together with its volume, and with the pods that mount it. The
// scheduler sets the phase, and the syncers of the two clusters do what the phase asks them to.
type VolumeTransfer struct {
	// Claim is the name of the PersistentVolumeClaim in both clusters.
	// +kubebuilder:validation:MaxLength=253
	Claim string `json:"claim"`
	// Ordinal of the replica whose claim it is, counted from 0; 0 if all replicas go together, because they mount the
	// same claims.
	Ordinal int32 `json:"ordinal"`
	// ClaimUID is the UID of the claim in the control plane. It is set for a claim that pods mount by its name.
	// +optional
	ClaimUID types.UID `json:"claimUID,omitempty"`
	// From is the cluster that had the claim, and To the one that gets it.
	From  string      `json:"from"`
	To    string      `json:"to"`
	Phase VolumePhase `json:"phase"`
	// Revision is another one with each phase. Reports name the revision that they are about.
	Revision int32 `json:"revision"`
	// Made: To may have made a claim for the volume.
	// +optional
	Made bool `json:"made,omitempty"`
	// Replication is set if the clusters have copies of the volume: then no cluster attaches the volume of another one.
	// +optional
	Replication *VolumeReplication `json:"replication,omitempty"`
	// Volume is what From reported about the volume; absent if the claim does not exist there.
	// +optional
	Volume *VolumeDescription `json:"volume,omitempty"`
}

// VolumePhase is a part of a VolumeTransfer.
// +kubebuilder:validation:Enum=Preparing;Detaching;Attaching;Attached;Removing;Settling;Returning;Cleaning
type VolumePhase string

// The phases of a VolumeTransfer. In all of them the volume itself is kept: its reclaim policy is Retain in both clusters
// from the first phase on.
const (
	// VolumePreparing: From describes the volume, and To checks that it can use it. The replica still runs in From.
	VolumePreparing VolumePhase = "Preparing"
	// VolumeDetaching: From reports when no Pod and no VolumeAttachment uses the volume any more.
	VolumeDetaching VolumePhase = "Detaching"
	// VolumeAttaching: To makes a PersistentVolume and a claim that are bound to each other.
	VolumeAttaching VolumePhase = "Attaching"
	// VolumeAttached: the replica may run in To. From keeps its claim, so that the replica can return.
	VolumeAttached VolumePhase = "Attached"
	// VolumeRemoving: the replica is available in To. From removes its claim and its PersistentVolume.
	VolumeRemoving VolumePhase = "Removing"
	// VolumeSettling: To sets the reclaim policy that the volume had in From.
	VolumeSettling VolumePhase = "Settling"
	// VolumeReturning: the replica is to run in From again, which sets the reclaim policy that the volume had.
	VolumeReturning VolumePhase = "Returning"
	// VolumeCleaning: after a return, To removes its claim and its PersistentVolume.
	VolumeCleaning VolumePhase = "Cleaning"
)

// VolumeDescription is a volume of a CSI driver, and the claim for it.
type VolumeDescription struct {
	// Name of the PersistentVolume.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Driver is the CSI driver, and Handle the driver's ID of the volume.
	// +kubebuilder:validation:MaxLength=253
	Driver string `json:"driver"`
	// +kubebuilder:validation:MaxLength=2048
	Handle string `json:"handle"`
	// +optional
	FSType string `json:"fsType,omitempty"`
	// +optional
	ReadOnly bool `json:"readOnly,omitempty"`
	// Attributes that the driver gave the volume.
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
	// Secrets for the driver, by the field of the PersistentVolume's spec.csi. The cluster that gets the volume uses one
	// only if its StorageClass names it too.
	// +optional
	Secrets map[string]corev1.SecretReference `json:"secrets,omitempty"`
	// Capacity of the volume, and Request of the claim.
	Capacity resource.Quantity `json:"capacity"`
	Request  resource.Quantity `json:"request"`
	// +optional
	// +listType=atomic
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// +optional
	// +listType=atomic
	MountOptions []string `json:"mountOptions,omitempty"`
	// StorageClass of the volume and its claim.
	// +optional
	StorageClass string `json:"storageClass,omitempty"`
	// ReclaimPolicy that the volume had before the transfer.
	ReclaimPolicy corev1.PersistentVolumeReclaimPolicy `json:"reclaimPolicy"`
	// NodeAffinity says which nodes can use the volume.
	// +optional
	NodeAffinity *corev1.NodeSelector `json:"nodeAffinity,omitempty"`
	// ClaimLabels are the claim's labels.
	// +optional
	ClaimLabels map[string]string `json:"claimLabels,omitempty"`
}

// VolumeReport is what a cluster says about a VolumeTransfer.
type VolumeReport struct {
	Claim string `json:"claim"`
	// Revision of the VolumeTransfer that the report is about.
	Revision int32       `json:"revision"`
	State    VolumeState `json:"state"`
	// Message explains what the cluster waits for, or why it cannot do its part.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Volume is set by the cluster that has the claim, while it is asked for.
	// +optional
	Volume *VolumeDescription `json:"volume,omitempty"`
}

// VolumeState is the state of a claim in one cluster.
// +kubebuilder:validation:Enum=Pending;Absent;InUse;Detached;Ready;Attached;Settled
type VolumeState string

// The values of VolumeState.
const (
	// VolumePending: the cluster has not done its part yet. The message says why.
	VolumePending VolumeState = "Pending"
	// VolumeAbsent: the cluster has neither the claim nor its PersistentVolume.
	VolumeAbsent VolumeState = "Absent"
	// VolumeInUse: the cluster has the claim, and the volume is kept if the claim is deleted.
	VolumeInUse VolumeState = "InUse"
	// VolumeDetached: as VolumeInUse, and nothing uses the volume.
	VolumeDetached VolumeState = "Detached"
	// VolumeReady: the cluster can use the volume.
	VolumeReady VolumeState = "Ready"
	// VolumeBound: the claim is bound to the volume, and a Pod may use it.
	VolumeBound VolumeState = "Attached"
	// VolumeSettled: as VolumeBound, and the volume has the reclaim policy that it had before.
	VolumeSettled VolumeState = "Settled"
)

// MaxVolumeTransfers is how many claims of an object are in a transfer at the same time.
const MaxVolumeTransfers = 32
