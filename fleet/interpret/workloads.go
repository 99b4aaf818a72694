package interpret

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func aggregateDeployment(obj *unstructured.Unstructured, members []Member) (map[string]any, error) {
	reports, err := decode[appsv1.DeploymentStatus](members)
	if err != nil {
		return nil, err
	}
	was, err := current[appsv1.DeploymentStatus](obj)
	if err != nil {
		return nil, err
	}
	out := appsv1.DeploymentStatus{ObservedGeneration: observed(obj, members)}
	for i, r := range reports {
		m := members[i]
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
			n := *r.TerminatingReplicas
			if out.TerminatingReplicas != nil {
				n += *out.TerminatingReplicas
			}
			out.TerminatingReplicas = &n
		}
	}
	for _, merge := range []func([]Member, []appsv1.DeploymentStatus) *appsv1.DeploymentCondition{
		mergeAvailable, mergeProgressing, mergeReplicaFailure,
	} {
		if c := merge(members, reports); c != nil {
			keepTransition(c, was.Conditions)
			out.Conditions = append(out.Conditions, *c)
		}
	}
	return encode(&out)
}

// keepTransition keeps the time of the last change of status. Times are those
// that members report: deciding takes no clock.
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

// merged begins a condition with the latest times that any cluster reports. It
// is nil where no cluster reports the condition.
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

// mergeAvailable is True when every cluster with a share says so.
func mergeAvailable(members []Member, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
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

// mergeProgressing is False as soon as one cluster gave up (clients look for the
// reason ProgressDeadlineExceeded), and done when all are done.
func mergeProgressing(members []Member, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
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

func mergeReplicaFailure(members []Member, reports []appsv1.DeploymentStatus) *appsv1.DeploymentCondition {
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

func aggregateStatefulSet(obj *unstructured.Unstructured, members []Member) (map[string]any, error) {
	reports, err := decode[appsv1.StatefulSetStatus](members)
	if err != nil {
		return nil, err
	}
	type report = appsv1.StatefulSetStatus
	least := func(get func(Member, report) int32) int32 { return lowest(members, reports, get) }
	out := report{
		ObservedGeneration: observed(obj, members),
		Replicas:           least(func(_ Member, r report) int32 { return r.Replicas }),
		ReadyReplicas:      least(func(m Member, r report) int32 { return fresh(m, r.ReadyReplicas) }),
		AvailableReplicas:  least(func(m Member, r report) int32 { return fresh(m, r.AvailableReplicas) }),
		CurrentReplicas:    least(func(_ Member, r report) int32 { return r.CurrentReplicas }),
		UpdatedReplicas:    least(func(_ Member, r report) int32 { return r.UpdatedReplicas }),
	}
	// Revision names are hashes of the template and so mostly equal. Clients only
	// ask whether both are equal, which must not be so before it is everywhere.
	for i, r := range reports {
		if i == 0 || r.UpdateRevision != r.CurrentRevision {
			out.CurrentRevision, out.UpdateRevision = r.CurrentRevision, r.UpdateRevision
		}
	}
	return encode(&out)
}

// aggregateDaemonSet adds up: nodes are nobody's share.
func aggregateDaemonSet(obj *unstructured.Unstructured, members []Member) (map[string]any, error) {
	reports, err := decode[appsv1.DaemonSetStatus](members)
	if err != nil {
		return nil, err
	}
	out := appsv1.DaemonSetStatus{ObservedGeneration: observed(obj, members)}
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

// aggregateJob is complete when every cluster's Job is, and failed when one is.
// Until then no condition is set: a finished Job never becomes unfinished.
func aggregateJob(obj *unstructured.Unstructured, members []Member) (map[string]any, error) {
	if jobFinished(obj) {
		status, _, err := unstructured.NestedMap(obj.Object, "status")
		return status, err
	}
	reports, err := decode[batchv1.JobStatus](members)
	if err != nil {
		return nil, err
	}
	var out batchv1.JobStatus
	var failed *batchv1.JobCondition
	complete := 0
	for i, r := range reports {
		out.Active += r.Active
		out.Failed += r.Failed
		if r.StartTime != nil && (out.StartTime == nil || r.StartTime.Before(out.StartTime)) {
			out.StartTime = r.StartTime
		}
		if r.CompletionTime != nil && (out.CompletionTime == nil || out.CompletionTime.Before(r.CompletionTime)) {
			out.CompletionTime = r.CompletionTime
		}
		for _, c := range r.Conditions {
			switch {
			case c.Status != corev1.ConditionTrue:
			case c.Type == batchv1.JobComplete:
				complete++
			case c.Type == batchv1.JobFailed && failed == nil:
				c.Message = members[i].Cluster + ": " + c.Message
				failed = &c
			}
		}
	}
	out.Succeeded = lowest(members, reports, func(_ Member, r batchv1.JobStatus) int32 { return r.Succeeded })
	switch {
	// Only when the others have stopped too may it say that it is over.
	case failed != nil && out.Active == 0:
		target := *failed
		target.Type = batchv1.JobFailureTarget
		out.Conditions, out.CompletionTime = []batchv1.JobCondition{target, *failed}, nil
	case complete == len(reports) && out.CompletionTime != nil:
		for _, t := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			out.Conditions = append(out.Conditions, batchv1.JobCondition{
				Type: t, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonCompletionsReached,
				Message:       fmt.Sprintf("Complete in %d clusters", complete),
				LastProbeTime: *out.CompletionTime, LastTransitionTime: *out.CompletionTime})
		}
		out.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	default:
		out.CompletionTime = nil
	}
	return encode(&out)
}

// aggregateCronJob leaves out the list of active Jobs: they are objects of the
// clusters, not of the control plane.
func aggregateCronJob(_ *unstructured.Unstructured, members []Member) (map[string]any, error) {
	reports, err := decode[batchv1.CronJobStatus](members)
	if err != nil {
		return nil, err
	}
	latest := func(a, b *metav1.Time) *metav1.Time {
		if a == nil || (b != nil && a.Before(b)) {
			return b
		}
		return a
	}
	var out batchv1.CronJobStatus
	for _, r := range reports {
		out.LastScheduleTime = latest(out.LastScheduleTime, r.LastScheduleTime)
		out.LastSuccessfulTime = latest(out.LastSuccessfulTime, r.LastSuccessfulTime)
	}
	return encode(&out)
}
