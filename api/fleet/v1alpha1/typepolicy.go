package v1alpha1

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TypePolicy says which of the types that members have are published in the
// control plane without being asked for one by one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=typepolicies,singular=typepolicy,categories=fleet
// +kubebuilder:printcolumn:name="Groups",type=string,JSONPath=`.spec.groups`
// +kubebuilder:printcolumn:name="Publish",type=string,JSONPath=`.spec.publish`
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.schemaUpdateStrategy`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TypePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec TypePolicySpec `json:"spec"`
}

// TypePolicyList is a list of TypePolicies.
//
// +kubebuilder:object:root=true
type TypePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TypePolicy `json:"items"`
}

// TypePolicySpec is what holds for the types of some groups.
type TypePolicySpec struct {
	// Groups are API groups: in full (example.com), all below one (*.example.com), or
	// all (*). The policy that names a group most exactly decides for it; of two that
	// do alike, the older. Groups of Kubernetes itself, "core" among them, and those
	// that members serve by aggregation are imported only where a policy names them
	// in full.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	Groups []string `json:"groups"`
	// Publish says whether the control plane gets a CustomResourceDefinition of what
	// all members have in common. What a NegotiatedAPIResource says itself comes first.
	// +optional
	// +kubebuilder:default=Never
	Publish PublishPolicy `json:"publish,omitempty"`
	// SchemaUpdateStrategy holds for imports that do not say it themselves.
	// +optional
	// +kubebuilder:default=UpdateUnpublished
	SchemaUpdateStrategy SchemaUpdateStrategy `json:"schemaUpdateStrategy,omitempty"`
}

// PublishPolicy says whether types are published.
// +kubebuilder:validation:Enum=Automatically;Never
type PublishPolicy string

// The values of PublishPolicy.
const (
	PublishAutomatically PublishPolicy = "Automatically"
	PublishNever         PublishPolicy = "Never"
)

// exactness tells how exactly a policy names a group: 0 if not at all.
func (p *TypePolicy) exactness(group string) int {
	group = groupName(group)
	best := 0
	for _, g := range p.Spec.Groups {
		switch below, wild := strings.CutPrefix(g, "*."); {
		case g == group:
			return len(group) + 3
		case wild && strings.HasSuffix(group, "."+below):
			best = max(best, len(below)+2)
		case g == "*":
			best = max(best, 1)
		}
	}
	return best
}

// PolicyFor gives the policy that decides for a group, if any does, and whether it
// names the group in full.
func PolicyFor(group string, all []*TypePolicy) (policy *TypePolicy, inFull bool) {
	best := 0
	for _, p := range all {
		e := p.exactness(group)
		if e == 0 || e < best || e == best && olderPolicy(policy, p) < 0 {
			continue
		}
		best, policy = e, p
	}
	return policy, policy != nil && slices.Contains(policy.Spec.Groups, groupName(group))
}

func olderPolicy(a, b *TypePolicy) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
