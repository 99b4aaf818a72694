package v1alpha1

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SharedAPI has member clusters serve API groups of the control plane as if they
// were their own: each member's API server passes requests for the groups on.
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

// SharedAPISpec says which groups are shared, and with whom.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusters) != has(self.clusterSelector)",message="give either clusters or clusterSelector"
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
	// ClusterSelector chooses them by the labels of their Clusters instead. An
	// empty selector chooses all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Namespaces says what happens when a member creates an object in a namespace
	// that the control plane does not have.
	// +optional
	// +kubebuilder:default=Provide
	Namespaces NamespacePolicy `json:"namespaces,omitempty"`
	// Authorization says who decides what users of members may do with the groups.
	// +optional
	// +kubebuilder:default=Atoll
	Authorization AuthorizationMode `json:"authorization,omitempty"`
}

// AuthorizationMode says who decides what users of members may do.
// +kubebuilder:validation:Enum=Atoll;Member
type AuthorizationMode string

// The values of AuthorizationMode.
const (
	// AuthorizationAtoll leaves it to the control plane's own RBAC.
	AuthorizationAtoll AuthorizationMode = "Atoll"
	// AuthorizationMember also allows what the user's own cluster does: it is asked
	// by SubjectAccessReview, through the kubeconfig with which it joined, and its
	// answers hold for ten seconds.
	AuthorizationMember AuthorizationMode = "Member"
)

// NamespacePolicy says how shared objects get their namespaces.
// +kubebuilder:validation:Enum=Provide;Require
type NamespacePolicy string

// The values of NamespacePolicy.
const (
	// NamespacesProvide makes the namespace on first use.
	NamespacesProvide NamespacePolicy = "Provide"
	// NamespacesRequire refuses the object until somebody made the namespace.
	NamespacesRequire NamespacePolicy = "Require"
)

// SharedAPIStatus is what became of it.
type SharedAPIStatus struct {
	// Clusters has an entry for each member that serves the groups, should, or
	// still holds something of them.
	// +optional
	// +listType=map
	// +listMapKey=name
	Clusters []ClusterExposure `json:"clusters,omitempty"`
	// Exposed counts the members that serve all groups out of those chosen, for
	// people.
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

// ClusterExposure is how one member fares. The entry exists from before anything
// is written to the member until it is known that nothing is left there.
type ClusterExposure struct {
	Name string `json:"name"`
	// Exposed: the member serves all groups that it should.
	Exposed bool `json:"exposed"`
	// Reason: see the Exposure constants.
	Reason string `json:"reason"`
	// Message says what stands in the way and what to do about it.
	// +optional
	Message string `json:"message,omitempty"`
	// Versions that the member was told to serve, as group/version.
	// +optional
	// +listType=atomic
	Versions []string `json:"versions,omitempty"`
	// LastTransitionTime is when Exposed or Reason last changed.
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
}

// SharedReady is the condition of a SharedAPI: all chosen members serve all
// groups.
const SharedReady = "Ready"

// Reasons in a ClusterExposure, and of the Ready condition unless members differ.
const (
	// ExposureExposed: the member serves the groups.
	ExposureExposed = "Exposed"
	// ExposureApplying: about to be written for the first time, or just written.
	ExposureApplying = "Applying"
	// ExposureUnavailable: the member has all that it needs, and its API server does
	// not get through.
	ExposureUnavailable = "Unavailable"
	// ExposureClusterUnreachable: the member does not answer.
	ExposureClusterUnreachable = "ClusterUnreachable"
	// ExposureClusterPulls: the cluster is in mode Pull, so nobody can have its API server
	// call Atoll.
	ExposureClusterPulls = "ClusterPulls"
	// ExposureNoSuchCluster: no Cluster of that name has joined.
	ExposureNoSuchCluster = "NoSuchCluster"
	// ExposureNoSuchGroup: no CustomResourceDefinition defines the group.
	ExposureNoSuchGroup = "NoSuchGroup"
	// ExposureGroupConflict: the member has the group from elsewhere, or another
	// SharedAPI exposes it there.
	ExposureGroupConflict = "GroupConflict"
	// ExposureNoFrontProxy: the member's API server has no front-proxy authority,
	// so nobody could tell its users apart.
	ExposureNoFrontProxy = "NoFrontProxy"
	// ExposureSharedAuthority: another member has the same front-proxy authority,
	// so each could speak for the other's users.
	ExposureSharedAuthority = "SharedAuthority"
	// ExposureNoServers: no server announces an address for members.
	ExposureNoServers = "NoServers"
	// ExposureApplyFailed: the member refused what it should have.
	ExposureApplyFailed = "ApplyFailed"
	// ExposureRemoving: no longer wanted there, and not yet known to be gone.
	ExposureRemoving = "Removing"
	// ExposureNotAllExposed, of the condition only: members fail for different
	// reasons.
	ExposureNotAllExposed = "NotAllExposed"
)

// FrontProxy is how a member's API server proves, towards servers that it passes
// requests on to, that it is itself, and how it says who its user is. It is what
// the member publishes in ConfigMap
// kube-system/extension-apiserver-authentication.
type FrontProxy struct {
	// CABundle verifies the client certificate, in PEM.
	CABundle []byte `json:"caBundle"`
	// AllowedNames are the common names of certificates that are accepted; empty
	// for any that the CA signed.
	// +optional
	// +listType=atomic
	AllowedNames []string `json:"allowedNames,omitempty"`
	// UsernameHeaders and the following name the headers, most important first.
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

// Selects tells whether the SharedAPI is meant for a member: not whether the
// member gets every group of it. See SharedWith.
func (s *SharedAPI) Selects(c *Cluster) bool {
	if s.Spec.ClusterSelector == nil {
		return slices.Contains(s.Spec.Clusters, c.Name)
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.ClusterSelector)
	return err == nil && selector.Matches(labels.Set(c.Labels))
}

// Exposure gives the entry of a member.
func (s *SharedAPI) Exposure(cluster string) (ClusterExposure, bool) {
	for _, e := range s.Status.Clusters {
		if e.Name == cluster {
			return e, true
		}
	}
	return ClusterExposure{}, false
}

// SharedWith gives the groups that a member is to serve, each with the SharedAPI
// that says so. Where two name one group for the same member, the older wins. What
// is on its way out, SharedAPI or member, shares nothing. It does not change all.
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
