package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// InScopes reports whether a ResourceQuota with some scopes counts a pod. A scope that is unknown counts none.
func InScopes(scopes []corev1.ScopedResourceSelectorRequirement, pod *corev1.PodSpec) bool {
	return !slices.ContainsFunc(scopes, func(s corev1.ScopedResourceSelectorRequirement) bool { return !inScope(&s, pod) })
}

func inScope(s *corev1.ScopedResourceSelectorRequirement, pod *corev1.PodSpec) bool {
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.ActiveDeadlineSeconds != nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.ActiveDeadlineSeconds == nil
	case corev1.ResourceQuotaScopeBestEffort:
		return isBestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !isBestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		switch s.Operator {
		case corev1.ScopeSelectorOpIn:
			return slices.Contains(s.Values, pod.PriorityClassName)
		case corev1.ScopeSelectorOpNotIn:
			return !slices.Contains(s.Values, pod.PriorityClassName)
		case corev1.ScopeSelectorOpDoesNotExist:
			return pod.PriorityClassName == ""
		}
		return pod.PriorityClassName != ""
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Affinity)
	}
	return false
}

// isBestEffort reports whether no container requests CPU or memory, or limits them.
func isBestEffort(pod *corev1.PodSpec) bool {
	return !slices.ContainsFunc(slices.Concat(pod.InitContainers, pod.Containers), func(c corev1.Container) bool {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			if !list.Cpu().IsZero() || !list.Memory().IsZero() {
				return true
			}
		}
		return false
	})
}

// crossesNamespaces reports whether a term of pod affinity selects pods of namespaces that it names.
func crossesNamespaces(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	if p := a.PodAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, t := range p.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, t.PodAffinityTerm)
		}
	}
	if p := a.PodAntiAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		for _, t := range p.PreferredDuringSchedulingIgnoredDuringExecution {
			terms = append(terms, t.PodAffinityTerm)
		}
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
