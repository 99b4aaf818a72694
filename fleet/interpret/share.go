package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Share is one cluster's part of a decision.
type Share struct {
	Cluster string
	// Replicas is the cluster's part of a divided object; nil if it runs the whole object.
	Replicas *int32
	// OrdinalStart is the first ordinal of the cluster's part of a divided StatefulSet, relative to
	// the object's own start; nil if it runs the whole object.
	OrdinalStart *int32
	// Target is set for an object that limits the replicas of others (an autoscaler, a disruption
	// budget). It has the number of those replicas for each cluster; nil if one of the others is
	// not divided.
	Target map[string]int32
	// Wanted is how many replicas Target is to have in all clusters together, if it has more at the moment because
	// they move; otherwise 0. Limits are for the wanted number.
	Wanted int32
	// Autoscaled: an autoscaler in the member sets the replica count, so the syncer sends the count
	// only until it is handed over. See handOver.
	Autoscaled bool
	// Live is the member's object; nil if there is none. It is needed for the fields that are
	// handed over to the member: replica counts with Autoscaled, and the claims of
	// PersistentVolumes.
	Live *unstructured.Unstructured
	// Manager is the field manager that applies to the member.
	Manager string
}

// setReplicas sets the cluster's replica count, if the kind has a field for it.
func (k KindInfo) setReplicas(out map[string]any, share Share) {
	if k.replicas != nil && k.scale == nil {
		return
	}
	path := k.replicasPath()
	if share.Replicas != nil && !k.answers(v1alpha1.ReviseReplica) {
		setNested(out, int64(*share.Replicas), path...)
	}
	if share.Autoscaled && (share.Replicas == nil || *share.Replicas > 0) {
		k.handOver(out, share)
	}
}

// HandOver hands the replica count of a prepared object over to an autoscaler. PrepareShare
// includes this step, but callers may have to run it elsewhere.
func (k KindInfo) HandOver(desired *unstructured.Unstructured, share Share) {
	if k.ReplicasPath() != nil && share.Autoscaled && (share.Replicas == nil || *share.Replicas > 0) {
		k.handOver(desired.Object, share)
	}
}

// handOver leaves the replica count to an autoscaler in the member. To omit the field is not
// enough: server-side apply removes a field whose only owner stops sending it, and a workload
// without a count runs one replica. So until another manager owns the field too, the member's
// current count is sent. The autoscaler owns it as soon as it sets it once. Live must have the
// owners of the count: see TrimManagedFields.
//
// A share of zero is sent: it disables the autoscaler in the member.
func (k KindInfo) handOver(out map[string]any, share Share) {
	path := k.replicasPath()
	if share.Live == nil {
		return // the decision sets the initial count
	}
	if ownedByOthers(share.Live, share.Manager, path) {
		unstructured.RemoveNestedField(out, path...)
		return
	}
	if n, found, err := unstructured.NestedInt64(share.Live.Object, path...); err == nil && found && n > 0 {
		setNested(out, n, path...)
	}
}

// shareStatefulSet sets a cluster's range of ordinals, so that no two clusters have a pod of the
// same name. A partition counts from the first ordinal of the set, so each cluster gets its part of
// it.
func shareStatefulSet(obj map[string]any, share Share) {
	if share.Replicas == nil || share.OrdinalStart == nil {
		return
	}
	start := int64(*share.OrdinalStart)
	if own, given := number(obj, "spec", "ordinals", "start"); given || start > 0 {
		setNested(obj, own+start, "spec", "ordinals", "start")
	}
	if partition, found := number(obj, "spec", "updateStrategy", "rollingUpdate", "partition"); found {
		setNested(obj, min(max(partition-start, 0), int64(*share.Replicas)), "spec", "updateStrategy", "rollingUpdate", "partition")
	}
}
