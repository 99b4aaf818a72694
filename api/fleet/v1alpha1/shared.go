package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SharedAPI makes member clusters serve API groups of the control plane as if these were their own:
// each member's API server forwards requests for the groups.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=sharedapis,categories=fleet
// +kubebuilder:printcolumn:name="Groups",type=string,JSONPath=`.spec.groups`
// +kubebuilder:printcolumn:name="Exposed",type=string,JSONPath=`.status.exposed`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SharedAPI struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SharedAPISpec `json:"spec"`
	// +optional
	Status SharedAPIStatus `json:"status,omitempty"`
}

// SharedAPIList is a list of SharedAPIs.
//
// +kubebuilder:object:root=true
type SharedAPIList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SharedAPI `json:"items"`
}

// SharedAPISpec is which groups are shared with which members.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusters) != has(self.clusterSelector)",message="set either clusters or clusterSelector"
type SharedAPISpec struct {
	// Groups are API groups that CustomResourceDefinitions of the control plane
	// define. All of their versions are served.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`
	Groups []string `json:"groups"`
	// Clusters names the members that serve the groups.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	Clusters []string `json:"clusters,omitempty"`
	// ClusterSelector selects members by the labels of their Clusters instead. An empty selector
	// selects all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Namespaces is what happens when a member creates an object in a namespace that the control
	// plane does not have, or writes an object in a namespace that the member does not have.
	// +optional
	// +kubebuilder:default=Provide
	Namespaces NamespacePolicy `json:"namespaces,omitempty"`
	// Authorization is which RBAC authorizes the users of members.
	// +optional
	// +kubebuilder:default=Atoll
	Authorization AuthorizationMode `json:"authorization,omitempty"`
}

// AuthorizationMode is which RBAC authorizes the users of members.
// +kubebuilder:validation:Enum=Atoll;Member
type AuthorizationMode string

// The values of AuthorizationMode.
const (
	// AuthorizationAtoll uses only the control plane's RBAC.
	AuthorizationAtoll AuthorizationMode = "Atoll"
	// AuthorizationMember also allows what the user's own cluster allows. The cluster is asked by
	// SubjectAccessReview, with the kubeconfig with which it joined. Answers are cached for ten
	// seconds.
	AuthorizationMember AuthorizationMode = "Member"
)

// NamespacePolicy is how shared objects get their namespaces.
// +kubebuilder:validation:Enum=Provide;Require
type NamespacePolicy string

// The values of NamespacePolicy.
const (
	// NamespacesProvide creates the namespace on first use: in the control plane, and in the member,
	// which otherwise rejects events about the object.
	NamespacesProvide NamespacePolicy = "Provide"
	// NamespacesRequire rejects the object until a user creates the namespace in the control plane.
	// Events about objects in a namespace that the member does not have are lost.
	NamespacesRequire NamespacePolicy = "Require"
)

// SharedAPIStatus is the observed state of a SharedAPI.
type SharedAPIStatus struct {
	// Clusters has an entry for each member that serves the groups, should serve them, or still has
	// objects for them.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterExposure `json:"clusters,omitempty"`
	// Exposed is serving/chosen members in readable form.
	// +optional
	Exposed string `json:"exposed,omitempty"`
	// Conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// ClusterExposure is the state of one member. The entry is added before the first write to the
// member, and removed when nothing is left there.
type ClusterExposure struct {
	Name string `json:"name"`
	// Exposed: the member serves all of its groups.
	Exposed bool `json:"exposed"`
	// Reason: see the Exposure constants.
	Reason string `json:"reason"`
	// Message explains the problem and its remedy.
	// +optional
	Message string `json:"message,omitempty"`
	// Versions that the member is configured to serve, as group/version.
	// +optional
	// +listType=atomic
	Versions []string `json:"versions,omitempty"`
	// LastTransitionTime is when Exposed or Reason last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// SharedReady is the condition of a SharedAPI: all chosen members serve all groups.
const SharedReady = "Ready"

// Reasons in a ClusterExposure, and of the condition Ready if all members have the same reason.
const (
	// ExposureExposed: the member serves the groups.
	ExposureExposed = "Exposed"
	// ExposureApplying: the member is about to be configured, or was just configured.
	ExposureApplying = "Applying"
	// ExposureUnavailable: the member is configured, and its API server cannot reach Atoll.
	ExposureUnavailable = "Unavailable"
	// ExposureClusterUnreachable: the member does not answer.
	ExposureClusterUnreachable = "ClusterUnreachable"
	// ExposureClusterPulls: the cluster is in mode Pull, so Atoll cannot configure its API server.
	ExposureClusterPulls = "ClusterPulls"
	// ExposureNoSuchCluster: no Cluster of that name has joined.
	ExposureNoSuchCluster = "NoSuchCluster"
	// ExposureNoSuchGroup: no CustomResourceDefinition defines the group.
	ExposureNoSuchGroup = "NoSuchGroup"
	// ExposureGroupConflict: the member already has the group, or another SharedAPI exposes it
	// there.
	ExposureGroupConflict = "GroupConflict"
	// ExposureNoFrontProxy: the member's API server has no front-proxy authority, so its users
	// cannot be authenticated.
	ExposureNoFrontProxy = "NoFrontProxy"
	// ExposureSharedAuthority: another member has the same front-proxy authority, so each could
	// impersonate the other's users.
	ExposureSharedAuthority = "SharedAuthority"
	// ExposureNoServers: no server announces an address for members.
	ExposureNoServers = "NoServers"
	// ExposureApplyFailed: the member rejected a configuration object.
	ExposureApplyFailed = "ApplyFailed"
	// ExposureRemoving: no longer wanted there, and not yet known to be gone.
	ExposureRemoving = "Removing"
	// ExposureOwnersInUse: no longer wanted there, but objects of the member have owners in the
	// group, and its garbage collector would delete them.
	ExposureOwnersInUse = "OwnersInUse"
	// ExposureNotAllExposed, only of the condition: members fail for different reasons.
	ExposureNotAllExposed = "NotAllExposed"
)

// FrontProxy is how a member's API server authenticates itself to the servers that it forwards
// requests to, and how it identifies its user. The member publishes it in ConfigMap
// kube-system/extension-apiserver-authentication.
type FrontProxy struct {
	// CABundle verifies the client certificate, in PEM.
	CABundle []byte `json:"caBundle"`
	// AllowedNames are the accepted common names of certificates; empty accepts every certificate
	// of the CA.
	// +optional
	// +listType=atomic
	AllowedNames []string `json:"allowedNames,omitempty"`
	// UsernameHeaders and the following fields name the headers, by precedence.
	// +optional
	// +listType=atomic
	UsernameHeaders []string `json:"usernameHeaders,omitempty"`
	// +optional
	// +listType=atomic
	GroupHeaders []string `json:"groupHeaders,omitempty"`
	// +optional
	// +listType=atomic
	ExtraHeaderPrefixes []string `json:"extraHeaderPrefixes,omitempty"`
	// +optional
	// +listType=atomic
	UIDHeaders []string `json:"uidHeaders,omitempty"`
}

// Selects reports whether the SharedAPI selects a member. The member may still not get every group:
// see SharedWith.
func (s *SharedAPI) Selects(c *Cluster) bool {
	if s.Spec.ClusterSelector == nil {
		return slices.Contains(s.Spec.Clusters, c.Name)
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.ClusterSelector)
	return err == nil && selector.Matches(labels.Set(c.Labels))
}

// Exposure returns the entry of a member.
func (s *SharedAPI) Exposure(cluster string) (ClusterExposure, bool) {
	for _, e := range s.Status.Clusters {
		if e.Name == cluster {
			return e, true
		}
	}
	return ClusterExposure{}, false
}

// SharedWith returns the groups that a member should serve, each with its SharedAPI. If two have
// the same group for a member, the older one wins. A SharedAPI or member that is being deleted
// shares nothing. SharedWith does not change all.
func SharedWith(c *Cluster, all []*SharedAPI) map[string]*SharedAPI {
	out := map[string]*SharedAPI{}
	if c.DeletionTimestamp != nil {
		return out
	}
	for _, s := range slices.SortedFunc(slices.Values(all), older) {
		if s.DeletionTimestamp != nil || !s.Selects(c) {
			continue
		}
		for _, g := range s.Spec.Groups {
			if out[g] == nil {
				out[g] = s
			}
		}
	}
	return out
}

func older(a, b *SharedAPI) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
