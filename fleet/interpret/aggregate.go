package interpret

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// MemberStatus is what one cluster reports about an object that was placed there.
type MemberStatus struct {
	Cluster string
	// Replicas is the cluster's share by the decision.
	Replicas *int32
	// Generation of the control plane's object that the cluster runs; 0 if it runs none yet.
	Generation int64
	// Current: the cluster's controllers have acted on the last applied version, and that version
	// had the decided share.
	Current bool
	// Stale is the reason why the cluster's report is unreliable now, or "" if it is reliable.
	Stale string
	// Autoscaled: an autoscaler in the cluster sets the replica count, so the shares need not add
	// up to the object's count.
	Autoscaled bool
	// Health is what the cluster reports; "" if it reports none.
	Health v1alpha1.Health
	// Status is the object's status in the cluster; nil if it has none.
	Status map[string]any
}

// Aggregate merges the clusters' reports into the status of the object itself, with the kind's own
// fields. Ordinary clients (kubectl rollout status) can read it as in one cluster. It returns false
// if the kind has no status to aggregate.
//
// Counts are the last known figures. In a cluster whose report is stale, nothing counts as ready or
// available. observedGeneration advances only when every cluster acts on the latest generation:
// until then, a client that waits must go on waiting.
//
// The counts agree with the object's spec, which clients compare them with. Where replicas are
// divided, the counts of all clusters add up. Where every cluster runs the whole object, the spec
// counts its replicas once, so the counts are those of the slowest cluster. Counts of nodes add up
// always: the spec has none.
func (k KindInfo) Aggregate(obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, bool, error) {
	if k.aggregate == nil || len(members) == 0 {
		return nil, false, nil
	}
	status, err := k.aggregate(k, obj, members)
	if err != nil {
		return nil, false, fmt.Errorf("aggregate the status of %s %s/%s: %w", k.Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	pruneNulls(status)
	return status, true, nil
}

// observed returns the generation that all clusters have acted on. It is never lower than the
// generation already reported.
func (k KindInfo) observed(obj *unstructured.Unstructured, members []MemberStatus) int64 {
	already, _ := generation(object(obj.Object, "status"))
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
	if k.Unanswered(obj) != nil {
		return already // how many replicas it should have is not known
	}
	// A changed replica count is acted on only when placement has divided it again.
	if want, ok := k.Replicas(obj); ok && divided(members) && !autoscaled && placed != want {
		return already
	}
	return max(already, lowest)
}

// divided reports whether the clusters share the replicas of the object. If only some have a count,
// overrides set it, and every cluster runs the whole object.
func divided(members []MemberStatus) bool {
	return !slices.ContainsFunc(members, func(m MemberStatus) bool { return m.Replicas == nil })
}

// counted returns the reports whose counts are the counts of the object: those of all clusters if
// they share its replicas, and otherwise the report of the slowest cluster. It is a whole report,
// because counts of different clusters would contradict each other: the old replicas of one cluster
// and the new ones of another look like a finished rollout. behind returns what a cluster still has
// to do, and ready how much is ready there. Of equals, a cluster whose count an override sets comes
// last, because its count is not the object's; otherwise the cluster with less ready is slower.
func counted[T any](members []MemberStatus, reports []T, behind, ready func(MemberStatus, T) int32) ([]MemberStatus, []T) {
	if divided(members) {
		return members, reports
	}
	overridden := func(m MemberStatus) int {
		if m.Replicas != nil {
			return 1
		}
		return 0
	}
	slowest := 0
	for i, m := range members {
		was := members[slowest]
		if cmp.Or(cmp.Compare(behind(was, reports[slowest]), behind(m, reports[i])),
			cmp.Compare(overridden(m), overridden(was)),
			cmp.Compare(ready(m, reports[i]), ready(was, reports[slowest]))) < 0 {
			slowest = i
		}
	}
	return members[slowest : slowest+1], reports[slowest : slowest+1]
}

// missing returns how many of the replicas that one cluster should have are not there.
func (k KindInfo) missing(obj *unstructured.Unstructured, m MemberStatus, have int32) int32 {
	if m.Replicas != nil {
		return max(0, *m.Replicas-have)
	}
	want, _ := k.Replicas(obj)
	return max(0, want-have)
}

// decode decodes the status that each cluster reports.
func decode[T any](members []MemberStatus) ([]T, error) {
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

// current decodes the object's own status, because aggregation keeps parts of it.
func current[T any](obj *unstructured.Unstructured) (T, error) {
	var out T
	status, found, err := unstructured.NestedMap(obj.Object, "status")
	if err == nil && found {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(status, &out)
	}
	return out, err
}

// fresh returns n if the report is reliable, and otherwise 0.
func fresh(m MemberStatus, n int32) int32 {
	if m.Stale != "" {
		return 0
	}
	return n
}

// highest returns the greatest of the reported values, or 0 without reports.
func highest[T any](members []MemberStatus, reports []T, get func(MemberStatus, T) int32) int32 {
	var out int32
	for i, r := range reports {
		out = max(out, get(members[i], r))
	}
	return out
}

// lowest returns the smallest of the reported values, or 0 without reports.
func lowest[T any](members []MemberStatus, reports []T, get func(MemberStatus, T) int32) int32 {
	var out int32
	for i, r := range reports {
		if n := get(members[i], r); i == 0 || n < out {
			out = n
		}
	}
	return out
}

// aggregateService lists the addresses of every cluster with a fresh report: all of them lead to
// the application.
func aggregateService(_ KindInfo, _ *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
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
