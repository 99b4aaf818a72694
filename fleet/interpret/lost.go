package interpret

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ReasonDeletedInCluster is the reason in the status of an object that was deleted in its cluster
// before it had finished.
const ReasonDeletedInCluster = "DeletedInCluster"

const (
	podLost = "The pod was deleted in its cluster before it had finished"
	jobLost = "The Job was deleted in its cluster before it had finished"
)

// Lost returns the final status of an object that is gone from a member before it finished: evicted,
// deleted, or lost with its node. status is the last reported one. The bool is false for kinds that
// are created again. A pod or a Job is not: it would run a second time under one UID, which no API
// server does, and the controller that owns it could not tell.
func (k KindInfo) Lost(status map[string]any, now time.Time) (map[string]any, bool, error) {
	if k.lost == nil {
		return nil, false, nil
	}
	out := runtime.DeepCopyJSON(status)
	if out == nil {
		out = map[string]any{}
	}
	out, err := k.lost(out, metav1.NewTime(now))
	return out, err == nil, err
}

// lostPod returns what the controllers of a cluster report about a pod whose node is gone.
func lostPod(status map[string]any, now metav1.Time) (map[string]any, error) {
	return change(status, func(s *corev1.PodStatus) {
		s.Phase, s.Reason, s.Message = corev1.PodFailed, ReasonDeletedInCluster, podLost
		for i := range s.Conditions {
			c := &s.Conditions[i]
			if (c.Type == corev1.PodReady || c.Type == corev1.ContainersReady) && c.Status == corev1.ConditionTrue {
				c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionFalse, "PodFailed", now
			}
		}
		for i := range s.ContainerStatuses {
			s.ContainerStatuses[i].Ready = false
		}
	})
}

func lostJob(status map[string]any, now metav1.Time) (map[string]any, error) {
	return change(status, func(s *batchv1.JobStatus) {
		s.Active, s.Ready, s.Terminating, s.UncountedTerminatedPods = 0, nil, nil, nil
		if s.StartTime == nil {
			s.StartTime = &now
		}
		over := []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed, batchv1.JobSuccessCriteriaMet, batchv1.JobComplete, batchv1.JobSuspended}
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c batchv1.JobCondition) bool { return slices.Contains(over, c.Type) })
		s.Conditions = append(s.Conditions, batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue,
			Reason: ReasonDeletedInCluster, Message: jobLost, LastProbeTime: now, LastTransitionTime: now})
	})
}

// change edits a status as its type. Fields that this version of the type does not have are lost, in
// a status that does not change any more.
func change[T any](status map[string]any, edit func(*T)) (map[string]any, error) {
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, typed); err != nil {
		return nil, err
	}
	edit(typed)
	return runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
}
