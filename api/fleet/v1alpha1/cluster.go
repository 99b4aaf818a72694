package v1alpha1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Cluster is a member cluster: a real Kubernetes cluster that objects are placed in.
//
// The names system, atoll, kubernetes and kubeadm are reserved: the names of a member's users get
// the Cluster's name as a prefix. An existing Cluster with such a name may leave.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !(self.metadata.name in ['system', 'atoll', 'kubernetes', 'kubeadm'])",optionalOldSelf=true,message="the name is reserved: its users would get the names of Atoll's or Kubernetes' own users; choose another name"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=fleet
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Halted",type=string,JSONPath=`.status.conditions[?(@.type=="DeletionsHalted")].status`,description="True: removals wait for atoll clusters allow-deletions"
// +kubebuilder:printcolumn:name="Drain",type=string,JSONPath=`.status.conditions[?(@.type=="Draining")].reason`,description="Draining, Blocked, Paused or Drained, until atoll uncordon"
// +kubebuilder:printcolumn:name="Unschedulable",type=boolean,JSONPath=`.spec.unschedulable`
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

// ClusterSpec is the desired state of a Cluster.
//
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Pull') != has(self.kubeconfigSecretRef)",message="mode Push requires kubeconfigSecretRef, with which Atoll connects to the cluster; mode Pull must not have one"
type ClusterSpec struct {
	// Mode is Push if Atoll connects to the cluster, or Pull if a syncer elsewhere connects to
	// Atoll.
	// +optional
	// +kubebuilder:default=Push
	Mode ClusterMode `json:"mode,omitempty"`
	// KubeconfigSecretRef names the Secret with the cluster's kubeconfig under the key
	// "kubeconfig". It is absent in mode Pull.
	// +optional
	KubeconfigSecretRef SecretReference `json:"kubeconfigSecretRef,omitzero"`
	// Unschedulable keeps new objects out (a cordon). Existing objects stay.
	// +optional
	Unschedulable bool `json:"unschedulable,omitempty"`
	// Drain empties the cluster while it is set.
	// +optional
	Drain *ClusterDrain `json:"drain,omitempty"`
	// EvictAfter is how long the cluster may be unreachable before its share moves to other clusters; less than
	// 20s counts as 20s, because Atoll may notice later that others are unreachable, too.
	// +optional
	// +kubebuilder:default="5m"
	EvictAfter *metav1.Duration `json:"evictAfter,omitempty"`
	// Failover limits how fast the share moves then.
	// +optional
	Failover *ClusterFailover `json:"failover,omitempty"`
	// Syncer configures the cluster's syncer.
	// +optional
	Syncer *SyncerSpec `json:"syncer,omitempty"`
	// Taints keep out, or evict, objects whose policy does not tolerate them.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MaxItems=64
	Taints []Taint `json:"taints,omitempty"`
	// Limits bound what the fleet may place in the cluster.
	// +optional
	Limits *ClusterLimits `json:"limits,omitempty"`
	// Elastic says that the cluster gets other nodes when pods have no room (a cluster autoscaler). What
	// the present nodes can run then keeps nothing out.
	// +optional
	Elastic bool `json:"elastic,omitempty"`
}

// SyncerSpec configures a cluster's syncer.
type SyncerSpec struct {
	// MaxDeletePercent is the share of the fleet's objects in the cluster that may be removed
	// within DeletionWindow because decisions changed or types vanished. A few objects
	// (MinDeletions) may always be removed. Above the limit, nothing is removed until a user allows
	// it with `atoll clusters allow-deletions`. 100 disables the limit.
	// +optional
	// +kubebuilder:default=20
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxDeletePercent *int32 `json:"maxDeletePercent,omitempty"`
}

// Defaults for the deletion limit.
const (
	DefaultMaxDeletePercent = 20
	MinDeletions            = 10
	DeletionWindow          = 5 * time.Minute
)

// MaxDeletePercent returns the limit of the cluster.
func (c *Cluster) MaxDeletePercent() int32 {
	if c.Spec.Syncer == nil || c.Spec.Syncer.MaxDeletePercent == nil {
		return DefaultMaxDeletePercent
	}
	return *c.Spec.Syncer.MaxDeletePercent
}

// DeletionsAllowed reports whether a user allows all deletions at this time.
func (c *Cluster) DeletionsAllowed(now time.Time) bool {
	until, err := time.Parse(time.RFC3339, c.Annotations[AllowDeletionsAnnotation])
	return err == nil && now.Before(until)
}

// AcceptsID reports whether a real cluster with this ID may be the one that this Cluster stands
// for. An unknown ID is accepted.
func (c *Cluster) AcceptsID(id string) bool {
	return id == "" || c.Status.ID == "" || id == c.Status.ID || id == c.Annotations[AcceptIDAnnotation]
}

// ValidClusterID reports whether a member may report this ID. Users get it in commands to copy, so
// it must not contain special characters.
func ValidClusterID(id string) bool { return len(validation.IsDNS1123Label(id)) == 0 }

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// ClusterStatus is the observed state of a Cluster.
type ClusterStatus struct {
	// Conditions: Ready (see the Reason constants), DeletionsHalted, FailoverHeld, Draining while spec.drain
	// is set, and Leaving while a deleted Cluster still has objects. Other clients may add conditions of other types, for
	// ClusterTaintPolicies.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ID identifies the real cluster: the UID of its kube-system namespace.
	// +optional
	ID string `json:"id,omitempty"`
	// Claim is the control plane that the cluster belongs to, as recorded in the cluster.
	// +optional
	Claim *ClusterClaim `json:"claim,omitempty"`
	// Fences: the cluster stops replicas of policies with spec.fencing when it has no contact.
	// +optional
	Fences bool `json:"fences,omitempty"`
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
	// NodeShapes summarizes the nodes that are ready and not cordoned, with their free room. Omitted
	// while the nodes or pods of the cluster cannot be read. Free room is at most some 15 s old.
	// +optional
	NodeShapes *NodeShapes `json:"nodeShapes,omitempty"`
	// PendingPods are the workloads with pods that have had no node for a minute or longer: the first
	// MaxPendingPods of them. Omitted while the pods of the cluster cannot be read.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	PendingPods []PendingPods `json:"pendingPods,omitempty"`
	// NamespaceQuotas are the ResourceQuotas of the cluster that limit pods, in namespaces that the control
	// plane has: the first MaxNamespaceQuotas of them. Omitted while they cannot be read.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	NamespaceQuotas []NamespaceQuota `json:"namespaceQuotas,omitempty"`
	// LastProbeTime is when the cluster was last probed, successfully or not. It
	// is refreshed when something changes and at least every minute or so.
	// +optional
	LastProbeTime *metav1.Time `json:"lastProbeTime,omitempty"`
	// UnreachableSince is when the cluster became unreachable; absent while it is not. The time in
	// spec.evictAfter counts from then.
	// +optional
	UnreachableSince *metav1.Time `json:"unreachableSince,omitempty"`
	// FrontProxy is how the member's API server authenticates itself when it forwards requests. It
	// is read from members that serve a SharedAPI.
	// +optional
	FrontProxy *FrontProxy `json:"frontProxy,omitempty"`
	// Taints records when NoExecute taints of the spec were added, for those without timeAdded.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Taints []ObservedTaint `json:"taints,omitempty"`
	// PolicyTaints are the taints that ClusterTaintPolicies added. They apply like those of the spec.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	PolicyTaints []PolicyTaint `json:"policyTaints,omitempty"`
	// Types is the state of the types that the member serves.
	// +optional
	Types *ObservedTypes `json:"types,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// ClusterClaim names the control plane that writes to a cluster. Any other one, such as a copy of its
// data, does not write there.
type ClusterClaim struct {
	// Holder identifies the control plane: ID/DATABASE.
	Holder string `json:"holder"`
	// Server is the address of one of its servers, if it is another control plane's claim.
	// +optional
	Server string `json:"server,omitempty"`
}

// ObservedTypes is the observed state of a member's types.
type ObservedTypes struct {
	// Digest changes with everything about types that placement depends on: the types and versions
	// that the member serves, and their fields.
	// +optional
	Digest string `json:"digest,omitempty"`
	// Imported is the number of the cluster's APIResourceImports.
	Imported int32 `json:"imported"`
	// LastReadTime is when the types were last read in full. It is refreshed when
	// something changes and about every ten minutes.
	// +optional
	LastReadTime *metav1.Time `json:"lastReadTime,omitempty"`
	// Message explains which types could not be read, and the remedy.
	// +optional
	Message string `json:"message,omitempty"`
}

// MaxNamespaceQuotas is the most entries in a Cluster's namespaceQuotas.
const MaxNamespaceQuotas = 256

// NamespaceQuota is a ResourceQuota of a cluster, as far as it limits pods.
type NamespaceQuota struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Scopes are the requirements for the pods that count; without any, all pods do.
	// +optional
	// +listType=atomic
	Scopes []corev1.ScopedResourceSelectorRequirement `json:"scopes,omitempty"`
	// Hard are the limits, by resource.
	Hard corev1.ResourceList `json:"hard"`
	// Free is the unused part of each limit. It is at most some 15 s old.
	Free corev1.ResourceList `json:"free"`
}

// NodeShapes are the nodes of a cluster that accept pods. Nodes that are equal for pods are one shape.
type NodeShapes struct {
	// Labels that all nodes have.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Varying are the labels with too many values to list, such as the nodes' names.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	Varying []string `json:"varying,omitempty"`
	// Shapes, those with the most nodes first. If there are too many, those with the fewest nodes are
	// omitted.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Shapes []NodeShape `json:"shapes"`
}

// NodeShape is a number of nodes that are equal for pods, or nearly so.
type NodeShape struct {
	// Count of nodes.
	Count int32 `json:"count"`
	// Allocatable of each node.
	Allocatable corev1.ResourceList `json:"allocatable"`
	// Free is what the pods of each node have not requested, rounded down.
	Free corev1.ResourceList `json:"free"`
	// Labels that not all nodes have.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Taints with the effects NoSchedule and NoExecute.
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// MaxPendingPods is the most entries in a Cluster's pendingPods.
const MaxPendingPods = 100

// PendingPods are the pods of one workload that have no node.
type PendingPods struct {
	// Kind of the workload with its group: Deployment.apps.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Count of pods.
	Count int32 `json:"count"`
	// Since is when the last of them began to wait.
	Since metav1.Time `json:"since"`
}

// NodeCount counts the nodes of a cluster.
type NodeCount struct {
	Total int32 `json:"total"`
	Ready int32 `json:"ready"`
	// Summary is ready/total in readable form.
	// +optional
	Summary string `json:"summary,omitempty"`
}

// The conditions of a Cluster.
const (
	ClusterReady   = "Ready"
	ClusterLeaving = "Leaving"
	// ClusterDeletionsHalted is set by the syncer: pending deletions exceed the limit and wait for
	// a user.
	ClusterDeletionsHalted = "DeletionsHalted"
	// ClusterDraining is present while the cluster is drained.
	ClusterDraining = "Draining"
	// ClusterFailoverHeld is True while nothing leaves the cluster although it is unreachable, because
	// too many clusters became unreachable at the same time.
	ClusterFailoverHeld = "FailoverHeld"
)

// Reasons of a Cluster's Draining condition.
const (
	ReasonDraining     = "Draining"
	ReasonDrainPaused  = "Paused"
	ReasonDrainBlocked = "Blocked"
	ReasonDrained      = "Drained"
)

// Reasons of a Cluster's FailoverHeld condition.
const (
	ReasonManyUnreachable = "ManyUnreachable"
	ReasonFewUnreachable  = "FewUnreachable"
)

// Events of a Cluster when its DeletionsHalted condition changes.
const (
	EventDeletionsHalted  = "DeletionsHalted"
	EventDeletionsResumed = "DeletionsResumed"
)

// Reasons of a Cluster's DeletionsHalted condition.
const (
	ReasonTooManyDeletions = "TooManyDeletions"
	ReasonWithinBounds     = "WithinBounds"
)

// Reasons of a Cluster's Ready condition; the names are kcp's.
const (
	// ReasonClusterStatusUnknown: the cluster has not been probed.
	ReasonClusterStatusUnknown = "ClusterStatusUnknown"
	// ReasonClusterReady: the cluster answers and is ready.
	ReasonClusterReady = "ClusterReady"
	// ReasonClusterNotReady: the cluster answers and is not ready.
	ReasonClusterNotReady = "ClusterNotReady"
	// ReasonClusterSlow: the cluster accepts connections, and does not answer in time.
	ReasonClusterSlow = "ClusterSlow"
	// ReasonClusterUnreachable: no connection to the cluster can be made. Of all reasons, only this one makes
	// objects leave the cluster after spec.evictAfter.
	ReasonClusterUnreachable = "ClusterUnreachable"
	// ReasonInvalidServerCertificate: the certificate of the cluster's API server has expired, or is not valid yet.
	ReasonInvalidServerCertificate = "InvalidServerCertificate"
	// ReasonInvalidKubeConfig: the Secret or the kubeconfig in it is not usable.
	ReasonInvalidKubeConfig = "InvalidKubeConfig"
	// ReasonErrorCreatingClient: no client can be created from the kubeconfig.
	ReasonErrorCreatingClient = "ErrorCreatingClient"
	// ReasonErrorInstallingSyncer: the syncer of a cluster in mode Pull has never connected.
	ReasonErrorInstallingSyncer = "ErrorInstallingSyncer"
	// ReasonErrorStartingSyncer: the cluster answers but its syncer does not run.
	ReasonErrorStartingSyncer = "ErrorStartingSyncer"
	// ReasonWrongCluster: another cluster answers than the one that joined.
	ReasonWrongCluster = "WrongCluster"
	// ReasonOtherControlPlane: the cluster belongs to another control plane.
	ReasonOtherControlPlane = "OtherControlPlane"
)

// Reasons of a Cluster's Leaving condition.
const (
	ReasonRemovingObjects   = "RemovingObjects"
	ReasonWaitingForCluster = "WaitingForCluster"
)

// DefaultEvictAfter is the default of spec.evictAfter.
const DefaultEvictAfter = 5 * time.Minute

// EvictAfter returns how long the cluster may be unreachable before its share moves.
func (c *Cluster) EvictAfter() time.Duration {
	if c.Spec.EvictAfter == nil {
		return DefaultEvictAfter
	}
	return c.Spec.EvictAfter.Duration
}

// DrainRate returns how many objects a second begin to leave a drained cluster, and how many leave at the same time.
func (c *Cluster) DrainRate() (rate, maxInFlight int32) {
	rate, maxInFlight = DefaultDrainRate, DefaultDrainMaxInFlight
	if d := c.Spec.Drain; d != nil {
		if d.Rate != nil {
			rate = *d.Rate
		}
		if d.MaxInFlight != nil {
			maxInFlight = *d.MaxInFlight
		}
	}
	return rate, maxInFlight
}

// FailoverRate returns how many objects a second leave the cluster when it is unreachable.
func (c *Cluster) FailoverRate() int32 {
	if c.Spec.Failover == nil || c.Spec.Failover.Rate == nil {
		return DefaultFailoverRate
	}
	return *c.Spec.Failover.Rate
}

// Leaving reports whether the cluster is leaving, and whether its objects are orphaned, which means
// that they keep running.
func (c *Cluster) Leaving() (leaving, orphan bool) {
	return c.DeletionTimestamp != nil, c.Annotations[LeaveAnnotation] == LeaveOrphan
}
