package fleet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/quota"
)

// Workload is an object as quotas count it.
type Workload struct {
	Kind   interpret.KindInfo
	Object *unstructured.Unstructured
	// Shares of the clusters; empty before the first decision.
	Shares []v1alpha1.ClusterShare
	// Autoscaler that sets the object's replicas, or nil.
	Autoscaler *unstructured.Unstructured
}

// QuotaObject names the workload in a quota.
func (w *Workload) QuotaObject() v1alpha1.QuotaObject {
	return v1alpha1.QuotaObject{Group: w.Kind.Group, Kind: w.Kind.Kind, Name: w.Object.GetName()}
}

// Uses returns what the workload uses in all clusters together, and its pods for messages. An object
// that several clusters run whole counts once for each.
func (w *Workload) Uses() (corev1.ResourceList, []quota.Pods, error) {
	var most int32
	if w.Autoscaler != nil {
		_, most = interpret.ScaleBounds(w.Autoscaler)
	}
	times, replicas := int64(0), int32(0)
	for _, share := range w.Shares {
		if share.Replicas == nil {
			times++
		} else {
			replicas += *share.Replicas
		}
	}
	if _, atOnce := w.Kind.Pods(w.Object); atOnce > 0 {
		replicas = 0 // the clusters' shares of a Job count completions, not pods
	}
	var pods []quota.Pods
	for _, part := range w.Kind.AllPods(w.Object, max(most, replicas)) {
		pods = append(pods, quota.Pods{Count: part.Replicas * max(1, times), Spec: part.Pod, Requests: part.Requests})
	}
	uses, err := quota.UsesOf(pods)
	return uses, pods, err
}
