package test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// endpointsAndPods records when the pods of east were told to stop, and when north had them no more as ready endpoints.
type endpointsAndPods struct {
	mu               sync.Mutex
	listed, unlisted map[string]time.Time // in north, by address
	stopped          map[string]time.Time // in east, by address
	marked           int
	slices           map[string][]string // the ready addresses of each EndpointSlice of north
}

func (r *endpointsAndPods) slice(s *discoveryv1.EndpointSlice, deleted bool) {
	if s.Labels["multicluster.kubernetes.io/source-cluster"] != "east" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slices, s.Name)
	for _, e := range s.Endpoints {
		if !deleted && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
			r.slices[s.Name] = append(r.slices[s.Name], e.Addresses...)
		}
	}
	ready := map[string]bool{}
	for _, addresses := range r.slices {
		for _, a := range addresses {
			ready[a] = true
			if r.listed[a].IsZero() {
				r.listed[a] = time.Now()
			}
			delete(r.unlisted, a)
		}
	}
	for a := range r.listed {
		if !ready[a] && r.unlisted[a].IsZero() {
			r.unlisted[a] = time.Now()
		}
	}
}

func (r *endpointsAndPods) pod(p *corev1.Pod, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Annotations[corev1.PodDeletionCost] != "" {
		r.marked++
	}
	if (deleted || p.DeletionTimestamp != nil) && p.Labels["app"] == "web" && r.stopped[p.Status.PodIP].IsZero() {
		r.stopped[p.Status.PodIP] = time.Now()
	}
}

// handler calls f with each state of an object.
func handler[T any](f func(o *T, deleted bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f(o.(*T), false) },
		UpdateFunc: func(_, o any) { f(o.(*T), false) },
		DeleteFunc: func(o any) {
			if is, ok := o.(*T); ok {
				f(is, true)
			}
		},
	}
}

// TestMoveDrainsEndpoints: while a Deployment with an exported Service moves, no importing cluster has a ready endpoint of a pod
// that was told to stop.
func TestMoveDrainsEndpoints(t *testing.T) {
	f := whole(t)
	const namespace = "drained"
	f.kubectl(t, "atoll", "create", "namespace", namespace)
	t.Cleanup(func() {
		_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "namespace", namespace, "--ignore-not-found", "--wait=false")
	})
	for name, cluster := range map[string]string{"web": "east", "client": "north"} {
		f.put(t, "atoll", fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s, namespace: %[2]s, labels: {fleet.atoll.dev/cluster: %[3]s}},
  spec: {replicas: 4, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: nginx}]}}}}`, name, namespace, cluster))
	}
	f.kubectl(t, "atoll", "expose", "deployment", "web", "--port=80", "-n", namespace)
	f.put(t, "atoll", `{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: web, namespace: `+namespace+`}}`)
	f.kubectl(t, "atoll", "wait", "serviceexport/web", "-n", namespace, "--for=condition=Ready", "--timeout=60s")

	r := &endpointsAndPods{listed: map[string]time.Time{}, unlisted: map[string]time.Time{}, stopped: map[string]time.Time{}, slices: map[string][]string{}}
	for member, watch := range map[string]func(informers.SharedInformerFactory) error{
		"north": func(all informers.SharedInformerFactory) error {
			_, err := all.Discovery().V1().EndpointSlices().Informer().AddEventHandler(handler(r.slice))
			return err
		},
		"east": func(all informers.SharedInformerFactory) error {
			_, err := all.Core().V1().Pods().Informer().AddEventHandler(handler(r.pod))
			return err
		},
	} {
		all := informers.NewSharedInformerFactoryWithOptions(f.client(t, member), 0, informers.WithNamespace(namespace))
		if err := watch(all); err != nil {
			t.Fatal(err)
		}
		all.Start(t.Context().Done())
		t.Cleanup(all.Shutdown)
	}
	eventually(t, settle, "north has the endpoints of east", func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.listed) != 4 || len(r.unlisted) > 0 {
			return fmt.Errorf("ready were %v, and are not %v", r.listed, r.unlisted)
		}
		return nil
	})

	f.kubectl(t, "atoll", "label", "deployment", "web", "-n", namespace, "fleet.atoll.dev/cluster=west", "--overwrite")
	eventually(t, settle, "web runs in west, and the pods of east are gone", func(ctx context.Context) error {
		out, err := f.tryKubectl(ctx, "atoll", "", "get", "resourcebinding", "deployment.apps-web", "-n", namespace, "-o", "jsonpath={.spec.clusters[*].name}:{.spec.goal[*].name}:{.status.transition.waitingFor}")
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil && (out != "west::" || len(r.stopped) != 4 || len(r.unlisted) != 4) {
			err = fmt.Errorf("%s; %d pods were told to stop, and %d endpoints are gone", out, len(r.stopped), len(r.unlisted))
		}
		return err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for address, stopped := range r.stopped {
		if !r.unlisted[address].Before(stopped) {
			t.Errorf("north had %s as a ready endpoint for %s after its pod was told to stop", address, r.unlisted[address].Sub(stopped))
		}
	}
	if r.marked == 0 {
		t.Errorf("no pod had a %s", corev1.PodDeletionCost)
	}
	if out := f.kubectl(t, "atoll", "get", "pods", "-n", namespace, "-l", "app=web", "-o", "jsonpath={.items[*].metadata.annotations}"); strings.Contains(out, corev1.PodDeletionCost) {
		t.Errorf("pods of west have a cost: %s", out)
	}
}
