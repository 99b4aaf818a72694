package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// app is what the witness counts: the Pods of a namespace with one value of the label app.
type app struct{ namespace, name string }

func (a app) String() string { return a.namespace + "/" + a.name }

// witness watches the Pods of all members, each by a connection of its own that no link carries. At each event it
// counts the ready Pods of the app in all members together.
type witness struct {
	stop   chan struct{}
	closed []informers.SharedInformerFactory

	mu     sync.Mutex
	pods   map[app]map[podIn]bool // whether each is ready
	shares map[app]map[string]string
	guards map[app][]*guard
}

// podIn is a Pod in a member.
type podIn struct{ member, name string }

// guard is what the witness records about one app.
type guard struct {
	w     *witness
	app   app
	floor int
	// least and most are of ready Pods, and twice is set while more than one member has Pods of the app.
	least, most int
	broken      bool
	events      []string
}

// mostEvents is how many events lead to the one that a failure is about.
const mostEvents = 60

func newWitness(members map[string]*kubernetes.Clientset) (*witness, error) {
	w := &witness{stop: make(chan struct{}), pods: map[app]map[podIn]bool{}, shares: map[app]map[string]string{}, guards: map[app][]*guard{}}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for member, client := range members {
		factory := informers.NewSharedInformerFactory(client, 0)
		pods, deployments := factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer()
		_, err := pods.AddEventHandler(onChange(func(pod *corev1.Pod, gone bool) { w.saw(member, pod, gone) }))
		_, also := deployments.AddEventHandler(onChange(func(d *appsv1.Deployment, gone bool) { w.sawDeployment(member, d, gone) }))
		if err := errors.Join(err, also); err != nil {
			return nil, err
		}
		factory.Start(w.stop)
		w.closed = append(w.closed, factory)
		if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, deployments.HasSynced) {
			return nil, fmt.Errorf("the witness cannot list Pods and Deployments of %s", member)
		}
	}
	return w, nil
}

func (w *witness) close() {
	close(w.stop)
	for _, f := range w.closed {
		f.Shutdown()
	}
}

// onChange calls do with each state of an object, and with the last one when it is gone.
func onChange[T any](do func(obj T, gone bool)) cache.ResourceEventHandler {
	call := func(obj any, gone bool) {
		if last, unknown := obj.(cache.DeletedFinalStateUnknown); unknown {
			obj = last.Obj
		}
		if obj, ok := obj.(T); ok {
			do(obj, gone)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { call(obj, false) },
		UpdateFunc: func(_, obj any) { call(obj, false) },
		DeleteFunc: func(obj any) { call(obj, true) },
	}
}

func (w *witness) saw(member string, pod *corev1.Pod, gone bool) {
	a, key := app{pod.Namespace, pod.Labels["app"]}, podIn{member, pod.Name}
	gone = gone || pod.DeletionTimestamp != nil
	ready := !gone && isReady(pod)
	w.mu.Lock()
	defer w.mu.Unlock()
	was, had := w.pods[a][key]
	if gone && !had || had && !gone && was == ready {
		return
	}
	if w.pods[a] == nil {
		w.pods[a] = map[podIn]bool{}
	}
	what := "exists"
	switch {
	case gone:
		what = "is gone"
		delete(w.pods[a], key)
	default:
		if w.pods[a][key] = ready; ready {
			what = "is ready"
		}
	}
	w.record(a, fmt.Sprintf("%s: pod %s %s", member, pod.Name, what))
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// sawDeployment records the counts of a Deployment, which explain why Pods come and go.
func (w *witness) sawDeployment(member string, d *appsv1.Deployment, gone bool) {
	a := app{d.Namespace, d.Name}
	text := "is gone"
	if !gone {
		text = fmt.Sprintf("is to have %d, and reports %d, %d of them available", *d.Spec.Replicas, d.Status.Replicas, d.Status.AvailableReplicas)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shares[a] == nil {
		w.shares[a] = map[string]string{}
	}
	if w.shares[a][member] != text {
		w.shares[a][member] = text
		w.record(a, fmt.Sprintf("%s: the Deployment %s", member, text))
	}
}

// record adds an event to the guards of an app, and compares.
func (w *witness) record(a app, event string) {
	for _, g := range w.guards[a] {
		g.count(time.Now().Format("15:04:05.000 ") + event)
	}
}

// guard begins to record an app that is to have at least so many ready Pods.
func (w *witness) guard(a app, floor int) *guard {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := &guard{w: w, app: a, floor: floor, least: 1 << 30}
	w.guards[a] = append(w.guards[a], g)
	g.count(time.Now().Format("15:04:05.000 ") + "the witness begins")
	return g
}

// count is called with the lock of the witness.
func (g *guard) count(event string) {
	by := g.w.readyBy(g.app)
	ready := 0
	for _, n := range by {
		ready += n
	}
	g.most = max(g.most, ready)
	g.least = min(g.least, ready)
	if g.broken {
		return // the events until then explain it
	}
	g.broken = ready < g.floor
	g.events = append(g.events, fmt.Sprintf("%s (%d ready:%s)", event, ready, textOf(by)))
	if len(g.events) > mostEvents {
		g.events = g.events[1:]
	}
}

// readyBy counts the ready Pods of an app by member. It is called with the lock.
func (w *witness) readyBy(a app) map[string]int {
	by := map[string]int{}
	for pod, ready := range w.pods[a] {
		if ready {
			by[pod.member]++
		}
	}
	return by
}

// ready returns how many ready Pods of an app each member has now.
func (w *witness) ready(a app) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readyBy(a)
}

// existing returns how many Pods of an app each member has now, ready or not.
func (w *witness) existing(a app) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	by := map[string]int{}
	for pod := range w.pods[a] {
		by[pod.member]++
	}
	return by
}

// end stops recording, fails the test if there ever were too few ready Pods, and returns the least and the most.
func (g *guard) end(t *testing.T) (least, most int) {
	t.Helper()
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.guards[g.app] = slices.DeleteFunc(g.w.guards[g.app], func(o *guard) bool { return o == g })
	if g.broken {
		t.Errorf("%s had %d ready Pods in all members together, and never should have less than %d:\n%s", g.app, g.least, g.floor, strings.Join(g.events, "\n"))
	}
	return g.least, g.most
}

func textOf(by map[string]int) string {
	var out strings.Builder
	for _, member := range slices.SortedFunc(maps.Keys(by), cmp.Compare[string]) {
		fmt.Fprintf(&out, " %s %d", member, by[member])
	}
	return out.String()
}
