package clusters

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// memberQuotas has the ResourceQuotas of a member that limit pods. If they may not be listed, they are unknown.
type memberQuotas struct {
	*memberStore[*corev1.ResourceQuota]
	known map[types.NamespacedName]v1alpha1.NamespaceQuota
}

func newMemberQuotas(member typedcorev1.CoreV1Interface) *memberQuotas {
	q := &memberQuotas{}
	q.memberStore = newMemberStore("quotas of a cluster", member, member.ResourceQuotas(metav1.NamespaceAll), &corev1.ResourceQuota{}, "", fleet.ListBounds{Max: maxQuotas, Bytes: maxQuotaBytes}, q)
	return q
}

func (q *memberQuotas) clear() { q.known = map[types.NamespacedName]v1alpha1.NamespaceQuota{} }

func (q *memberQuotas) put(quota *corev1.ResourceQuota) {
	name := types.NamespacedName{Namespace: quota.Namespace, Name: quota.Name}
	if limit, limits := capacity.QuotaOf(quota); limits {
		q.known[name] = limit
	} else {
		delete(q.known, name)
	}
}

func (q *memberQuotas) remove(quota *corev1.ResourceQuota) {
	delete(q.known, types.NamespacedName{Namespace: quota.Namespace, Name: quota.Name})
}

// report returns the first v1alpha1.MaxNamespaceQuotas quotas of the namespaces that concern the fleet.
func (q *memberQuotas) report(concerns func(namespace string) bool) []v1alpha1.NamespaceQuota {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []v1alpha1.NamespaceQuota
	for name, quota := range q.known {
		if concerns(name.Namespace) {
			out = append(out, quota)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.NamespaceQuota) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), v1alpha1.MaxNamespaceQuotas)]
}
