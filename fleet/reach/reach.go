// Package reach shows the pods of placed objects that run in member clusters, as if they were the control plane's own:
// lists, watches, logs, and connections into their containers. Nothing of them is stored.
package reach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/fleet"
)

const (
	// concurrency is how many clusters are asked at the same time for one request.
	concurrency = 32
	// answerTimeout is how long a cluster may take to answer a list or a get. A user waits for the slowest.
	answerTimeout = 2 * time.Second
	// maxPods bounds the pods in a list, and those that a cluster sends for it. They are some 5 KiB each.
	maxPods = 100_000
)

// Pods are the pods of placed objects in all clusters.
type Pods struct {
	members *members
	ledger  *ledger
	clock   clock.WithTicker
}

// Control returns a client with all rights in the control plane, once there is one.
type Control func() (dynamic.Interface, error)

// NewPods returns the pods that a server of the control plane reaches.
func NewPods(control Control, clk clock.WithTicker) *Pods {
	return &Pods{
		members: &members{control: control, origins: newOrigins(control, clk), clock: clk, known: map[string]knownMember{}},
		ledger:  newLedger(clk.Now()),
		clock:   clk,
	}
}

// store is the source of the pods that the control plane itself stores.
const store = ""

// part is what one source answered to a list.
type part struct {
	source  string
	version string
	pods    []corev1.Pod
	err     error
}

// ListPods returns the pods of a namespace, or of all: those of the control plane, which here lists, and those of placed
// objects. warnings name the clusters whose pods are missing, and why.
func (p *Pods) ListPods(ctx context.Context, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (list *corev1.PodList, warnings []string, err error) {
	q, err := parseQuery(namespace, o)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, nil, apierrors.NewResourceExpired("the pods of clusters are only known as they are now: list without resourceVersionMatch=Exact")
	}
	parts, missing, err := p.ask(ctx, q, func(ctx context.Context, m *member) part { return m.list(ctx, q) })
	if err != nil {
		return nil, nil, err
	}
	own, err := listHere(ctx, here, q)
	if err != nil {
		return nil, nil, err
	}
	list = &corev1.PodList{}
	versions, pods := map[string]string{}, map[podKey]struct{}{}
	for _, part := range append([]part{own}, parts...) {
		if errors.Is(part.err, errManyPods) || len(list.Items)+len(part.pods) > maxPods {
			return nil, nil, errManyPods
		}
		if part.err != nil {
			missing[part.source] = part.err.Error() // and a watch lists the source first
			continue
		}
		versions[part.source] = part.version
		for _, pod := range part.pods {
			pods[keyOf(part.source, &pod)] = struct{}{}
			list.Items = append(list.Items, pod)
		}
	}
	_, position := p.ledger.begin(q.scope, versions, pods, p.clock.Now())
	for i := range list.Items {
		p.number(&list.Items[i], position)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name, b.Namespace+"\x00"+b.Name)
	})
	list.ResourceVersion = p.ledger.version(position, 0)
	return list, warningsOf(missing), nil
}

// number gives a pod the resource version of a position.
func (p *Pods) number(pod *corev1.Pod, position uint64) {
	pod.ResourceVersion = p.ledger.version(position, digits(pod.ResourceVersion))
}

func keyOf(source string, pod *corev1.Pod) podKey {
	return podKey{source, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.UID}
}

func warningsOf(missing map[string]string) (all []string) {
	for cluster, why := range missing {
		all = append(all, fmt.Sprintf("the pods of cluster %s are missing: %s", cluster, why))
	}
	slices.Sort(all)
	return all
}

// ask asks the clusters that a query concerns, several at a time. unasked are those that this server never asks, with the
// reason. A cluster that is known to be unreachable is not waited for.
func (p *Pods) ask(ctx context.Context, q query, one func(context.Context, *member) part) (parts []part, unasked map[string]string, err error) {
	states, err := p.members.states(ctx)
	if err != nil {
		return nil, nil, err
	}
	unasked = map[string]string{}
	for _, s := range states {
		switch {
		case !q.concerns(s.cluster):
		case s.unreached != "":
			unasked[s.cluster] = s.unreached
		default:
			parts = append(parts, part{source: s.cluster, err: s.silent})
		}
	}
	var wg sync.WaitGroup
	turns := make(chan struct{}, concurrency)
	for i := range parts {
		if parts[i].err != nil {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			parts[i] = p.askOne(ctx, parts[i].source, one)
		})
	}
	wg.Wait()
	return parts, unasked, ctx.Err()
}

func (p *Pods) askOne(ctx context.Context, cluster string, one func(context.Context, *member) part) (out part) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("it did not answer within %s", answerTimeout))
	defer cancel()
	m, err := p.members.get(ctx, cluster)
	if err == nil {
		out = one(ctx, m)
		err = out.err
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	out.source, out.err = cluster, err
	return out
}

// errManyPods is the answer to a list with more pods than one may have.
var errManyPods = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("more than %d pods match: select a namespace, or by labels", maxPods))

// list returns the pods of placed objects in a cluster, as Atoll shows them.
func (m *member) list(ctx context.Context, q query) (out part) {
	seen := 0
	out.err = fleet.EachPage(ctx, q.options(m.cluster), m.pods.Pods(q.namespace).List, func(page *corev1.PodList) (bool, error) {
		if out.version == "" {
			out.version = page.ResourceVersion
		}
		if seen += len(page.Items); seen > maxPods {
			return false, errManyPods
		}
		objects := make([]metav1.Object, len(page.Items))
		for i := range page.Items {
			objects[i] = &page.Items[i]
		}
		m.owners.prefetch(ctx, q.namespace, objects)
		for i := range page.Items {
			pod := &page.Items[i]
			belongs, err := m.belongs(ctx, pod)
			if err != nil {
				return false, err
			}
			if show(pod, m.cluster); belongs && q.matches(pod) {
				out.pods = append(out.pods, *pod)
			}
		}
		return true, nil
	})
	return out
}

// belongs reports whether a pod belongs to a bound object, and is not itself the copy of a pod that the control plane stores,
// which would be listed twice.
func (m *member) belongs(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if ancestorOf(podKind, pod, m.cluster).source != "" {
		return false, nil
	}
	return m.owners.bound(ctx, pod)
}

// listHere returns the pods that the control plane stores.
func listHere(ctx context.Context, here cache.ListerWatcherWithContext, q query) (part, error) {
	obj, err := here.ListWithContext(ctx, metav1.ListOptions{LabelSelector: q.labels, FieldSelector: q.fields})
	if err != nil {
		return part{}, err
	}
	list, ok := obj.(*corev1.PodList)
	if !ok {
		return part{}, fmt.Errorf("the control plane listed %T instead of pods", obj)
	}
	return part{source: store, version: list.ResourceVersion, pods: list.Items}, nil
}

// found is a pod in a cluster.
type found struct {
	*member
	pod *corev1.Pod // as the cluster has it
}

// shown returns the pod as Atoll shows it.
func (f found) shown() *corev1.Pod {
	pod := f.pod.DeepCopy()
	show(pod, f.cluster)
	return pod
}

// find returns a pod of a placed object. If several clusters have one of the name, it returns the newest, and a warning.
func (p *Pods) find(ctx context.Context, namespace, name string) (found, []string, error) {
	var mu sync.Mutex
	var all []found
	parts, unasked, err := p.ask(ctx, query{scope: scope{namespace: namespace}, clusters: everything(), nodes: everyField()}, func(ctx context.Context, m *member) (none part) {
		pod, err := m.pods.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return none
		case err != nil:
			return part{err: err}
		}
		bound, err := m.owners.bound(ctx, pod)
		if !bound || err != nil {
			return part{err: err}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found{m, pod})
		return none
	})
	if err != nil {
		return found{}, nil, err
	}
	slices.SortFunc(all, func(a, b found) int {
		if d := b.pod.CreationTimestamp.Compare(a.pod.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(a.cluster, b.cluster)
	})
	switch len(all) {
	case 0:
		return found{}, nil, notFound(name, parts, unasked)
	case 1:
		return all[0], nil, nil
	}
	return all[0], []string{fmt.Sprintf("clusters %s have a pod %q: this is about the newest, of cluster %s", clustersOf(all), name, all[0].cluster)}, nil
}

// notFound returns the error about a pod that no cluster has. If one did not answer, it may have the pod.
func notFound(name string, parts []part, unasked map[string]string) error {
	var silent, others []string
	for _, part := range parts {
		if part.err != nil {
			silent = append(silent, fmt.Sprintf("%s: %v", part.source, part.err))
		}
	}
	for cluster, why := range unasked {
		others = append(others, fmt.Sprintf("%s: %s", cluster, why))
	}
	slices.Sort(others)
	if slices.Sort(silent); len(silent) > 0 {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("pod %q is in no cluster that answered, and these did not: %s", name, strings.Join(append(silent, others...), "; ")))
	}
	err := apierrors.NewNotFound(corev1.Resource("pods"), name)
	if len(others) > 0 {
		err.ErrStatus.Message += fmt.Sprintf(" in the clusters that were asked; these were not: %s", strings.Join(others, "; "))
	}
	return err
}

func clustersOf(all []found) string {
	names := make([]string, len(all))
	for i, f := range all {
		names[i] = f.cluster
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// GetPod returns a pod of a placed object.
func (p *Pods) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, []string, error) {
	f, warnings, err := p.find(ctx, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	pod := f.shown()
	p.number(pod, p.ledger.now())
	return pod, warnings, nil
}
