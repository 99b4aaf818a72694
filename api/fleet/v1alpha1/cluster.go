package v1alpha1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Cluster is a member cluster: a real Kubernetes cluster that runs what is
// placed on it.
//
// The names system, atoll, kubernetes and kubeadm are reserved: a member's name
// comes before those of its users. A Cluster that has one already may leave.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !(self.metadata.name in ['system', 'atoll', 'kubernetes', 'kubeadm'])",optionalOldSelf=true,message="the name is reserved: its users would get names of Atoll's or Kubernetes' own; choose another"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=fleet
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Unschedulable",type=boolean,JSONPath=`.spec.unschedulable`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterSpec `json:"spec"`
	// +optional
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Cluster `json:"items"`
}

// ClusterSpec is what its owner wants of a Cluster.
//
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Pull') != has(self.kubeconfigSecretRef)",message="mode Push needs kubeconfigSecretRef, which says how Atoll reaches the cluster; mode Pull must not have one"
type ClusterSpec struct {
	// Mode is Push, where Atoll reaches the cluster, or Pull, where a syncer that runs
	// elsewhere reaches Atoll.
	// +optional
	// +kubebuilder:default=Push
	Mode ClusterMode `json:"mode,omitempty"`
	// KubeconfigSecretRef names the Secret whose key "kubeconfig" says how to
	// reach the cluster. In mode Pull there is none.
	// +optional
	KubeconfigSecretRef SecretReference `json:"kubeconfigSecretRef,omitzero"`
	// Unschedulable keeps new work away (a cordon). What runs there stays.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// EvictAfter is how long the cluster may be not Ready before its share moves
	// to others.
	// +optional
	// +kubebuilder:default="5m"
	EvictAfter *metav1.Duration `json:"evictAfter,omitempty"`
	// Syncer says how the cluster's syncer works.
	// +optional
	Syncer *SyncerSpec `json:"syncer,omitempty"`
	// Taints keep away, or drive away, objects whose policy does not tolerate them.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MaxItems=64
	Taints []Taint `json:"taints,omitempty"`
	// Limits bound what the fleet puts into the cluster.
	// +optional
	Limits *ClusterLimits `json:"limits,omitempty"`
}

// SyncerSpec says how a cluster's syncer works.
type SyncerSpec struct {
	// MaxDeletePercent is how much of what the fleet keeps in the cluster may be
	// removed within DeletionWindow because decisions changed, or types went; a few
	// objects (MinDeletions) always may. Beyond that nothing is removed until a person
	// allows it: `atoll clusters allow-deletions`. 100 switches this off.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxDeletePercent *int32 `json:"maxDeletePercent,omitempty"`
}

// What bounds removals where a Cluster does not say.
const (
	DefaultMaxDeletePercent = 20
	MinDeletions            = 10
	DeletionWindow          = 5 * time.Minute
)

// MaxDeletePercent gives the bound that holds for the cluster.
func (c *Cluster) MaxDeletePercent() int32 {
	if c.Spec.Syncer == nil || c.Spec.Syncer.MaxDeletePercent == nil {
		return DefaultMaxDeletePercent
	}
	return *c.Spec.Syncer.MaxDeletePercent
}

// DeletionsAllowed tells whether a person lets removals through at this time,
// however many they are.
func (c *Cluster) DeletionsAllowed(now time.Time) bool {
	until, err := time.Parse(time.RFC3339, c.Annotations[AllowDeletionsAnnotation])
	return err == nil && now.Before(until)
}

// Accepts tells whether a real cluster with this ID may be the one that this Cluster
// stands for. An ID that is not known is no reason against it.
func (c *Cluster) Accepts(id string) bool {
	return id == "" || c.Status.ID == "" || id == c.Status.ID || id == c.Annotations[AcceptIDAnnotation]
}

// ValidClusterID tells whether a member may call itself that: people are shown it in
// commands to copy.
func ValidClusterID(id string) bool { return len(validation.IsDNS1123Label(id)) == 0 }

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// ClusterStatus is what the fleet sees of a Cluster.
type ClusterStatus struct {
	// Conditions: Ready (see the Reason constants); while a deleted Cluster still
	// holds objects, Leaving; and DeletionsHalted.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ID identifies the real cluster: the UID of its kube-system namespace.
	// +optional
	ID string `json:"id,omitempty"`
	// Version is the Kubernetes version that the cluster reports.
	// +optional
	Version string `json:"version,omitempty"`
	// +optional
	Nodes *NodeCount `json:"nodes,omitempty"`
	// Capacity is the sum over all nodes.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Allocatable is the sum over the nodes that are ready and not cordoned.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// LastProbeTime is when the cluster was last probed, successfully or not. It
	// is refreshed when something changes and at least every minute or so.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// FrontProxy is how the member's API server proves to be itself where it passes
	// requests on. It is read from members that are to serve a SharedAPI.
	// +optional
	FrontProxy *FrontProxy `json:"frontProxy,omitempty"`
	// Taints has since when taints of the spec with effect NoExecute have been there,
	// where they do not say it themselves.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Taints []TaintSeen `json:"taints,omitempty"`
	// Types is what was last read of the types that the member serves.
	// +optional
	Types *TypesSeen `json:"types,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// TypesSeen is what was read of the types that a member serves.
type TypesSeen struct {
	// Digest changes with anything that placement goes by: which types and versions the
	// member serves, and their fields.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Imported counts the APIResourceImports of the cluster.
	Imported int32 `json:"imported"`
	// LastReadTime is when the types were last read in full. It is refreshed when
	// something changes and about every ten minutes.
	// +optional
	LastReadTime *metav1.Time `json:"lastReadTime,omitempty"`
	// Message says what could not be read and what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
}

// NodeCount counts the nodes of a cluster.
type NodeCount struct {
	Total int32 `json:"total"`
	Ready int32 `json:"ready"`
	// Summary is ready/total, for people.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// The conditions of a Cluster.
const (
	ClusterReady   = "Ready"
	ClusterLeaving = "Leaving"
	// ClusterDeletionsHalted is the syncer's: it would have to remove more at once than
	// the Cluster allows, and waits for a person.
	ClusterDeletionsHalted = "DeletionsHalted"
)

// Reasons of a Cluster's DeletionsHalted condition.
const (
	ReasonTooManyDeletions = "TooManyDeletions"
	ReasonWithinBounds     = "WithinBounds"
)

// Reasons of a Cluster's Ready condition; the names are kcp's.
const (
	// ReasonClusterStatusUnknown: not probed yet.
	ReasonClusterStatusUnknown = "ClusterStatusUnknown"
	// ReasonClusterReady: it answers and says that it is ready.
	ReasonClusterReady = "ClusterReady"
	// ReasonClusterNotReady: it answers and says that it is not ready.
	ReasonClusterNotReady = "ClusterNotReady"
	// ReasonClusterUnreachable: it does not answer.
	ReasonClusterUnreachable = "ClusterUnreachable"
	// ReasonInvalidKubeConfig: the Secret or the kubeconfig in it is not usable.
	ReasonInvalidKubeConfig = "InvalidKubeConfig"
	// ReasonErrorCreatingClient: the kubeconfig is well-formed but makes no client.
	ReasonErrorCreatingClient = "ErrorCreatingClient"
	// ReasonErrorInstallingSyncer: the syncer of a cluster in mode Pull has never come.
	ReasonErrorInstallingSyncer = "ErrorInstallingSyncer"
	// ReasonErrorStartingSyncer: the cluster answers but its syncer does not run.
	ReasonErrorStartingSyncer = "ErrorStartingSyncer"
	// ReasonWrongCluster: who answers is another cluster than the one that joined.
	ReasonWrongCluster = "WrongCluster"
)

// Reasons of a Cluster's Leaving condition.
const (
	ReasonRemovingObjects   = "RemovingObjects"
	ReasonWaitingForCluster = "WaitingForCluster"
)

// DefaultEvictAfter is used where a Cluster does not say.
const DefaultEvictAfter = 5 * time.Minute

// Tolerates gives how long the cluster may be not Ready before its share moves.
func (c *Cluster) Tolerates() time.Duration {
	if c.Spec.EvictAfter == nil {
		return DefaultEvictAfter
	}
	return c.Spec.EvictAfter.Duration
}

// Leaves tells whether the cluster is on its way out, and whether what runs
// there is left running.
func (c *Cluster) Leaves() (leaving, orphan bool) {
	return c.DeletionTimestamp != nil, c.Annotations[LeaveAnnotation] == LeaveOrphan
}
