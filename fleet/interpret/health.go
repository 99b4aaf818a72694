package interpret

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// typed decodes an object into its Go type. An object that cannot be decoded is Unknown, never
// Healthy or Degraded.
func typed[T any](obj *unstructured.Unstructured, judge func(*T) (v1alpha1.Health, string)) (v1alpha1.Health, string) {
	var out T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &out); err != nil {
		return v1alpha1.Unknown, "cannot be decoded: " + err.Error()
	}
	return judge(&out)
}

func deploymentHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(d *appsv1.Deployment) (v1alpha1.Health, string) {
		// Why pods cannot be created explains why there is no progress.
		if c := deploymentCondition(d.Status, appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
			return v1alpha1.Degraded, c.Message
		}
		if c := deploymentCondition(d.Status, appsv1.DeploymentProgressing); c != nil && c.Status == corev1.ConditionFalse {
			return v1alpha1.Degraded, c.Message
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
		// With OnDelete, or with a partition, old pods may stay.
		whole := s.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
			(s.Spec.UpdateStrategy.RollingUpdate == nil || replicasOr0(s.Spec.UpdateStrategy.RollingUpdate.Partition) == 0)
		if whole && s.Status.UpdateRevision != s.Status.CurrentRevision {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d replicas updated", s.Status.UpdatedReplicas, want)
		}
		return v1alpha1.Healthy, ""
	})
}

func replicaSetHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(r *appsv1.ReplicaSet) (v1alpha1.Health, string) {
		for _, c := range r.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				return v1alpha1.Degraded, c.Message
			}
		}
		if want := replicasOr1(r.Spec.Replicas); r.Status.AvailableReplicas < want {
			return v1alpha1.Progressing, fmt.Sprintf("%d of %d replicas available", r.Status.AvailableReplicas, want)
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

func serviceHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	addresses := items(obj.Object, "status", "loadBalancer", "ingress")
	if text(obj.Object, "spec", "type") == string(corev1.ServiceTypeLoadBalancer) && len(addresses) == 0 {
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
