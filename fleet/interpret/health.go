package interpret

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// typed reads an object into its Go type. What cannot be read is Unknown, never
// healthy and never failed.
func typed[T any](obj *unstructured.Unstructured, judge func(*T) (v1alpha1.Health, string)) (v1alpha1.Health, string) {
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &out); err != nil {
		return v1alpha1.Unknown, "cannot be read: " + err.Error()
	}
	return judge(&out)
}

func deploymentHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(d *appsv1.Deployment) (v1alpha1.Health, string) {
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
				c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				return v1alpha1.Degraded, c.Message
			}
		}
		want := replicasOr1(d.Spec.Replicas)
		if d.Status.UpdatedReplicas < want || d.Status.Replicas > d.Status.UpdatedReplicas || d.Status.AvailableReplicas < want {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d replicas updated, %d available",
				d.Status.UpdatedReplicas, want, d.Status.AvailableReplicas)
		}
		return v1alpha1.Healthy, ""
	})
}

func statefulSetHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(s *appsv1.StatefulSet) (v1alpha1.Health, string) {
		want := replicasOr1(s.Spec.Replicas)
		if s.Status.ReadyReplicas < want {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d replicas ready", s.Status.ReadyReplicas, want)
		}
		// With OnDelete, or with a partition, old pods stay until told otherwise.
		whole := s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
			(s.Spec.UpdateStrategy.RollingUpdate == nil || replicasOr0(s.Spec.UpdateStrategy.RollingUpdate.Partition) == 0)
		if whole && s.Status.UpdateRevision != s.Status.CurrentRevision {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d replicas updated", s.Status.UpdatedReplicas, want)
		}
		return v1alpha1.Healthy, ""
	})
}

func daemonSetHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(d *appsv1.DaemonSet) (v1alpha1.Health, string) {
		want := d.Status.DesiredNumberScheduled
		if d.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType && d.Status.UpdatedNumberScheduled < want {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d nodes updated", d.Status.UpdatedNumberScheduled, want)
		}
		if d.Status.NumberAvailable < want {
			return v1alpha1.Progressing, fmt.Sprintf("available on %d of %d nodes", d.Status.NumberAvailable, want)
		}
		return v1alpha1.Healthy, ""
	})
}

func jobHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(j *batchv1.Job) (v1alpha1.Health, string) {
		for _, c := range j.Status.Conditions {
			if c.Status != corev1.ConditionTrue {
				continue
			}
			switch c.Type {
			case batchv1.JobComplete, batchv1.JobSuspended:
				return v1alpha1.Healthy, ""
			case batchv1.JobFailed, batchv1.JobFailureTarget:
				return v1alpha1.Degraded, c.Message
			}
		}
		return v1alpha1.Progressing, fmt.Sprintf("%d running, %d succeeded, %d failed",
			j.Status.Active, j.Status.Succeeded, j.Status.Failed)
	})
}

func jobFinished(obj *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, c := range conditions {
		condition, ok := c.(map[string]any)
		if !ok || condition["status"] != string(corev1.ConditionTrue) {
			continue
		}
		if t := condition["type"]; t == string(batchv1.JobComplete) || t == string(batchv1.JobFailed) {
			return true
		}
	}
	return false
}

func claimHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	phase, _, _ := unstructured.NestedString(obj.Object, "status", "phase")
	switch corev1.PersistentVolumeClaimPhase(phase) {
	case corev1.ClaimBound:
		return v1alpha1.Healthy, ""
	case corev1.ClaimLost:
		return v1alpha1.Degraded, "the volume behind the claim is lost"
	}
	// Waits for its first pod, where the storage class says so.
	return v1alpha1.Progressing, "not bound to a volume yet"
}

func serviceHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	t, _, _ := unstructured.NestedString(obj.Object, "spec", "type")
	ingress, _, _ := unstructured.NestedSlice(obj.Object, "status", "loadBalancer", "ingress")
	if t == string(corev1.ServiceTypeLoadBalancer) && len(ingress) == 0 {
		return v1alpha1.Progressing, "has no load balancer address yet"
	}
	return v1alpha1.Healthy, ""
}

func replicasOr1(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func replicasOr0(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}
