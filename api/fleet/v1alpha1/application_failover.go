package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApplicationFailoverPolicy is when an object leaves a cluster that is Ready and in which the object is not Healthy.
type ApplicationFailoverPolicy struct {
	// After is how long the object is not Healthy in a cluster before its share goes to other clusters. It counts from
	// the last change of the object and of its share. An object that has not been Healthy there since has at
	// least until the deadline of spec.transition, unless it is Degraded. At least 1m.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="at least 1m"
	After metav1.Duration `json:"after"`
}

// MinApplicationFailover is the shortest ApplicationFailoverPolicy: pods that restart, and reports that are late, must
// not move anything.
const MinApplicationFailover = time.Minute

// TrackHealth sets since when the object is not Healthy in a cluster, from the report before. The time begins again when
// the object or its share changes: then clusters need time to run the new version.
func (c *ClusterState) TrackHealth(before *ClusterState, now time.Time) {
	c.UnhealthySince, c.WasHealthy = nil, false
	if c.Health == Healthy || c.UID == "" {
		return
	}
	since := metav1.NewTime(now).Rfc3339Copy()
	c.UnhealthySince = &since
	if before == nil || before.UID != c.UID || before.Generation != c.Generation || before.ShareRevision != c.ShareRevision || !sameReplicas(before.Replicas, c.Replicas) {
		return
	}
	if c.WasHealthy = before.Health == Healthy || before.WasHealthy; before.UnhealthySince != nil {
		c.UnhealthySince = before.UnhealthySince
	}
}

func sameReplicas(a, b *int32) bool { return a == b || a != nil && b != nil && *a == *b }
