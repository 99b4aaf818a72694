package interpret

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Member is what one cluster reports of an object that was placed there.
type Member struct {
	Cluster string
	// Replicas is the share that the decision gives to the cluster.
	Replicas *int32
	// Generation of the object in the control plane that the cluster runs, 0 if none yet.
	Generation int64
	// Current: the cluster's controllers have acted on what was last applied, and
	// what was applied has the decided share.
	Current bool
	// Stale says why the cluster's report cannot be relied on now ("" if it can).
	Stale string
	// Autoscaled: an autoscaler in the cluster sets the replica count, so the shares
	// need not add up to what the object asks for.
	Autoscaled bool
	// Status is the object's status in the cluster, nil if it has none.
	Status map[string]any
}

// Aggregate summarises what the clusters report into the status of the object
// itself, in the kind's own terms, so that ordinary clients (kubectl rollout
// status) read it as they would in one cluster. It gives false where the kind
// has no status to summarise.
//
// Counts are last known figures; of a cluster whose report is stale nothing
// counts as ready or available, because nobody knows. observedGeneration
// advances only when every cluster acts on the latest generation: until then a
// client that waits must go on waiting.
//
// Where replicas are divided, counts add up. Where every cluster runs the whole,
// the object is as far as its slowest cluster.
func (k Kind) Aggregate(obj *unstructured.Unstructured, members []Member) (map[string]any, bool, error) {
	if k.aggregate == nil || len(members) == 0 {
		return nil, false, nil
	}
	status, err := k.aggregate(k, obj, members)
	if err != nil {
		return nil, false, fmt.Errorf("summarise status of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	pruneNulls(status)
	return status, true, nil
}

// observed gives the generation that all clusters have acted on, never less than
// what was already said.
func (k Kind) observed(obj *unstructured.Unstructured, members []Member) int64 {
	already, _ := number(obj.Object, "status", "observedGeneration")
	var placed int32
	autoscaled := false
	lowest := obj.GetGeneration()
	for _, m := range members {
		if !m.Current {
			return already
		}
		lowest = min(lowest, m.Generation)
		autoscaled = autoscaled || m.Autoscaled
		if m.Replicas != nil {
			placed += *m.Replicas
		}
	}
	// A changed replica count is acted on only when it has been divided anew.
	if want, ok := k.Replicas(obj); ok && divided(members) && !autoscaled && placed != want {
		return already
	}
	return max(already, lowest)
}

// divided tells whether the clusters share the replicas of the object.
func divided(members []Member) bool {
	return slices.ContainsFunc(members, func(m Member) bool { return m.Replicas != nil })
}

// decode reads the status that each cluster reports.
func decode[T any](members []Member) ([]T, error) {
	out := make([]T, len(members))
	for i, m := range members {
		if m.Status == nil {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(m.Status, &out[i]); err != nil {
			return nil, fmt.Errorf("status from cluster %s: %w", m.Cluster, err)
		}
	}
	return out, nil
}

func encode(status any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(status)
}

// current reads the object's own status, for what the summary keeps of it.
func current[T any](obj *unstructured.Unstructured) (T, error) {
	var out T
	status, found, err := unstructured.NestedMap(obj.Object, "status")
	if err == nil && found {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(status, &out)
	}
	return out, err
}

// fresh is n where the report can be relied on, else 0.
func fresh(m Member, n int32) int32 {
	if m.Stale != "" {
		return 0
	}
	return n
}

// lowest is the least of what the clusters report, 0 if there are none.
func lowest[T any](members []Member, reports []T, get func(Member, T) int32) int32 {
	var out int32
	for i, r := range reports {
		if n := get(members[i], r); i == 0 || n < out {
			out = n
		}
	}
	return out
}

// aggregateService lists the addresses of every cluster whose report is fresh:
// all of them lead to the application.
func aggregateService(_ Kind, _ *unstructured.Unstructured, members []Member) (map[string]any, error) {
	reports, err := decode[corev1.ServiceStatus](members)
	if err != nil {
		return nil, err
	}
	var out corev1.ServiceStatus
	for i, r := range reports {
		if members[i].Stale == "" {
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, r.LoadBalancer.Ingress...)
		}
	}
	return encode(&out)
}
