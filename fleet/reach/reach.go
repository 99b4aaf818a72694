// Package reach shows the pods of placed objects, their events, and the nodes of member clusters, as if they were the control
// plane's own: lists, watches, logs, and connections into containers. Nothing of them is stored.
package reach

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/fleet"
)

const (
	// concurrency is how many clusters are asked at the same time for one request.
	concurrency = 32
	// answerTimeout is how long a cluster may take to answer a list or a get. A user waits for the slowest.
	answerTimeout = 2 * time.Second
	// maxObjects bounds the objects in a list, and those that a cluster sends for it. Pods are some 5 KiB each.
	maxObjects = 100_000
)

// Reach shows objects of all clusters.
type Reach struct {
	merger
	members *members
	kinds   map[string]kind
	usages  map[string]usage
}

// Control returns a client with all rights in the control plane, once there is one.
type Control func() (dynamic.Interface, error)

// New returns what a server of the control plane shows.
func New(control Control, tunnels Tunnels, clk clock.WithTicker) *Reach {
	return &Reach{
		merger:  newMerger(clk),
		members: &members{control: control, tunnels: tunnels, origins: newOrigins(control, clk), clock: clk, known: map[string]knownMember{}},
		kinds:   kinds(),
		usages:  usages(),
	}
}

// store is the source of the objects that the control plane itself stores.
const store = ""

// part is what one source answered to a list.
type part struct {
	source  string
	version string
	objects []object
	err     error
}

// List returns the objects of a resource in a namespace, or in all: those of the control plane, which here lists, and those
// of clusters. warnings name the clusters whose objects are missing, and why.
func (r *Reach) List(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (list runtime.Object, warnings []string, err error) {
	q, err := r.query(resource, namespace, o)
	if err != nil {
		return nil, nil, err
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, nil, apierrors.NewResourceExpired("objects of clusters are only known as they are now: list without resourceVersionMatch=Exact")
	}
	list, missing, err := r.list(ctx, q, here, clusters{r})
	if err != nil {
		return nil, nil, err
	}
	return list, warningsOf(resource, missing), nil
}

func (r *Reach) query(resource, namespace string, o metav1.ListOptions) (query, error) {
	k, known := r.kinds[resource]
	if !known {
		return query{}, apierrors.NewBadRequest(resource + " are not shown from clusters")
	}
	q, err := parseQuery(k, namespace, o)
	if err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	return q, nil
}

func warningsOf(resource string, missing map[string]string) (all []string) {
	for cluster, why := range missing {
		all = append(all, fmt.Sprintf("the %s of cluster %s are missing: %s", resource, cluster, why))
	}
	slices.Sort(all)
	return all
}

// ask asks the clusters that a query concerns, several at a time. unasked are those that this server never asks, with the
// reason. A cluster that is known to be unreachable is not waited for.
func (r *Reach) ask(ctx context.Context, q query, one func(context.Context, *member) part) (parts []part, unasked map[string]string, err error) {
	states, err := r.members.states(ctx)
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
			parts[i] = r.askOne(ctx, parts[i].source, one)
		})
	}
	wg.Wait()
	return parts, unasked, ctx.Err()
}

func (r *Reach) askOne(ctx context.Context, cluster string, one func(context.Context, *member) part) (out part) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout, fmt.Errorf("it did not answer within %s", answerTimeout))
	defer cancel()
	m, err := r.members.get(ctx, cluster)
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

// errManyObjects is the answer to a list with more objects than one may have.
var errManyObjects = fmt.Errorf("more than %d objects match: select a namespace, or by labels", maxObjects)

// list returns the objects in a cluster that are shown, as Atoll shows them.
func (m *member) list(ctx context.Context, q query) (out part) {
	seen := 0
	out.err = fleet.EachPage(ctx, q.options(m.cluster), m.pageOf(q), func(page runtime.Object) (bool, error) {
		objects, version, err := itemsOf(page)
		if err != nil {
			return false, err
		}
		if out.version == "" {
			out.version = version
		}
		if seen += len(objects); seen > maxObjects {
			return false, errManyObjects
		}
		m.owners.prefetch(ctx, q.namespace, objects)
		for _, obj := range objects {
			if !q.covers(obj) {
				continue
			}
			belongs, err := q.kind.belongs(ctx, m, obj)
			if err != nil {
				return false, err
			}
			if q.kind.show(obj, m.cluster); belongs && q.matches(obj) {
				out.objects = append(out.objects, obj)
			}
		}
		return true, nil
	})
	return out
}

// pageOf returns what lists one page.
func (m *member) pageOf(q query) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	if q.kind.metadataOnly {
		client := m.metadata.Resource(corev1.SchemeGroupVersion.WithResource(q.resource)).Namespace(q.namespace)
		return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) }
	}
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list := q.kind.newList()
		return list, m.rest.Get().NamespaceIfScoped(q.namespace, q.namespace != "").Resource(q.resource).VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(list)
	}
}

// itemsOf returns the objects of a list, and its version.
func itemsOf(list runtime.Object) (all []object, version string, err error) {
	as, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", err
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		obj, is := item.(object)
		if !is {
			return fmt.Errorf("a list has %T", item)
		}
		all = append(all, obj)
		return nil
	})
	return all, as.GetResourceVersion(), err
}

// found is an object in a cluster.
type found struct {
	*member
	obj object // as the cluster has it
}

// shown returns the object as Atoll shows it.
func (f found) shown(k kind) object {
	obj := f.obj.DeepCopyObject().(object)
	k.show(obj, f.cluster)
	return obj
}

// find returns an object that is shown. If several clusters have one of the name, it returns the newest, and a warning.
func (r *Reach) find(ctx context.Context, k kind, namespace, name string) (found, []string, error) {
	var mu sync.Mutex
	var all []found
	q := queryOf(k, namespace)
	q.only(name)
	parts, unasked, err := r.ask(ctx, q, func(ctx context.Context, m *member) (none part) {
		obj, err := m.get(ctx, k, namespace, k.ownName(m.cluster, name))
		if obj == nil || err != nil {
			return part{err: err}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found{m, obj})
		return none
	})
	if err != nil {
		return found{}, nil, err
	}
	slices.SortFunc(all, func(a, b found) int {
		newest := b.obj.GetCreationTimestamp().Time.Compare(a.obj.GetCreationTimestamp().Time)
		return cmp.Or(newest, strings.Compare(a.cluster, b.cluster))
	})
	switch len(all) {
	case 0:
		return found{}, nil, notFound(k.resource, name, parts, unasked)
	case 1:
		return all[0], nil, nil
	}
	return all[0], []string{fmt.Sprintf("clusters %s have %s %q: this is about the newest, of cluster %s", clustersOf(all), k.resource, name, all[0].cluster)}, nil
}

// get returns an object of the cluster; nil if the cluster has none of the name, or if it is not shown.
func (m *member) get(ctx context.Context, k kind, namespace, name string) (object, error) {
	obj := k.new()
	err := m.rest.Get().NamespaceIfScoped(namespace, namespace != "").Resource(k.resource).Name(name).Do(ctx).Into(obj)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	belongs := k.belongs
	if k.resource == Pods {
		belongs = podReached
	}
	is, err := belongs(ctx, m, obj)
	return onlyIf(is, obj), err
}

func onlyIf(condition bool, obj object) object {
	if !condition {
		return nil
	}
	return obj
}

// notFound returns the error about an object that no cluster has. If one did not answer, it may have the object.
func notFound(resource, name string, parts []part, unasked map[string]string) error {
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
		return apierrors.NewServiceUnavailable(fmt.Sprintf("%s %q is in no cluster that answered, and these did not: %s", resource, name, strings.Join(append(silent, others...), "; ")))
	}
	err := apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
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

// Get returns an object of a cluster.
func (r *Reach) Get(ctx context.Context, resource, namespace, name string) (runtime.Object, []string, error) {
	q, err := r.query(resource, namespace, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	f, warnings, err := r.find(ctx, q.kind, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	obj := f.shown(q.kind)
	r.number(obj, r.ledger.now())
	return obj, warnings, nil
}

// pod returns a pod of a placed object.
func (r *Reach) pod(ctx context.Context, namespace, name string) (foundPod, error) {
	f, _, err := r.find(ctx, r.kinds[Pods], namespace, name)
	if err != nil {
		return foundPod{}, err
	}
	return foundPod{f.member, f.obj.(*corev1.Pod)}, nil
}

// foundPod is a pod in a cluster.
type foundPod struct {
	*member
	pod *corev1.Pod // as the cluster has it
}

func (f foundPod) shown() *corev1.Pod {
	pod := f.pod.DeepCopy()
	showPod(pod, f.cluster)
	return pod
}
