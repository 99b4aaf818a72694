package fleet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/controllers"
)

// ListBounds limit what a cache keeps of a member's objects. A member may be in the hands of someone else, and a list or a
// watch of ever more objects would take all memory of the server.
type ListBounds struct {
	// Max is how many objects the cache may have, and Bytes their total size, about; 0 is no limit. More of them are an
	// error, and the list is tried again later.
	Max, Bytes int
	// BytesEach, if not 0, are added to Bytes for each object.
	BytesEach int
	// Keep, if not nil, reports whether an object is to be in the cache. Others do not count.
	Keep func(metav1.Object) bool
	// Slim, if not nil, returns an object without the parts that the cache does not need.
	Slim func(runtime.Object) runtime.Object
}

// pageSize is how many objects a member sends in one answer. If so many are longer than an answer may be, it is asked for fewer.
// A list ends after maxPages.
const (
	pageSize = 500
	maxPages = 20_000
)

// boundedObjects lists and watches within bounds.
type boundedObjects struct {
	ListBounds
	objects *cache.ListWatch

	mu    sync.Mutex
	known map[uint64]int // the sizes of the objects that the cache has, by hashes of their names
	bytes int
}

// Bound returns lw within the bounds, for one cache. It lists in pages, also where the caller asks for all in one.
func (l ListBounds) Bound(lw *cache.ListWatch) *cache.ListWatch {
	b := &boundedObjects{ListBounds: l, objects: lw, known: map[uint64]int{}}
	return &cache.ListWatch{ListWithContextFunc: b.list, WatchFuncWithContext: b.watch}
}

func (b *boundedObjects) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	// API servers ignore the limit for version 0.
	if o.ResourceVersion == "0" {
		o.ResourceVersion, o.ResourceVersionMatch = "", ""
	}
	b.clear()
	var kept []runtime.Object
	var last runtime.Object
	err := EachPage(ctx, o, b.objects.ListWithContext, func(page runtime.Object) (more bool, err error) {
		last = page
		return true, meta.EachListItemWithAlloc(page, func(obj runtime.Object) error {
			obj, err := b.add(obj)
			if obj != nil {
				kept = append(kept, obj)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	list, err := meta.ListAccessor(last)
	if err == nil {
		list.SetRemainingItemCount(nil)
		err = meta.SetList(last, kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of a cluster: %w", err)
	}
	return last, nil
}

// EachPage lists a member's objects, and calls use for each page until it returns false. An answer of a member to a list
// is bounded: if a page is longer, the member is asked for shorter ones.
func EachPage[L runtime.Object](ctx context.Context, o metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error), use func(page L) (more bool, err error)) error {
	o.Limit = pageSize
	for range maxPages {
		page, err := list(ctx, o)
		if tooLong := (AnswerError{}); errors.As(err, &tooLong) && o.Limit > 1 {
			o.Limit = max(o.Limit/8, 1)
			continue
		}
		if err != nil {
			return err
		}
		if more, err := use(page); !more || err != nil {
			return err
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return fmt.Errorf("read the list of a cluster: %w", err)
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			return nil
		}
	}
	return AnswerError{fmt.Sprintf("the list of the cluster does not end within %d pages", maxPages)}
}

func (b *boundedObjects) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known, b.bytes = map[uint64]int{}, 0
}

func hashOf(obj runtime.Object) uint64 {
	h := fnv.New64a()
	if m, is := obj.(metav1.Object); is {
		_, _ = h.Write([]byte(m.GetNamespace() + "/" + m.GetName()))
	}
	return h.Sum64()
}

// add returns an object as the cache keeps it, nil if it does not. It returns an error if that would be too many.
func (b *boundedObjects) add(obj runtime.Object) (runtime.Object, error) {
	if obj = b.kept(obj); obj == nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key, size := hashOf(obj), sizeOf(obj)
	b.bytes += size - b.known[key]
	b.known[key] = size
	if len(b.known) > b.Max {
		return nil, AnswerError{fmt.Sprintf("the cluster has more than %d objects of a kind", b.Max)}
	}
	if limit := b.Bytes + b.BytesEach*len(b.known); limit > 0 && b.bytes > limit {
		return nil, AnswerError{fmt.Sprintf("the %d objects of a kind that the cluster has are longer than %d bytes", len(b.known), limit)}
	}
	return obj, nil
}

// remove reports whether the cache had an object.
func (b *boundedObjects) remove(obj runtime.Object) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := hashOf(obj)
	size, had := b.known[key]
	b.bytes -= size
	delete(b.known, key)
	return had
}

// sizeOf returns about how many bytes an object takes.
func sizeOf(obj runtime.Object) int {
	switch o := obj.(type) {
	case interface{ Size() int }: // built-in types
		return o.Size()
	case *unstructured.Unstructured:
		return sizeOfValue(o.Object)
	}
	return 0
}

func sizeOfValue(value any) int {
	const pointer = 16
	n := pointer
	switch v := value.(type) {
	case string:
		n += len(v)
	case map[string]any:
		for key, field := range v {
			n += pointer + len(key) + sizeOfValue(field)
		}
	case []any:
		for _, item := range v {
			n += sizeOfValue(item)
		}
	}
	return n
}

// Informer returns an informer of a member's objects within the bounds. tweak may be nil.
func (l ListBounds) Informer(client dynamic.Interface, gvr schema.GroupVersionResource, namespace string, tweak func(*metav1.ListOptions)) cache.SharedIndexInformer {
	api := client.Resource(gvr).Namespace(namespace)
	return l.informer(client, &unstructured.Unstructured{}, tweak,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) }, api.Watch)
}

// MetadataInformer is Informer for the metadata of objects.
func (l ListBounds) MetadataInformer(client metadata.Interface, gvr schema.GroupVersionResource) cache.SharedIndexInformer {
	api := client.Resource(gvr)
	return l.informer(client, &metav1.PartialObjectMetadata{}, nil,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) }, api.Watch)
}

func (l ListBounds) informer(client any, of runtime.Object, tweak func(*metav1.ListOptions), list cache.ListWithContextFunc, start cache.WatchFuncWithContext) cache.SharedIndexInformer {
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		if tweak != nil {
			tweak(&o)
		}
		return o
	}
	bounded := l.Bound(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, selected(o)) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return start(ctx, selected(o))
		},
	})
	return cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(bounded, client), of, 0, cache.Indexers{})
}

// kept returns an object as the cache keeps it, or nil.
func (l ListBounds) kept(obj runtime.Object) runtime.Object {
	if m, is := obj.(metav1.Object); !is || l.Keep != nil && !l.Keep(m) {
		return nil
	}
	if l.Slim != nil {
		return l.Slim(obj)
	}
	return obj
}

// watch passes the events on that the cache needs. Too many objects end it with an error.
func (b *boundedObjects) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		b.clear()
	}
	w, err := b.objects.WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	return controllers.FilterWatch(w, func(e watch.Event) (watch.Event, bool) {
		switch e.Type {
		case watch.Added, watch.Modified:
			obj, err := b.add(e.Object)
			if err != nil {
				return watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge,
					Reason: metav1.StatusReasonRequestEntityTooLarge, Message: err.Error()}}, true
			}
			if obj == nil {
				// The cache forgets an object that it is no longer to have.
				e.Type = watch.Deleted
				return e, b.remove(e.Object)
			}
			e.Object = obj
		case watch.Deleted:
			b.remove(e.Object)
			if b.Slim != nil {
				e.Object = b.Slim(e.Object)
			}
		}
		return e, true
	}), nil
}
