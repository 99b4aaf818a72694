package clusters

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/fleet"
)

// digest keeps a part of each object of a type. The memberStore that fills it holds its lock during each call.
type digest[T any] interface {
	// put replaces the kept part of an object.
	put(obj T)
	remove(obj T)
	clear()
}

// memberStore fills a digest with the objects of a type in a member, by a watch of its own. It is empty and not
// complete while the objects may not be listed or watched: it would become outdated.
type memberStore[T runtime.Object] struct {
	reflector *cache.Reflector

	mu       sync.Mutex
	digest   digest[T]
	complete bool // the objects have been listed
	denied   bool // the last list or watch was forbidden
}

// newMemberStore returns a store that fills d while its reflector runs. The objects match a field selector.
func newMemberStore[T, L runtime.Object](name string, member any, api listWatchAPI[L], of T, selector string, bounds fleet.ListBounds, d digest[T]) *memberStore[T] {
	s := &memberStore[T]{digest: d}
	d.clear()
	s.reflector = cache.NewReflectorWithOptions(listWatch(member, api, selector, bounds, s.recordError), of, s, cache.ReflectorOptions{Name: name})
	return s
}

func (s *memberStore[T]) recordError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied = apierrors.IsForbidden(err); s.denied {
		s.complete = false
		s.digest.clear()
	}
}

func (s *memberStore[T]) areDenied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.denied
}

// Add implements cache.ReflectorStore.
func (s *memberStore[T]) Add(obj any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(obj)
}

func (s *memberStore[T]) add(obj any) error {
	typed, ok := obj.(T)
	if !ok {
		return fmt.Errorf("%T is not a %T", obj, typed)
	}
	s.digest.put(typed)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *memberStore[T]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *memberStore[T]) Delete(obj any) error {
	if typed, ok := obj.(T); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.digest.remove(typed)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *memberStore[T]) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.digest.clear()
	for _, obj := range list {
		if err := s.add(obj); err != nil {
			return err
		}
	}
	s.complete = true
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *memberStore[T]) Resync() error { return nil }

// listWatchAPI is the part of a typed client that lists and watches.
type listWatchAPI[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches the objects that match a field selector, within bounds. It calls record with the error of
// each request, nil if it succeeded.
func listWatch[L runtime.Object](member any, api listWatchAPI[L], selector string, bounds fleet.ListBounds, record func(error)) cache.ListerWatcher {
	bounded := bounds.Bound(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		}})
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := bounded.ListWithContext(ctx, o)
			record(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := bounded.WatchWithContext(ctx, o)
			record(err)
			return w, err
		}}, member)
}
