package interpret

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/ptr"
)

// Reasons of the events that controllers of workloads record about the pods that they create.
const (
	reasonSuccessfulCreate = "SuccessfulCreate"
	reasonFailedCreate     = "FailedCreate"
)

// LacksPods reports whether an object in a member cluster has fewer pods than its controller is to create, and its
// status does not say why. Deployments and ReplicaSets have a condition for that. Controllers of other kinds only
// record events: see RejectedPods.
func (k KindInfo) LacksPods(obj *unstructured.Unstructured) bool {
	return k.lacksPods != nil && k.lacksPods(obj)
}

// RejectedPods returns why the cluster rejects the pods, or claims for them, that the controller of an object creates;
// "" if it does not. The events are those about the object. The latest one decides: after a failure, the next pod that
// is created ends it.
func RejectedPods(events []corev1.Event) string {
	var latest *corev1.Event
	for i := range events {
		e := &events[i]
		if (e.Reason == reasonFailedCreate || e.Reason == reasonSuccessfulCreate) && (latest == nil || isNewer(e, latest)) {
			latest = e
		}
	}
	if latest == nil || latest.Reason == reasonSuccessfulCreate {
		return ""
	}
	message := latest.Message
	for _, prefix := range []string{" failed error: ", "Error creating: "} {
		if _, cause, found := strings.Cut(message, prefix); found {
			message = cause
		}
	}
	return message
}

// isNewer compares resource versions. An event that happened again was updated, and times have only seconds.
func isNewer(e, other *corev1.Event) bool {
	order, err := resourceversion.CompareResourceVersion(e.ResourceVersion, other.ResourceVersion)
	return err == nil && order > 0
}

func statefulSetLacksPods(obj *unstructured.Unstructured) bool {
	return decodedAs(obj, func(s *appsv1.StatefulSet) bool { return s.Status.Replicas < replicasOr1(s.Spec.Replicas) })
}

func daemonSetLacksPods(obj *unstructured.Unstructured) bool {
	return decodedAs(obj, func(d *appsv1.DaemonSet) bool {
		return d.Status.CurrentNumberScheduled < d.Status.DesiredNumberScheduled
	})
}

func jobLacksPods(obj *unstructured.Unstructured) bool {
	return decodedAs(obj, func(j *batchv1.Job) bool {
		if ptr.Deref(j.Spec.Suspend, false) || jobFinished(obj) {
			return false
		}
		want := replicasOr1(j.Spec.Parallelism)
		switch {
		case j.Spec.Completions != nil:
			want = min(want, *j.Spec.Completions-j.Status.Succeeded)
		case j.Status.Succeeded > 0:
			return false // the workers found no more work
		}
		return j.Status.Active < want
	})
}

// decodedAs decides about an object in its Go type. It is false if the object cannot be decoded.
func decodedAs[T any](obj *unstructured.Unstructured, holds func(*T) bool) bool {
	var out T
	return runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &out) == nil && holds(&out)
}
