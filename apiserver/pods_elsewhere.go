package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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
	api "k8s.io/kubernetes/pkg/apis/core"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Elsewhere has the pods of this workspace's objects that run in member clusters. Users see them as if they were the
// workspace's own. It is called from several goroutines, for requests that are authorized.
type Elsewhere interface {
	// ListPods returns the pods that here lists, and those elsewhere. warnings name the clusters without an answer.
	ListPods(ctx context.Context, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (list *corev1.PodList, warnings []string, err error)
	// WatchPods watches what ListPods lists.
	WatchPods(ctx context.Context, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error)
	GetPod(ctx context.Context, namespace, name string) (pod *corev1.Pod, warnings []string, err error)
	DeletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) (*corev1.Pod, error)
	// UpdatePod changes a pod, or a subresource that has the form of one.
	UpdatePod(ctx context.Context, namespace, name, subresource string, change func(*corev1.Pod) (*corev1.Pod, error), o metav1.UpdateOptions) (*corev1.Pod, error)
	EvictPod(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) error
	PodLogs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions) (io.ReadCloser, error)
	// ConnectPod returns a handler for a subresource of a pod; path is what follows it in the URL.
	ConnectPod(ctx context.Context, namespace, name, subresource, path string, failed proxy.ErrorResponder) (http.Handler, error)
}

// seesStoreAlone reports whether a request is one of this server itself: its controllers act on stored objects. The garbage
// collector would otherwise delete pods whose owners it does not find, and quotas would count them.
func seesStoreAlone(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	return !ok || u.GetName() == user.APIServerUser || strings.HasPrefix(u.GetName(), "atoll:")
}

// podsElsewhere is upstream's storage of pods, together with the pods in member clusters.
type podsElsewhere struct {
	*podstore.REST
	elsewhere Elsewhere
}

var (
	_ rest.StandardStorage    = podsElsewhere{}
	_ rest.ShortNamesProvider = podsElsewhere{}
)

func (p podsElsewhere) List(ctx context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	if seesStoreAlone(ctx) {
		return p.REST.List(ctx, o)
	}
	options, err := externalOptions(o)
	if err != nil {
		return nil, err
	}
	list, warnings, err := p.elsewhere.ListPods(ctx, request.NamespaceValue(ctx), p.here(ctx), options)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return internal(list, &api.PodList{})
}

func (p podsElsewhere) Watch(ctx context.Context, o *metainternalversion.ListOptions) (watch.Interface, error) {
	if seesStoreAlone(ctx) {
		return p.REST.Watch(ctx, o)
	}
	options, err := externalOptions(o)
	if err != nil {
		return nil, err
	}
	events, err := p.elsewhere.WatchPods(ctx, request.NamespaceValue(ctx), p.here(ctx), options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
		if pod, ok := e.Object.(*corev1.Pod); ok {
			if e.Object, err = internal(pod, &api.Pod{}); err != nil {
				status := apierrors.NewInternalError(err).ErrStatus
				return watch.Event{Type: watch.Error, Object: &status}, true
			}
		}
		return e, true
	}), nil
}

// here lists and watches the workspace's own pods.
func (p podsElsewhere) here(ctx context.Context) cache.ListerWatcherWithContext {
	namespace := request.NamespaceValue(ctx)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			options, err := internalOptions(o)
			if err != nil {
				return nil, err
			}
			list, err := p.REST.List(request.WithNamespace(ctx, namespace), options)
			if err != nil {
				return nil, err
			}
			return external(list, &corev1.PodList{})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			options, err := internalOptions(o)
			if err != nil {
				return nil, err
			}
			events, err := p.REST.Watch(request.WithNamespace(ctx, namespace), options)
			if err != nil {
				return nil, err
			}
			return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
				if pod, ok := e.Object.(*api.Pod); ok {
					if e.Object, err = external(pod, &corev1.Pod{}); err != nil {
						return e, false
					}
				}
				return e, true
			}), nil
		},
	}
}

func (p podsElsewhere) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	obj, err := p.REST.Get(ctx, name, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx) {
		return obj, err
	}
	pod, warnings, err := p.elsewhere.GetPod(ctx, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	warn(ctx, warnings)
	return internal(pod, &api.Pod{})
}

func (p podsElsewhere) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, done, err := p.REST.Delete(ctx, name, validate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx) {
		return obj, done, err
	}
	pod, _, err := p.elsewhere.GetPod(ctx, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, false, err
	}
	before, err := internal(pod, &api.Pod{})
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, before); err != nil {
			return nil, false, err
		}
	}
	options := *o
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	}
	if pod, err = p.elsewhere.DeletePod(ctx, request.NamespaceValue(ctx), name, options); err != nil {
		return nil, false, err
	}
	obj, err = internal(pod, &api.Pod{})
	return obj, false, err
}

func (p podsElsewhere) Update(ctx context.Context, name string, change rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, created, err := p.REST.Update(ctx, name, change, create, update, allowCreate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx) {
		return obj, created, err
	}
	obj, err = updateElsewhere(ctx, p.elsewhere, name, "", change, update, o)
	return obj, false, err
}

// updateElsewhere changes a pod in a member cluster. Admission of the workspace and of the cluster decide about it.
func updateElsewhere(ctx context.Context, elsewhere Elsewhere, name, subresource string, change rest.UpdatedObjectInfo, validate rest.ValidateObjectUpdateFunc, o *metav1.UpdateOptions) (runtime.Object, error) {
	pod, err := elsewhere.UpdatePod(ctx, request.NamespaceValue(ctx), name, subresource, func(before *corev1.Pod) (*corev1.Pod, error) {
		old, err := internal(before, &api.Pod{})
		if err != nil {
			return nil, err
		}
		after, err := change.UpdatedObject(ctx, old)
		if err != nil {
			return nil, err
		}
		if validate != nil {
			if err := validate(ctx, after.DeepCopyObject(), old.DeepCopyObject()); err != nil {
				return nil, err
			}
		}
		return external(after, &corev1.Pod{})
	}, *o)
	if err != nil {
		return nil, err
	}
	return internal(pod, &api.Pod{})
}

// clusterColumn is the column with the cluster of a pod, with -o wide.
func clusterColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Cluster", Type: "string", Priority: 1, Description: "The member cluster that runs the pod."}
}

// ConvertToTable adds the cluster of each pod to upstream's columns.
func (p podsElsewhere) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table, err := p.REST.ConvertToTable(ctx, object, options)
	if err != nil || seesStoreAlone(ctx) {
		return table, err
	}
	if len(table.ColumnDefinitions) > 0 {
		table.ColumnDefinitions = append(table.ColumnDefinitions, clusterColumn())
	}
	for i := range table.Rows {
		cluster := ""
		if pod, err := meta.Accessor(table.Rows[i].Object.Object); err == nil {
			cluster = pod.GetLabels()[v1alpha1.ClusterLabel]
		}
		table.Rows[i].Cells = append(table.Rows[i].Cells, cluster)
	}
	return table, nil
}

func warn(ctx context.Context, warnings []string) {
	for _, text := range warnings {
		warning.AddWarning(ctx, "", text)
	}
}

// internal converts an object to the type that upstream's handlers expect.
func internal[T runtime.Object](from runtime.Object, to T) (T, error) {
	if err := legacyscheme.Scheme.Convert(from, to, nil); err != nil {
		return to, fmt.Errorf("convert a pod of a member cluster: %w", err)
	}
	return to, nil
}

func external[T runtime.Object](from runtime.Object, to T) (T, error) {
	if err := legacyscheme.Scheme.Convert(from, to, nil); err != nil {
		return to, fmt.Errorf("convert a pod: %w", err)
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
