package clusters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/capacity"
)

// memberQuotas has the ResourceQuotas of a member that limit pods. If they may not be listed, they are unknown.
type memberQuotas struct {
	reflector *cache.Reflector

	mu    sync.Mutex
	known map[types.NamespacedName]v1alpha1.NamespaceQuota
}

var _ cache.ReflectorStore = (*memberQuotas)(nil)

func newMemberQuotas(member typedcorev1.CoreV1Interface) *memberQuotas {
	q := &memberQuotas{known: map[types.NamespacedName]v1alpha1.NamespaceQuota{}}
	api := member.ResourceQuotas(metav1.NamespaceAll)
	q.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := api.List(ctx, o)
			q.failed(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := api.Watch(ctx, o)
			q.failed(err)
			return w, err
		}}, member), &corev1.ResourceQuota{}, q, cache.ReflectorOptions{Name: "quotas of a cluster"})
	return q
}

// failed forgets the quotas if they may not be listed any more: they would become outdated.
func (q *memberQuotas) failed(err error) {
	if apierrors.IsForbidden(err) {
		q.mu.Lock()
		defer q.mu.Unlock()
		clear(q.known)
	}
}

// Add implements cache.ReflectorStore.
func (q *memberQuotas) Add(obj any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.add(obj)
}

func (q *memberQuotas) add(obj any) error {
	quota, ok := obj.(*corev1.ResourceQuota)
	if !ok {
		return fmt.Errorf("%T is not a ResourceQuota", obj)
	}
	name := types.NamespacedName{Namespace: quota.Namespace, Name: quota.Name}
	if limit, limits := capacity.QuotaOf(quota); limits {
		q.known[name] = limit
	} else {
		delete(q.known, name)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (q *memberQuotas) Update(obj any) error { return q.Add(obj) }

// Delete implements cache.ReflectorStore.
func (q *memberQuotas) Delete(obj any) error {
	if quota, ok := obj.(*corev1.ResourceQuota); ok {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.known, types.NamespacedName{Namespace: quota.Namespace, Name: quota.Name})
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (q *memberQuotas) Replace(list []any, _ string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.known)
	for _, obj := range list {
		if err := q.add(obj); err != nil {
			return err
		}
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (q *memberQuotas) Resync() error { return nil }

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
