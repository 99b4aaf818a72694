package capacity

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// QuotaOf summarizes a ResourceQuota. It returns false if the quota does not limit pods, or its controller has
// not counted yet.
func QuotaOf(q *corev1.ResourceQuota) (v1alpha1.NamespaceQuota, bool) {
	out := v1alpha1.NamespaceQuota{Namespace: q.Namespace, Name: q.Name, Hard: corev1.ResourceList{}, Free: corev1.ResourceList{}}
	for name, hard := range q.Status.Hard {
		used, counted := q.Status.Used[name]
		if !counted || !limitsPods(name) {
			continue
		}
		free := hard.DeepCopy()
		if free.Sub(used); free.Sign() < 0 {
			free = resource.Quantity{}
		}
		out.Hard[name], out.Free[name] = hard, free
	}
	for _, scope := range q.Spec.Scopes {
		out.Scopes = append(out.Scopes, corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists})
	}
	if q.Spec.ScopeSelector != nil {
		out.Scopes = append(out.Scopes, q.Spec.ScopeSelector.MatchExpressions...)
	}
	return out, len(out.Hard) > 0
}

// limitsPods reports whether a resource of a quota is one that pods use.
func limitsPods(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "count/pods":
		return true
	case corev1.ResourceRequestsStorage:
		return false // of claims
	}
	return strings.HasPrefix(string(name), "requests.") || strings.HasPrefix(string(name), "limits.")
}

// QuotasAcceptable reports whether the quotas that a syncer sends are within bounds.
func QuotasAcceptable(quotas []v1alpha1.NamespaceQuota) bool {
	const most = 256 // resources, and scopes
	return len(quotas) <= v1alpha1.MaxNamespaceQuotas && !slices.ContainsFunc(quotas, func(q v1alpha1.NamespaceQuota) bool {
		return len(q.Scopes) > most || !amountsAcceptable(q.Hard, most) || !amountsAcceptable(q.Free, most)
	})
}

// SameQuotas reports whether quotas have the same limits, perhaps with other amounts free.
func SameQuotas(a, b []v1alpha1.NamespaceQuota) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.NamespaceQuota) bool {
		return a.Namespace == b.Namespace && a.Name == b.Name && equality.Semantic.DeepEqual(a.Hard, b.Hard) && equality.Semantic.DeepEqual(a.Scopes, b.Scopes)
	})
}
