package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Share is what a decision gives to one cluster.
type Share struct {
	Cluster string
	// Replicas is the cluster's part of a divided object; nil if it runs the whole.
	Replicas *int32
	// OrdinalStart is the first ordinal of the cluster's part of a divided
	// StatefulSet, counted from the object's own start; nil if it runs the whole.
	OrdinalStart *int32
	// Target has, for an object that speaks of the replicas of others (an autoscaler, a
	// disruption budget), how many of these the decisions give to each cluster; nil
	// if one of the others is not divided.
	Target map[string]int32
	// Autoscaled: an autoscaler in the member sets the replica count, so the count is
	// sent only as far as it takes to hand it over. See handOver.
	Autoscaled bool
	// Live is the object as the member has it, nil if it does not. It matters for what
	// is handed over to the member: replica counts with Autoscaled, and the claims of
	// PersistentVolumes.
	Live *unstructured.Unstructured
	// Manager is the field manager that applies to the member.
	Manager string
}

// setReplicas writes the cluster's replica count, where that is a field.
func (k Kind) setReplicas(out map[string]any, share Share) {
	if k.replicas != nil && k.scale == nil {
		return
	}
	path := k.replicasPath()
	if share.Replicas != nil {
		setNested(out, int64(*share.Replicas), path...)
	}
	if share.Autoscaled && (share.Replicas == nil || *share.Replicas > 0) {
		k.handOver(out, share)
	}
}

// HandOver does to a prepared object what PrepareShare does for an autoscaled share,
// where the two have to happen in different places.
func (k Kind) HandOver(desired *unstructured.Unstructured, share Share) {
	if k.Divided && share.Autoscaled && (share.Replicas == nil || *share.Replicas > 0) {
		k.handOver(desired.Object, share)
	}
}

// handOver leaves the replica count to an autoscaler in the member. Not to send it
// is not enough: what only we own, server-side apply takes away with us, and a
// workload without a count runs one replica. So until somebody else owns the field
// too, which the autoscaler does from the first time that it sets it, we send
// what is there. That takes Live to say who owns the count: see TrimOwners.
//
// A share of zero is sent: it switches the autoscaler off there, too.
func (k Kind) handOver(out map[string]any, share Share) {
	path := k.replicasPath()
	if share.Live == nil {
		return // the first count is the decision's
	}
	if ownedByOthers(share.Live, share.Manager, path) {
		unstructured.RemoveNestedField(out, path...)
		return
	}
	if n, found, err := unstructured.NestedInt64(share.Live.Object, path...); err == nil && found && n > 0 {
		setNested(out, n, path...)
	}
}

// shareStatefulSet gives a cluster its range of ordinals, so that no two clusters
// have a pod of the same name. A partition counts from the first ordinal of the
// set, so each cluster has its part of it.
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
