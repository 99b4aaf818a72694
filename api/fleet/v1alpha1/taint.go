package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Taint keeps objects whose policy does not tolerate it out of a Cluster.
type Taint struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// Effect on objects that do not tolerate the taint.
	Effect TaintEffect `json:"effect"`
	// TimeAdded is when tolerationSeconds start. If omitted, it is when Atoll first observed the
	// taint with this value: see status.taints.
	// +optional
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

// ObservedTaint is when a NoExecute taint was first observed in the spec, if the taint has no
// timeAdded.
type ObservedTaint struct {
	Key string `json:"key"`
	// +optional
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
	Since  metav1.Time `json:"since"`
}

// Same reports whether two records are for the same taint.
func (t ObservedTaint) Same(other ObservedTaint) bool {
	return t.Key == other.Key && t.Value == other.Value && t.Effect == other.Effect
}

// TaintsWithTime returns the taints of the spec and those that policies added. NoExecute taints have
// the time when tolerations start, if it is known.
func (c *Cluster) TaintsWithTime() []Taint {
	out := slices.Clone(c.Spec.Taints)
	for i, t := range out {
		if t.Effect != TaintNoExecute || t.TimeAdded != nil {
			continue
		}
		for _, seen := range c.Status.Taints {
			if seen.Same(ObservedTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}) {
				out[i].TimeAdded = seen.Since.DeepCopy()
			}
		}
	}
	for i := range c.Status.PolicyTaints {
		added := &c.Status.PolicyTaints[i]
		t := Taint{Key: added.Key, Value: added.Value, Effect: added.Effect}
		if t.Effect == TaintNoExecute {
			t.TimeAdded = added.TimeAdded.DeepCopy()
		}
		same := slices.IndexFunc(out, func(o Taint) bool { return added.Same(o.Key, o.Value, o.Effect) })
		switch {
		case same < 0:
			out = append(out, t)
		case t.TimeAdded != nil && (out[same].TimeAdded == nil || t.TimeAdded.Before(out[same].TimeAdded)):
			// The taint is one, whoever added it, and is as old as its oldest source.
			out[same].TimeAdded = t.TimeAdded
		}
	}
	return out
}

// TaintEffect is what a taint does.
// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
type TaintEffect string

// The values of TaintEffect.
const (
	// TaintNoSchedule: no new objects. Existing objects stay.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintPreferNoSchedule: no new objects if other clusters can take them.
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	// TaintNoExecute: no new objects, and existing objects move as soon as another cluster can take
	// them.
	TaintNoExecute TaintEffect = "NoExecute"
)

// TaintNotReady stands, in tolerations, for a Cluster that is not Ready because it is unreachable. Clusters do not
// have this taint. A toleration of it replaces Cluster.spec.evictAfter.
const TaintNotReady = Group + "/not-ready"

// Toleration lets objects be placed in, or stay in, Clusters with certain taints.
//
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value)",message="operator Exists takes no value"
// +kubebuilder:validation:XValidation:rule="has(self.key) || (has(self.operator) && self.operator == 'Exists')",message="without a key the operator must be Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",message="tolerationSeconds requires effect NoExecute"
type Toleration struct {
	// Key of the taint; any if omitted.
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
	// Effect of the taint; any if omitted.
	// +optional
	Effect TaintEffect `json:"effect,omitempty"`
	// TolerationSeconds is how long an object stays in a cluster with a NoExecute taint; for ever
	// if omitted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// Tolerates reports whether the toleration matches a taint.
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

// ClusterLimits bound what the fleet may place in a Cluster, by the requests of pods. Above the
// limits it takes no new objects. Existing objects stay.
//
// +kubebuilder:validation:XValidation:rule="has(self.cpu) || has(self.memory) || has(self.pods) || has(self.percentOfAllocatable)",message="set cpu, memory, pods or percentOfAllocatable"
type ClusterLimits struct {
	// CPU in total.
	// +optional
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// Memory in total.
	// +optional
	Memory *resource.Quantity `json:"memory,omitempty"`
	// Pods in total.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Pods *int64 `json:"pods,omitempty"`
	// PercentOfAllocatable also limits each of them to a percentage of the cluster's allocatable
	// resources. It has no effect while they are unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	PercentOfAllocatable *int32 `json:"percentOfAllocatable,omitempty"`
}
