package clusters

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/resource"
)

// pods adds up what the pods of a member request, by node. It keeps a few bytes of each: a leader may observe a
// million.
type pods struct {
	reflector *cache.Reflector

	mu       sync.Mutex
	complete bool // the pods have been listed
	denied   bool // the last list or watch was forbidden
	known    map[types.UID]podRequests
	// requests holds one of equal lists, which most pods of a workload have.
	requests map[string]*corev1.ResourceList
}

type podRequests struct {
	node     string // "" if it has none yet
	requests *corev1.ResourceList
}

var _ cache.ReflectorStore = (*pods)(nil)

func newPods(member typedcorev1.CoreV1Interface) *pods {
	p := &pods{}
	p.clear()
	api := member.Pods(metav1.NamespaceAll)
	// Finished pods have given their room back.
	running := fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
	p.reflector = cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = running
			list, err := api.List(ctx, o)
			p.failed(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = running
			w, err := api.Watch(ctx, o)
			p.failed(err)
			return w, err
		}}, member), &corev1.Pod{}, p, cache.ReflectorOptions{Name: "pods of a cluster"})
	return p
}

func (p *pods) clear() {
	p.known, p.requests = map[types.UID]podRequests{}, map[string]*corev1.ResourceList{}
}

// failed records whether pods may be listed: what nodes have free is unknown until they may.
func (p *pods) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.denied = apierrors.IsForbidden(err); p.denied {
		p.complete = false
	}
}

// Add implements cache.ReflectorStore.
func (p *pods) Add(obj any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.add(obj)
}

func (p *pods) add(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T is not a Pod", obj)
	}
	list := resource.PodRequests(pod, resource.PodResourcesOptions{})
	key := ""
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		key += string(name) + "=" + q.String() + ","
	}
	if p.requests[key] == nil {
		p.requests[key] = &list
	}
	p.known[pod.UID] = podRequests{node: pod.Spec.NodeName, requests: p.requests[key]}
	return nil
}

// Update implements cache.ReflectorStore.
func (p *pods) Update(obj any) error { return p.Add(obj) }

// Delete implements cache.ReflectorStore.
func (p *pods) Delete(obj any) error {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.known, pod.UID)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (p *pods) Replace(list []any, _ string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	for _, obj := range list {
		if err := p.add(obj); err != nil {
			return err
		}
	}
	p.complete = true
	return nil
}

// Resync implements cache.ReflectorStore.
func (p *pods) Resync() error { return nil }

func (p *pods) areDenied() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied
}

// requested returns what pods request on each node together, how many there are, and what each pod without a node
// requests. It returns false if the pods are not known.
func (p *pods) requested() (byNode map[string]corev1.ResourceList, counts map[string]int64, pending []corev1.ResourceList, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.complete {
		return nil, nil, nil, false
	}
	byNode, counts = map[string]corev1.ResourceList{}, map[string]int64{}
	for _, pod := range p.known {
		if pod.node == "" {
			pending = append(pending, *pod.requests)
			continue
		}
		if byNode[pod.node] == nil {
			byNode[pod.node] = corev1.ResourceList{}
		}
		add(byNode[pod.node], *pod.requests)
		counts[pod.node]++
	}
	return byNode, counts, pending, true
}
