package v1alpha1

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TypePolicy publishes types of members in the control plane by API group.
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

// TypePolicySpec is a policy for the types of some groups.
type TypePolicySpec struct {
	// Groups are API groups: exact (example.com), all below one (*.example.com), or all (*). The
	// policy with the most specific match applies to a group, and of equal ones the older. Groups
	// of Kubernetes itself, including "core", and groups that members serve by aggregation are
	// imported only if a policy names them exactly.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`
	Groups []string `json:"groups"`
	// Publish is whether the control plane gets a CustomResourceDefinition for the intersection of
	// all members' types. The setting of a NegotiatedAPIResource takes precedence.
	// +optional
	// +kubebuilder:default=Never
	Publish PublishPolicy `json:"publish,omitempty"`
	// SchemaUpdateStrategy applies to imports without their own.
	// +optional
	// +kubebuilder:default=UpdateUnpublished
	SchemaUpdateStrategy SchemaUpdateStrategy `json:"schemaUpdateStrategy,omitempty"`
}

// PublishPolicy is whether types are published.
// +kubebuilder:validation:Enum=Automatically;Never
type PublishPolicy string

// The values of PublishPolicy.
const (
	PublishAutomatically PublishPolicy = "Automatically"
	PublishNever         PublishPolicy = "Never"
)

// specificity returns how specifically a policy names a group: 0 if not at all.
func (p *TypePolicy) specificity(group string) int {
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

// PolicyFor returns the policy for a group, if there is one, and whether it names the group
// exactly.
func PolicyFor(group string, all []*TypePolicy) (policy *TypePolicy, inFull bool) {
	best := 0
	for _, p := range all {
		e := p.specificity(group)
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
