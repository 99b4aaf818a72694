package reach

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Object is one that a Union shows.
type Object = object

// Union shows the pods and events that several lists of other APIs have, together with those that an API stores, as a Reach does with those of
// clusters: lists have versions at which watches continue. Different APIs may share one; it keeps no objects.
type Union struct {
	merger
	kinds map[string]kind
}

// Part is one of the lists: that of a namespace of another API.
type Part struct {
	// Name tells it apart from the others. It is not used again for another list.
	Name string
	// Missing begins the warning that its objects are missing.
	Missing string
	List    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	Watch   func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	// Complete reports whether an object is shown, and completes it by further reads.
	Complete func(ctx context.Context, obj Object) (bool, error)
	// Show changes an object, which may have nothing but its identity, to the form that users see.
	Show func(obj Object)
}

// Parts are what a list or a watch reads.
type Parts struct {
	// Of is the same for the same parts. Versions of one are not valid in another.
	Of string
	// Read returns the lists that there are now.
	Read func(context.Context) ([]Part, error)
}

// NewUnion returns a Union.
func NewUnion(clk clock.WithTicker) *Union {
	return &Union{merger: newMerger(clk), kinds: map[string]kind{
		Pods: {
			resource: Pods, new: func() object { return &corev1.Pod{} }, newList: func() runtime.Object { return &corev1.PodList{} },
			judged:   []string{namespaceField},
			fieldsOf: func(obj object) map[string]string { return map[string]string{namespaceField: obj.GetNamespace()} },
		},
		Events: {
			resource: Events, new: func() object { return &corev1.Event{} }, newList: func() runtime.Object { return &corev1.EventList{} },
			judged: []string{namespaceField, aboutNamespaceField, uidField},
			fieldsOf: func(obj object) map[string]string {
				about := obj.(*corev1.Event).InvolvedObject
				return map[string]string{namespaceField: obj.GetNamespace(), aboutNamespaceField: about.Namespace, uidField: string(about.UID)}
			},
		},
	}}
}

const aboutNamespaceField = "involvedObject.namespace"

// query returns a query whose selectors the lists get, except for the fields that Show changes.
func (u *Union) query(of, resource, namespace string, o metav1.ListOptions) (query, error) {
	k, known := u.kinds[resource]
	if !known {
		return query{}, apierrors.NewBadRequest(resource + " are not shown from elsewhere")
	}
	q, err := parseQuery(k, namespace, o)
	if err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	q.of = of
	q.clusters = labels.Everything()
	if q.memberLabels, err = labels.Parse(o.LabelSelector); err != nil {
		return q, apierrors.NewBadRequest(err.Error())
	}
	if q.memberFields == nil {
		q.memberFields = fields.Everything()
	}
	return q, nil
}

// List returns the objects that here lists, and those of the parts. warnings name the parts that did not answer.
func (u *Union) List(ctx context.Context, resource, namespace string, p Parts, here cache.ListerWatcherWithContext, o metav1.ListOptions) (runtime.Object, []string, error) {
	q, err := u.query(p.Of, resource, namespace, o)
	if err != nil {
		return nil, nil, err
	}
	if o.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, nil, apierrors.NewResourceExpired("objects of clusters are only known as they are now: list without resourceVersionMatch=Exact")
	}
	from := &unionSources{parts: p, known: map[string]Part{}}
	list, missing, err := u.list(ctx, q, here, from)
	if err != nil {
		return nil, nil, err
	}
	var warnings []string
	for name, why := range missing {
		warnings = append(warnings, fmt.Sprintf("%s: %s", from.part(name).Missing, why))
	}
	return list, warnings, nil
}

// Watch watches what List lists.
func (u *Union) Watch(ctx context.Context, resource, namespace string, p Parts, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error) {
	q, err := u.query(p.Of, resource, namespace, o)
	if err != nil {
		return nil, err
	}
	return u.watch(ctx, q, here, &unionSources{parts: p, known: map[string]Part{}}, o)
}

// Number gives an object that was read alone a resource version like those of a list.
func (u *Union) Number(obj Object) { u.number(obj, u.ledger.now()) }

// unionSources are the sources of one request.
type unionSources struct {
	parts Parts

	mu    sync.Mutex
	known map[string]Part
}

func (s *unionSources) read(ctx context.Context) ([]Part, error) {
	parts, err := s.parts.Read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		s.known[p.Name] = p
	}
	return parts, err
}

func (s *unionSources) part(name string) Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name]
}

func (s *unionSources) names(ctx context.Context, _ query) (exist, readable []string, err error) {
	parts, err := s.read(ctx)
	for _, p := range parts {
		exist = append(exist, p.Name)
	}
	return exist, exist, err
}

func (s *unionSources) lists(ctx context.Context, q query) ([]part, map[string]string, error) {
	of, err := s.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	out := make([]part, len(of))
	var wg sync.WaitGroup
	turns := make(chan struct{}, concurrency)
	for i, p := range of {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			out[i] = p.list(ctx, q)
			out[i].source = p.Name
		})
	}
	wg.Wait()
	return out, map[string]string{}, ctx.Err()
}

// list returns the objects of a part, as users see them.
func (p Part) list(ctx context.Context, q query) (out part) {
	list, err := p.List(ctx, q.options(p.Name))
	if err != nil {
		return part{err: err}
	}
	objects, version, err := itemsOf(list)
	if err != nil {
		return part{err: err}
	}
	out.version = version
	for _, obj := range objects {
		shown, err := p.Complete(ctx, obj)
		if err != nil {
			return part{err: err}
		}
		if p.Show(obj); shown && q.covers(obj) && q.matches(obj) {
			out.objects = append(out.objects, obj)
		}
	}
	return out
}

func (s *unionSources) source(name string, q query) source {
	p := s.part(name)
	return source{
		name: name,
		list: func(ctx context.Context) (part, error) {
			out := p.list(ctx, q)
			return out, out.err
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			o := q.options(name)
			o.ResourceVersion, o.AllowWatchBookmarks, o.Watch = version, true, true
			return p.Watch(ctx, o)
		},
		belongs: p.Complete,
		show:    p.Show,
	}
}
