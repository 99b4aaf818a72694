package interpret

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func aggregateDeployment(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[appsv1.DeploymentStatus](members)
	if err != nil {
		return nil, err
	}
	was, err := current[appsv1.DeploymentStatus](obj)
	if err != nil {
		return nil, err
	}
	out := appsv1.DeploymentStatus{ObservedGeneration: k.observed(obj, members)}
	counting, counts := counted(members, reports, func(m MemberStatus, r appsv1.DeploymentStatus) int32 {
		return k.missing(obj, m, r.UpdatedReplicas) + max(0, r.Replicas-r.UpdatedReplicas) + max(0, r.UpdatedReplicas-fresh(m, r.AvailableReplicas))
	}, func(m MemberStatus, r appsv1.DeploymentStatus) int32 { return fresh(m, r.ReadyReplicas) })
	for i, r := range counts {
		m := counting[i]
		out.Replicas += r.Replicas
		out.UpdatedReplicas += r.UpdatedReplicas
		out.ReadyReplicas += fresh(m, r.ReadyReplicas)
		out.AvailableReplicas += fresh(m, r.AvailableReplicas)
		unavailable := r.UnavailableReplicas
		if m.Stale != "" {
			unavailable = r.Replicas
		}
		out.UnavailableReplicas += unavailable
		if r.TerminatingReplicas != nil {
			out.TerminatingReplicas = sum(out.TerminatingReplicas, *r.TerminatingReplicas)
		}
	}
	for _, merge := range []func([]MemberStatus, []appsv1.DeploymentStatus) *appsv1.DeploymentCondition{
		mergeAvailable, mergeProgressing, mergeReplicaFailure,
	} {
		if c := merge(members, reports); c != nil {
			keepTransition(c, was.Conditions)
			out.Conditions = append(out.Conditions, *c)
		}
	}
	return encode(&out)
}

// keepTransition keeps the time of the last transition. Times are those that members report,
// because a decision uses no clock.
func keepTransition(c *appsv1.DeploymentCondition, was []appsv1.DeploymentCondition) {
	for _, w := range was {
		if w.Type == c.Type && w.Status == c.Status {
			c.LastTransitionTime = w.LastTransitionTime
		}
	}
}

func deploymentCondition(s appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return &s.Conditions[i]
		}
	}
	return nil
}

// merged returns a condition with the latest times that any cluster reports, or nil if no cluster
// reports the condition.
func merged(reports []appsv1.DeploymentStatus, t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	var out *appsv1.DeploymentCondition
	for _, r := range reports {
		c := deploymentCondition(r, t)
		if c == nil {
			continue
		}
		if out == nil {
			out = &appsv1.DeploymentCondition{Type: t}
		}
		if c.LastUpdateTime.After(out.LastUpdateTime.Time) {
			out.LastUpdateTime = c.LastUpdateTime
		}
		if c.LastTransitionTime.After(out.LastTransitionTime.Time) {
			out.LastTransitionTime = c.LastTransitionTime
		}
	}
	return out
}

// mergeAvailable is True when every cluster with a share is available.
func mergeAvailable(members []MemberStatus, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
	out := merged(reports, appsv1.DeploymentAvailable)
	if out == nil {
		return nil
	}
	var wrong []string
	for i, r := range reports {
		m, c := members[i], deploymentCondition(r, appsv1.DeploymentAvailable)
		switch {
		case m.Replicas != nil && *m.Replicas == 0:
		case m.Stale != "":
			wrong = append(wrong, m.Cluster+": "+m.Stale)
		case c == nil:
			wrong = append(wrong, m.Cluster+": does not report yet")
		case c.Status != corev1.ConditionTrue:
			wrong = append(wrong, m.Cluster+": "+c.Message)
		}
	}
	out.Status, out.Reason = corev1.ConditionTrue, "MinimumReplicasAvailable"
	out.Message = "Deployment has minimum availability in every cluster."
	if len(wrong) > 0 {
		out.Status, out.Reason, out.Message = corev1.ConditionFalse, "MinimumReplicasUnavailable", strings.Join(wrong, "; ")
	}
	return out
}

// mergeProgressing is False as soon as one cluster gave up (clients look for the reason
// ProgressDeadlineExceeded), and done when all clusters are done.
func mergeProgressing(members []MemberStatus, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
	out := merged(reports, appsv1.DeploymentProgressing)
	if out == nil {
		return nil
	}
	const done = "NewReplicaSetAvailable"
	var failed, busy []string
	failedReason, busyReason := "", ""
	for i, r := range reports {
		c := deploymentCondition(r, appsv1.DeploymentProgressing)
		name := members[i].Cluster
		switch {
		case c == nil:
			busy = append(busy, name+": does not report yet")
		case c.Status == corev1.ConditionFalse:
			failed, failedReason = append(failed, name+": "+c.Message), c.Reason
		case c.Reason != done:
			busy, busyReason = append(busy, name+": "+c.Message), c.Reason
		}
	}
	switch {
	case len(failed) > 0:
		out.Status, out.Reason, out.Message = corev1.ConditionFalse, failedReason, strings.Join(failed, "; ")
	case len(busy) > 0:
		if busyReason == "" {
			busyReason = "ReplicaSetUpdated"
		}
		out.Status, out.Reason, out.Message = corev1.ConditionTrue, busyReason, strings.Join(busy, "; ")
	default:
		out.Status, out.Reason = corev1.ConditionTrue, done
		out.Message = fmt.Sprintf("Deployment has successfully progressed in %d clusters.", len(reports))
	}
	return out
}

func mergeReplicaFailure(members []MemberStatus, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
	out := merged(reports, appsv1.DeploymentReplicaFailure)
	if out == nil {
		return nil
	}
	var failed []string
	for i, r := range reports {
		if c := deploymentCondition(r, appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
			failed, out.Reason = append(failed, members[i].Cluster+": "+c.Message), c.Reason
		}
	}
	if len(failed) == 0 {
		return nil
	}
	out.Status, out.Message = corev1.ConditionTrue, strings.Join(failed, "; ")
	return out
}

func aggregateStatefulSet(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[appsv1.StatefulSetStatus](members)
	if err != nil {
		return nil, err
	}
	out := appsv1.StatefulSetStatus{ObservedGeneration: k.observed(obj, members)}
	counting, counts := counted(members, reports, func(m MemberStatus, r appsv1.StatefulSetStatus) int32 {
		old := int32(0)
		if r.UpdateRevision != r.CurrentRevision {
			old = max(0, r.Replicas-r.UpdatedReplicas)
		}
		return k.missing(obj, m, fresh(m, r.ReadyReplicas)) + old
	}, func(m MemberStatus, r appsv1.StatefulSetStatus) int32 { return fresh(m, r.AvailableReplicas) })
	for i, r := range counts {
		out.Replicas += r.Replicas
		out.ReadyReplicas += fresh(counting[i], r.ReadyReplicas)
		out.AvailableReplicas += fresh(counting[i], r.AvailableReplicas)
		out.CurrentReplicas += r.CurrentReplicas
		out.UpdatedReplicas += r.UpdatedReplicas
	}
	// Revision names are hashes of the template, and so mostly equal in all clusters. Clients only
	// check whether both are equal, which must not hold before it holds in every cluster.
	for i, r := range reports {
		idle := members[i].Replicas != nil && *members[i].Replicas == 0
		if out.UpdateRevision == "" || r.UpdateRevision != r.CurrentRevision && !idle {
			out.CurrentRevision, out.UpdateRevision = r.CurrentRevision, r.UpdateRevision
		}
	}
	return encode(&out)
}

// aggregateDaemonSet adds up the counts: clusters do not share nodes.
func aggregateDaemonSet(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[appsv1.DaemonSetStatus](members)
	if err != nil {
		return nil, err
	}
	out := appsv1.DaemonSetStatus{ObservedGeneration: k.observed(obj, members)}
	for i, r := range reports {
		m := members[i]
		out.CurrentNumberScheduled += r.CurrentNumberScheduled
		out.NumberMisscheduled += r.NumberMisscheduled
		out.DesiredNumberScheduled += r.DesiredNumberScheduled
		out.UpdatedNumberScheduled += r.UpdatedNumberScheduled
		out.NumberReady += fresh(m, r.NumberReady)
		out.NumberAvailable += fresh(m, r.NumberAvailable)
		unavailable := r.NumberUnavailable
		if m.Stale != "" {
			unavailable = r.DesiredNumberScheduled
		}
		out.NumberUnavailable += unavailable
	}
	return encode(&out)
}

// aggregateReplicaSet aggregates the status of kinds without a rollout.
func aggregateReplicaSet(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[appsv1.ReplicaSetStatus](members)
	if err != nil {
		return nil, err
	}
	out := appsv1.ReplicaSetStatus{ObservedGeneration: k.observed(obj, members)}
	counting, counts := counted(members, reports, func(m MemberStatus, r appsv1.ReplicaSetStatus) int32 {
		return k.missing(obj, m, fresh(m, r.AvailableReplicas))
	}, func(m MemberStatus, r appsv1.ReplicaSetStatus) int32 { return fresh(m, r.ReadyReplicas) })
	for i, r := range counts {
		out.Replicas += r.Replicas
		out.FullyLabeledReplicas += r.FullyLabeledReplicas
		out.ReadyReplicas += fresh(counting[i], r.ReadyReplicas)
		out.AvailableReplicas += fresh(counting[i], r.AvailableReplicas)
		if r.TerminatingReplicas != nil {
			out.TerminatingReplicas = sum(out.TerminatingReplicas, *r.TerminatingReplicas)
		}
	}
	return withConditions(&out, obj, members)
}

// total adds up the values that the clusters report.
func total[T any](members []MemberStatus, reports []T, get func(MemberStatus, T) int32) int32 {
	var out int32
	for i, r := range reports {
		out += get(members[i], r)
	}
	return out
}

// sum adds to a count that may be missing.
func sum(to *int32, n int32) *int32 {
	if to != nil {
		n += *to
	}
	return &n
}
