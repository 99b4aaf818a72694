package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterTaintPolicy adds taints to clusters while conditions of the Clusters hold, and removes them
// afterwards. The conditions are Atoll's own, or those of any client that may write clusters/status,
// such as a health checker.
//
// The taints are in Cluster.status.policyTaints. Taints in Cluster.spec.taints are never changed.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=clustertaintpolicies,singular=clustertaintpolicy,shortName=ctp,categories=fleet
// +kubebuilder:printcolumn:name="When",type=string,JSONPath=`.spec.when[*].type`
// +kubebuilder:printcolumn:name="Taints",type=string,JSONPath=`.spec.taints[*].key`
// +kubebuilder:printcolumn:name="Tainted",type=integer,JSONPath=`.status.taintedClusters`,description="Clusters that have a taint of the policy"
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterTaintPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterTaintPolicySpec `json:"spec"`
	// +optional
	Status ClusterTaintPolicyStatus `json:"status,omitempty"`
}

// ClusterTaintPolicyList is a list of ClusterTaintPolicies.
//
// +kubebuilder:object:root=true
type ClusterTaintPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterTaintPolicy `json:"items"`
}

// ClusterTaintPolicySpec says which clusters get which taints, and when.
//
// +kubebuilder:validation:XValidation:rule="!self.when.exists(w, w.type == 'DeletionsHalted') || !self.taints.exists(t, t.effect == 'NoExecute')",message="a taint NoExecute permits all deletions, so it would end the halt that caused it: with the condition DeletionsHalted, use the effect NoSchedule or PreferNoSchedule in taints"
type ClusterTaintPolicySpec struct {
	// Clusters that the policy applies to; all if omitted. A cluster that is no longer selected loses
	// the policy's taints at once.
	// +optional
	Clusters *ClusterSelector `json:"clusters,omitempty"`
	// When are the conditions of a Cluster that must all hold. One that the Cluster does not have does
	// not hold.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	When []ConditionRequirement `json:"when"`
	// Taints that the clusters get.
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Taints []TaintTemplate `json:"taints"`
	// KeepFor is how long the taints stay after the conditions ceased to hold. If they hold again
	// meanwhile, the taints were never away. If omitted, the taints are removed at once.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="at most 8760h (a year)"
	KeepFor *metav1.Duration `json:"keepFor,omitempty"`
}

// ConditionRequirement is a condition of a Cluster with a status.
type ConditionRequirement struct {
	// Type of the condition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	Type string `json:"type"`
	// Status that the condition must have. Unknown must be named, too: False does not include it.
	// +kubebuilder:validation:Enum="True";"False";Unknown
	Status metav1.ConditionStatus `json:"status"`
	// For is how long the condition must have had the status, by its lastTransitionTime. If omitted,
	// it holds at once. It does not apply to taints that a cluster already has.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="at most 8760h (a year)"
	For *metav1.Duration `json:"for,omitempty"`
}

// TaintTemplate is a taint that a policy adds.
type TaintTemplate struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('fleet.atoll.dev/')",message="keys that begin with fleet.atoll.dev/ are reserved for Atoll's own taints: use a key with a domain of your own, or without one"
	Key string `json:"key"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect on objects that do not tolerate the taint.
	Effect TaintEffect `json:"effect"`
}

// ClusterTaintPolicyStatus is the observed state of a ClusterTaintPolicy.
type ClusterTaintPolicyStatus struct {
	// Conditions: Accepted. An invalid policy adds and removes no taints.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// TaintedClusters is the number of clusters that have a taint of the policy.
	// +optional
	TaintedClusters int32 `json:"taintedClusters,omitempty"`
	// ClusterNames are those clusters, the first MaxTaintedClusterNames by name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	ClusterNames []string `json:"clusterNames,omitempty"`
}

// MaxTaintedClusterNames is the maximum length of a ClusterTaintPolicy's status.clusterNames.
const MaxTaintedClusterNames = 100

// MaxPolicyTaints is the maximum number of policies' taints of one Cluster.
const MaxPolicyTaints = 128

// PolicyTaint is a taint of a Cluster that a ClusterTaintPolicy added.
type PolicyTaint struct {
	// Policy is the name of the ClusterTaintPolicy.
	Policy string `json:"policy"`
	Key    string `json:"key"`
	// +optional
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
	// TimeAdded is when the taint was added. Tolerations start then.
	TimeAdded metav1.Time `json:"timeAdded"`
	// CeasedAt is when the conditions of the policy were first observed not to hold any more. The taint
	// stays until the policy's keepFor has elapsed.
	// +optional
	CeasedAt *metav1.Time `json:"ceasedAt,omitempty"`
}

// Same reports whether the taint has this key, value and effect.
func (t *PolicyTaint) Same(key, value string, effect TaintEffect) bool {
	return t.Key == key && t.Value == value && t.Effect == effect
}

// String returns KEY=VALUE:EFFECT.
func (t *PolicyTaint) String() string {
	value := t.Value
	if value != "" {
		value = "=" + value
	}
	return t.Key + value + ":" + string(t.Effect)
}

// Events of a Cluster when a ClusterTaintPolicy changes its taints.
const (
	EventTaintAdded   = "TaintAdded"
	EventTaintRemoved = "TaintRemoved"
	// EventTooManyTaints: policies would add more taints than a Cluster can have.
	EventTooManyTaints = "TooManyTaints"
)
