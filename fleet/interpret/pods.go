package interpret

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// tokenVolumePrefix is the name prefix of the volume with a pod's token, which an API server adds.
const tokenVolumePrefix = "kube-api-access-"

// preparePod omits the fields that each cluster's API server computes for a new pod. It would
// reject some of them if they differed.
func preparePod(obj map[string]any) {
	spec := object(obj, "spec")
	if spec == nil {
		return
	}
	for _, field := range []string{"priority", "preemptionPolicy", "overhead"} {
		delete(spec, field)
	}
	withoutTokens(spec, "volumes")
	for _, field := range []string{"containers", "initContainers", "ephemeralContainers"} {
		for _, container := range items(spec, field) {
			withoutTokens(container, "volumeMounts")
		}
	}
}

func withoutTokens(obj map[string]any, field string) {
	list, ok := obj[field].([]any)
	if !ok {
		return
	}
	kept := slices.DeleteFunc(list, func(item any) bool {
		m, _ := item.(map[string]any)
		return strings.HasPrefix(text(m, "name"), tokenVolumePrefix)
	})
	if len(kept) == 0 {
		delete(obj, field)
		return
	}
	obj[field] = kept
}

func podFinished(obj *unstructured.Unstructured) bool {
	phase := corev1.PodPhase(text(obj.Object, "status", "phase"))
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// failedWaitReasons are reasons for which a container waits without progress.
func failedWaitReasons() []string {
	return []string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
}

func podHealth(obj *unstructured.Unstructured) (v1alpha1.Health, string) {
	return typed(obj, func(p *corev1.Pod) (v1alpha1.Health, string) {
		switch p.Status.Phase {
		case corev1.PodSucceeded:
			return v1alpha1.Healthy, ""
		case corev1.PodFailed:
			return v1alpha1.Degraded, "the pod failed: " + firstOf(p.Status.Message, p.Status.Reason, "no reason reported")
		}
		for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			if w := status.State.Waiting; w != nil && slices.Contains(failedWaitReasons(), w.Reason) {
				return v1alpha1.Degraded, fmt.Sprintf("container %s: %s", status.Name, firstOf(w.Message, w.Reason))
			}
		}
		for _, c := range p.Status.Conditions {
			switch {
			case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
				return v1alpha1.Healthy, ""
			case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
				return v1alpha1.Progressing, firstOf(c.Message, "has no node yet")
			}
		}
		return v1alpha1.Progressing, "not ready yet"
	})
}

func firstOf(candidates ...string) string {
	for _, s := range candidates {
		if s != "" {
			return s
		}
	}
	return ""
}

// aggregatePod returns the status that the one cluster reports. If the report is stale, the pod
// counts as not ready.
func aggregatePod(k KindInfo, obj *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	m := members[0]
	if m.Status == nil {
		return map[string]any{"phase": string(corev1.PodPending)}, nil
	}
	out := runtime.DeepCopyJSON(m.Status)
	if out["observedGeneration"] != nil {
		out["observedGeneration"] = k.observed(obj, members[:1])
	}
	if conditions := mergeConditions(members[:1], conditionsOf(object(obj.Object, "status"))); len(conditions) > 0 {
		out["conditions"] = conditions
	}
	if m.Stale != "" {
		out["reason"], out["message"] = "ClusterUnreachable", m.Cluster+": "+m.Stale
		for _, status := range items(out, "containerStatuses") {
			status["ready"] = false
		}
	}
	return out, nil
}
