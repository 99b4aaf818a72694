package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Taint keeps objects away from a Cluster whose policy does not tolerate it.
type Taint struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect on objects that do not tolerate the taint.
	Effect TaintEffect `json:"effect"`
	// TimeAdded is from when tolerationSeconds count. Left out, it is when Atoll first
	// saw the taint with this value: see status.taints.
	// +optional
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

// TaintSeen says since when a taint with effect NoExecute has been in the spec that does
// not say so itself.
type TaintSeen struct {
	Key string `json:"key"`
	// +optional
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
	Since  metav1.Time `json:"since"`
}

// Same tells whether two records are about the same taint.
func (t TaintSeen) Same(other TaintSeen) bool {
	return t.Key == other.Key && t.Value == other.Value && t.Effect == other.Effect
}

// DatedTaints gives the taints of the spec, each that drives objects away with the time
// from which tolerations of it count, where that is known.
func (c *Cluster) DatedTaints() []Taint {
	out := slices.Clone(c.Spec.Taints)
	for i, t := range out {
		if t.Effect != TaintNoExecute || t.TimeAdded != nil {
			continue
		}
		for _, seen := range c.Status.Taints {
			if seen.Same(TaintSeen{Key: t.Key, Value: t.Value, Effect: t.Effect}) {
				out[i].TimeAdded = seen.Since.DeepCopy()
			}
		}
	}
	return out
}

// TaintEffect is what a taint does.
// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
type TaintEffect string

// The values of TaintEffect.
const (
	// TaintNoSchedule: nothing new. What runs there stays.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintPreferNoSchedule: nothing new if others can take it.
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	// TaintNoExecute: nothing new, and what runs there moves as soon as another
	// cluster can take it.
	TaintNoExecute TaintEffect = "NoExecute"
)

// TaintNotReady stands, in tolerations, for a Cluster that is not Ready. There
// is no such taint in Clusters. A toleration of it replaces Cluster.spec.evictAfter.
const TaintNotReady = Group + "/not-ready"

// Toleration lets objects go to, or stay in, Clusters with certain taints.
//
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",message="operator Exists takes no value"
// +kubebuilder:validation:XValidation:rule="has(self.key) || (has(self.operator) && self.operator == 'Exists')",message="without a key the operator must be Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",message="tolerationSeconds goes with effect NoExecute"
type Toleration struct {
	// Key of the taint; any if it is left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// Operator: Equal compares the values, Exists does not.
	// +optional
	// +kubebuilder:validation:Enum=Exists;Equal
	// +kubebuilder:default=Equal
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect of the taint; any if it is left out.
	// +optional
	Effect TaintEffect `json:"effect,omitempty"`
	// TolerationSeconds is how long an object stays in a cluster with a NoExecute
	// taint; for ever if it is left out.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Tolerates tells whether the toleration is about a taint.
func (t *Toleration) Tolerates(taint *Taint) bool {
	switch {
	case t.Effect != "" && t.Effect != taint.Effect:
		return false
	case t.Key != "" && t.Key != taint.Key:
		return false
	case t.Operator == corev1.TolerationOpExists:
		return true
	}
	return t.Key != "" && t.Value == taint.Value
}

// ClusterLimits bound what the fleet puts into a Cluster, by what pods request.
// Beyond them it takes nothing new; what is there stays.
//
// +kubebuilder:validation:XValidation:rule="has(self.cpu) || has(self.memory) || has(self.pods) || has(self.percentOfAllocatable)",message="give cpu, memory, pods or percentOfAllocatable"
type ClusterLimits struct {
	// CPU in all: processors.
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// Memory in all.
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// Pods in all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pods *int64 `json:"pods,omitempty"`
	// PercentOfAllocatable bounds each of them by a part of what the cluster has too.
	// While that is not known it bounds nothing.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	PercentOfAllocatable *int32 `json:"percentOfAllocatable,omitempty"`
}
