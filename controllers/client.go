package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// maxAttempts is how often a conflicting write is attempted.
const maxAttempts = 8

// Client reads and writes the objects of one resource as values of type T. Its errors about requests are
// those of the API.
type Client[T any] struct {
	api     dynamic.NamespaceableResourceInterface
	gvr     schema.GroupVersionResource
	kind    string
	manager string
}

// NewClient returns a client of a resource with its kind. It writes as the given field manager.
func NewClient[T any](client dynamic.Interface, gvr schema.GroupVersionResource, kind, manager string) Client[T] {
	return Client[T]{api: client.Resource(gvr), gvr: gvr, kind: kind, manager: manager}
}

func (c Client[T]) in(namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.api
	}
	return c.api.Namespace(namespace)
}

func (c Client[T]) encode(object *T) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", c.kind, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(c.gvr.GroupVersion().WithKind(c.kind))
	return u, nil
}

func (c Client[T]) decode(u *unstructured.Unstructured, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", c.kind, u.GetNamespace(), u.GetName(), err)
	}
	return out, nil
}

// Get reads one object. The namespace of a cluster-scoped object is empty.
func (c Client[T]) Get(ctx context.Context, namespace, name string) (*T, error) {
	return c.decode(c.in(namespace).Get(ctx, name, metav1.GetOptions{}))
}

// List reads all objects of a namespace.
func (c Client[T]) List(ctx context.Context, namespace string) ([]*T, error) {
	list, err := c.in(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]*T, 0, len(list.Items))
	for i := range list.Items {
		one, err := c.decode(&list.Items[i], nil)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// Create creates an object and returns the stored one.
func (c Client[T]) Create(ctx context.Context, namespace string, object *T) (*T, error) {
	u, err := c.encode(object)
	if err != nil {
		return nil, err
	}
	return c.decode(c.in(namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: c.manager}))
}

// Update replaces an object and returns the stored one. It fails with a conflict if the object has another
// resourceVersion by then.
func (c Client[T]) Update(ctx context.Context, namespace string, object *T) (*T, error) {
	u, err := c.encode(object)
	if err != nil {
		return nil, err
	}
	return c.decode(c.in(namespace).Update(ctx, u, metav1.UpdateOptions{FieldManager: c.manager}))
}

// Delete deletes an object. If uid or resourceVersion is not empty, the object has to have it.
func (c Client[T]) Delete(ctx context.Context, namespace, name string, uid types.UID, resourceVersion string) error {
	p := &metav1.Preconditions{}
	if uid != "" {
		p.UID = &uid
	}
	if resourceVersion != "" {
		p.ResourceVersion = &resourceVersion
	}
	return c.in(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: p})
}

// UpdateStatus applies change to the status of the current object with that UID, and returns the stored
// object. It writes nothing if change returns false, and calls change again after a conflict. If there is no
// such object, the error is NotFound.
func (c Client[T]) UpdateStatus(ctx context.Context, namespace, name string, uid types.UID, change func(*T) bool) (*T, error) {
	var last error
	for range maxAttempts {
		u, err := c.in(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if uid != "" && u.GetUID() != uid {
			return nil, apierrors.NewNotFound(c.gvr.GroupResource(), name)
		}
		object, err := c.decode(u, nil)
		if err != nil {
			return nil, err
		}
		if !change(object) {
			return object, nil
		}
		next, err := c.encode(object)
		if err != nil {
			return nil, err
		}
		object, err = c.decode(c.in(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: c.manager}))
		if err == nil || !apierrors.IsConflict(err) {
			return object, err
		}
		last = err
	}
	return nil, last
}
