package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolswatch "k8s.io/client-go/tools/watch"
)

// replicas are the pods of a namespace in all members, as their watches show them.
type replicas struct {
	mu     sync.Mutex
	ready  map[string]map[string]bool // by member and pod, of the existing pods
	lowest int
	faults []string
	// together: two members had pods at the same time.
	together bool
}

func watchReplicas(t *testing.T, members map[string]*kubernetes.Clientset, namespace string) *replicas {
	t.Helper()
	r := &replicas{ready: map[string]map[string]bool{}}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	for name, m := range members {
		r.ready[name] = map[string]bool{}
		list, err := m.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			r.ready[name][list.Items[i].Name] = isReady(&list.Items[i])
		}
		events, err := toolswatch.NewRetryWatcherWithContext(ctx, list.ResourceVersion, podWatch{m, namespace})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			for event := range events.ResultChan() {
				if pod, ok := event.Object.(*corev1.Pod); ok {
					r.see(name, event.Type, pod)
				}
			}
		})
	}
	r.lowest = r.sum()
	return r
}

type podWatch struct {
	m         *kubernetes.Clientset
	namespace string
}

func (w podWatch) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return w.m.CoreV1().Pods(w.namespace).Watch(ctx, o)
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (r *replicas) see(member string, event watch.EventType, pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if event == watch.Deleted {
		delete(r.ready[member], pod.Name)
	} else {
		r.ready[member][pod.Name] = isReady(pod)
	}
	r.lowest = min(r.lowest, r.sum())
	for other, pods := range r.ready {
		r.together = r.together || other != member && len(pods) > 0 && len(r.ready[member]) > 0
		if _, runs := pods[pod.Name]; runs && other != member && event != watch.Deleted {
			r.faults = append(r.faults, fmt.Sprintf("%s is in %s and %s", pod.Name, member, other))
		}
	}
}

func (r *replicas) sum() (n int) {
	for _, pods := range r.ready {
		for _, ready := range pods {
			if ready {
				n++
			}
		}
	}
	return n
}

// least returns the lowest number of ready pods since the beginning.
func (r *replicas) least() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lowest
}

// twice returns the pods that were in two members.
func (r *replicas) twice() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.faults)
}

// wereTogether reports whether two members had pods at the same time.
func (r *replicas) wereTogether() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.together
}
