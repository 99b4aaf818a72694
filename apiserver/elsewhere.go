package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/atoll-dev/atoll/controllers"
)

// Elsewhere has objects of the core group that exist in member clusters: the pods of this workspace's objects, their events,
// and nodes. Users see them as if they were the workspace's own. It is called from several goroutines, for requests that are
// authorized. Objects are those of k8s.io/api/core/v1.
type Elsewhere interface {
	// List returns the objects of a resource that here lists, and those elsewhere. warnings name the clusters without an
	// answer.
	List(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (list runtime.Object, warnings []string, err error)
	// Watch watches what List lists.
	Watch(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error)
	Get(ctx context.Context, resource, namespace, name string) (obj runtime.Object, warnings []string, err error)

	// Metrics returns what pods or nodes that List lists use, in the types of metrics.k8s.io/v1beta1, and MetricsOf what one uses.
	Metrics(ctx context.Context, resource, namespace string, o metav1.ListOptions) (list runtime.Object, warnings []string, err error)
	MetricsOf(ctx context.Context, resource, namespace, name string) (obj runtime.Object, warnings []string, err error)

	DeletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) (*corev1.Pod, error)
	// UpdatePod changes a pod, or a subresource that has the form of one.
	UpdatePod(ctx context.Context, namespace, name, subresource string, change func(*corev1.Pod) (*corev1.Pod, error), o metav1.UpdateOptions) (*corev1.Pod, error)
	EvictPod(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) error
	PodLogs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions) (io.ReadCloser, error)
	// ConnectPod returns a handler for a subresource of a pod; path is what follows it in the URL.
	ConnectPod(ctx context.Context, namespace, name, subresource, path string, failed proxy.ErrorResponder) (http.Handler, error)
	// ConnectService and ConnectNode return handlers for requests to the proxies of a Service and of a node.
	ConnectService(ctx context.Context, namespace, name, path string, failed proxy.ErrorResponder) (http.Handler, error)
	ConnectNode(ctx context.Context, name, path string, failed proxy.ErrorResponder) (http.Handler, error)
	// ConnectCluster returns a handler for requests to a path of the API of a cluster. If the cluster does not answer, the
	// handler passes an API status to failed.
	ConnectCluster(ctx context.Context, cluster, path string, failed proxy.ErrorResponder) (http.Handler, error)
}

// seesStoreAlone reports whether a request is one of this server itself: its controllers act on stored objects. The garbage
// collector would otherwise delete pods whose owners it does not find, and quotas would count them. Requests that have nothing elsewhere
// see the store alone too.
func seesStoreAlone(ctx context.Context, elsewhere Elsewhere) bool {
	if !reaches(ctx, elsewhere) {
		return true
	}
	u, ok := request.UserFrom(ctx)
	return !ok || u.GetName() == user.APIServerUser || strings.HasPrefix(u.GetName(), "atoll:")
}

// mergedReads reads the objects of a resource that are stored, and those elsewhere. A struct that embeds it and upstream's
// storage has its List, Watch and Get: those of the store are one level deeper.
type mergedReads struct {
	resource  string
	elsewhere Elsewhere
	stored    readable
	// New objects and lists, in the internal version of upstream's handlers and in that of clients.
	internal, internalList, external, externalList func() runtime.Object
}

// readable is the part of a storage that mergedReads reads.
type readable interface {
	rest.Getter
	List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error)
	rest.Watcher
}

func (m mergedReads) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	if seesStoreAlone(ctx, m.elsewhere) {
		return m.stored.List(ctx, o)
	}
	options, err := externalOptions(o)
	if err != nil {
		return nil, err
	}
	list, warnings, err := m.elsewhere.List(ctx, m.resource, request.NamespaceValue(ctx), m.here(ctx), options)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return convert(list, m.internalList())
}

func (m mergedReads) Watch(ctx context.Context, o *metainternalversion.ListOptions) (watch.Interface, error) {
	if seesStoreAlone(ctx, m.elsewhere) {
		return m.stored.Watch(ctx, o)
	}
	options, err := externalOptions(o)
	if err != nil {
		return nil, err
	}
	events, err := m.elsewhere.Watch(ctx, m.resource, request.NamespaceValue(ctx), m.here(ctx), options)
	if err != nil {
		return nil, err
	}
	return converted(events, m.internal), nil
}

func (m mergedReads) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := m.stored.Get(ctx, name, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, m.elsewhere) {
		return obj, err
	}
	found, warnings, err := m.elsewhere.Get(ctx, m.resource, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return convert(found, m.internal())
}

// here lists and watches the workspace's own objects.
func (m mergedReads) here(ctx context.Context) cache.ListerWatcherWithContext {
	namespace := request.NamespaceValue(ctx)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			options, err := internalOptions(o)
			if err != nil {
				return nil, err
			}
			list, err := m.stored.List(request.WithNamespace(ctx, namespace), options)
			if err != nil {
				return nil, err
			}
			return convert(list, m.externalList())
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			options, err := internalOptions(o)
			if err != nil {
				return nil, err
			}
			events, err := m.stored.Watch(request.WithNamespace(ctx, namespace), options)
			if err != nil {
				return nil, err
			}
			return converted(events, m.external), nil
		},
	}
}

// converted converts the objects of events, except errors.
func converted(events watch.Interface, to func() runtime.Object) watch.Interface {
	return controllers.FilterWatch(events, func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Error {
			return e, true
		}
		obj, err := convert(e.Object, to())
		if err != nil {
			status := apierrors.NewInternalError(err).ErrStatus
			return watch.Event{Type: watch.Error, Object: &status}, true
		}
		e.Object = obj
		return e, true
	})
}

func warn(ctx context.Context, warnings []string) {
	for _, text := range warnings {
		warning.AddWarning(ctx, "", text)
	}
}

// convert converts an object from one version to another.
func convert[T runtime.Object](from runtime.Object, to T) (T, error) {
	if err := legacyscheme.Scheme.Convert(from, to, nil); err != nil {
		return to, fmt.Errorf("convert an object of a member cluster: %w", err)
	}
	return to, nil
}

func externalOptions(o *metainternalversion.ListOptions) (out metav1.ListOptions, err error) {
	if o == nil {
		return out, nil
	}
	err = metainternalversion.Convert_internalversion_ListOptions_To_v1_ListOptions(o, &out, nil)
	return out, err
}

func internalOptions(o metav1.ListOptions) (*metainternalversion.ListOptions, error) {
	out := &metainternalversion.ListOptions{}
	return out, metainternalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&o, out, nil)
}
