package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/tools/cache"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
)

type elsewhereKey struct{}

// WithElsewhere returns the context of a request that has objects elsewhere. With nil, it has none.
func WithElsewhere(ctx context.Context, elsewhere Elsewhere) context.Context {
	return context.WithValue(ctx, elsewhereKey{}, elsewhere)
}

func elsewhereOf(ctx context.Context) Elsewhere {
	e, _ := ctx.Value(elsewhereKey{}).(Elsewhere)
	return e
}

// reaches reports whether a request has objects elsewhere.
func reaches(ctx context.Context, elsewhere Elsewhere) bool {
	if _, ofRequest := elsewhere.(OfRequest); ofRequest {
		return elsewhereOf(ctx) != nil
	}
	return true
}

// OfRequest is the Elsewhere of a chain that serves several APIs: that of WithElsewhere. A request without one sees the store alone, and its
// connections are refused.
type OfRequest struct{}

var _ Elsewhere = OfRequest{}

// errNowhere is the error of code that has lost the context of its request.
var errNowhere = errors.New("the request has no objects elsewhere: this is a bug, please report it")

// List implements Elsewhere.
func (OfRequest) List(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (runtime.Object, []string, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.List(ctx, resource, namespace, here, o)
	}
	return nil, nil, errNowhere
}

// Watch implements Elsewhere.
func (OfRequest) Watch(ctx context.Context, resource, namespace string, here cache.ListerWatcherWithContext, o metav1.ListOptions) (watch.Interface, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.Watch(ctx, resource, namespace, here, o)
	}
	return nil, errNowhere
}

// Get implements Elsewhere.
func (OfRequest) Get(ctx context.Context, resource, namespace, name string) (runtime.Object, []string, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.Get(ctx, resource, namespace, name)
	}
	return nil, nil, errNowhere
}

// Metrics implements Elsewhere.
func (OfRequest) Metrics(ctx context.Context, resource, namespace string, o metav1.ListOptions) (runtime.Object, []string, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.Metrics(ctx, resource, namespace, o)
	}
	return nil, nil, errNowhere
}

// MetricsOf implements Elsewhere.
func (OfRequest) MetricsOf(ctx context.Context, resource, namespace, name string) (runtime.Object, []string, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.MetricsOf(ctx, resource, namespace, name)
	}
	return nil, nil, errNowhere
}

// DeletePod implements Elsewhere.
func (OfRequest) DeletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) (*corev1.Pod, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.DeletePod(ctx, namespace, name, o)
	}
	return nil, errNowhere
}

// UpdatePod implements Elsewhere.
func (OfRequest) UpdatePod(ctx context.Context, namespace, name, subresource string, change func(*corev1.Pod) (*corev1.Pod, error), o metav1.UpdateOptions) (*corev1.Pod, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.UpdatePod(ctx, namespace, name, subresource, change, o)
	}
	return nil, errNowhere
}

// EvictPod implements Elsewhere.
func (OfRequest) EvictPod(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) error {
	if e := elsewhereOf(ctx); e != nil {
		return e.EvictPod(ctx, namespace, name, o)
	}
	return errNowhere
}

// PodLogs implements Elsewhere.
func (OfRequest) PodLogs(ctx context.Context, namespace, name string, o *corev1.PodLogOptions) (io.ReadCloser, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.PodLogs(ctx, namespace, name, o)
	}
	return nil, errNowhere
}

// ConnectPod implements Elsewhere.
func (OfRequest) ConnectPod(ctx context.Context, namespace, name, subresource, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.ConnectPod(ctx, namespace, name, subresource, path, failed)
	}
	return nil, errNowhere
}

// ConnectService implements Elsewhere.
func (OfRequest) ConnectService(ctx context.Context, namespace, name, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.ConnectService(ctx, namespace, name, path, failed)
	}
	return nil, errNowhere
}

// ConnectNode implements Elsewhere.
func (OfRequest) ConnectNode(ctx context.Context, name, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.ConnectNode(ctx, name, path, failed)
	}
	return nil, errNowhere
}

// ConnectCluster implements Elsewhere.
func (OfRequest) ConnectCluster(ctx context.Context, cluster, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	if e := elsewhereOf(ctx); e != nil {
		return e.ConnectCluster(ctx, cluster, path, failed)
	}
	return nil, errNowhere
}

// WithStoredEvictions replaces what evicts the pods that are stored, in the storage of evictions that CoreProvider opens.
func WithStoredEvictions(storage rest.Storage, stored func(*podstore.EvictionREST) rest.NamedCreater) (rest.Storage, error) {
	e, ok := storage.(evictionElsewhere)
	if !ok {
		return nil, fmt.Errorf("serve evictions: the storage is a %T", storage)
	}
	e.stored = stored(e.EvictionREST)
	return e, nil
}
