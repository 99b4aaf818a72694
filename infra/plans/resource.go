package plans

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// manager is the field manager of writes here.
const manager = "atoll-infra"

// resource is a typed client for one of Atoll's kinds.
type resource[T any] struct {
	api  dynamic.NamespaceableResourceInterface
	gvr  schema.GroupVersionResource
	kind string
}

func newResource[T any](client dynamic.Interface, gvr schema.GroupVersionResource, kind string) resource[T] {
	return resource[T]{api: client.Resource(gvr), gvr: gvr, kind: kind}
}

func (r resource[T]) in(namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return r.api
	}
	return r.api.Namespace(namespace)
}

// encode converts an object to its unstructured form.
func (r resource[T]) encode(object *T) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode a %s: %w", r.kind, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(r.gvr.GroupVersion().WithKind(r.kind))
	return u, nil
}

func (r resource[T]) decode(u *unstructured.Unstructured, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("decode %s %s/%s: %w", r.kind, u.GetNamespace(), u.GetName(), err)
	}
	return out, nil
}

func (r resource[T]) get(ctx context.Context, namespace, name string) (*T, error) {
	return r.decode(r.in(namespace).Get(ctx, name, metav1.GetOptions{}))
}

func (r resource[T]) create(ctx context.Context, namespace string, object *T) (*T, error) {
	u, err := r.encode(object)
	if err != nil {
		return nil, err
	}
	return r.decode(r.in(namespace).Create(ctx, u, metav1.CreateOptions{FieldManager: manager}))
}

// update replaces an object, if it still has the given resourceVersion.
func (r resource[T]) update(ctx context.Context, namespace string, object *T) (*T, error) {
	u, err := r.encode(object)
	if err != nil {
		return nil, err
	}
	return r.decode(r.in(namespace).Update(ctx, u, metav1.UpdateOptions{FieldManager: manager}))
}

func (r resource[T]) delete(ctx context.Context, namespace, name string, uid types.UID, resourceVersion string) error {
	p := &metav1.Preconditions{}
	if uid != "" {
		p.UID = &uid
	}
	if resourceVersion != "" {
		p.ResourceVersion = &resourceVersion
	}
	return r.in(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: p})
}

// maxAttempts is how often a conflicting write is attempted.
const maxAttempts = 8

// updateStatus applies change to the status of the current object with that UID, and returns the stored
// object. It writes nothing if change returns false. If there is no such object, the error is NotFound.
func (r resource[T]) updateStatus(ctx context.Context, namespace, name string, uid types.UID, change func(*T) bool) (*T, error) {
	var last error
	for range maxAttempts {
		u, err := r.in(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if uid != "" && u.GetUID() != uid {
			return nil, apierrors.NewNotFound(r.gvr.GroupResource(), name)
		}
		object, err := r.decode(u, nil)
		if err != nil {
			return nil, err
		}
		if !change(object) {
			return object, nil
		}
		next, err := r.encode(object)
		if err != nil {
			return nil, err
		}
		object, err = r.decode(r.in(namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{FieldManager: manager}))
		if err == nil || !apierrors.IsConflict(err) {
			return object, err
		}
		last = err
	}
	return nil, last
}

// decodeTo makes an informer store T. An object that cannot be decoded is stored unchanged, and never found.
func decodeTo[T any](object any) (any, error) {
	u, is := object.(*unstructured.Unstructured)
	if !is {
		return object, nil
	}
	u.SetManagedFields(nil)
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return object, nil
	}
	return out, nil
}

// redacted removes from an error about a secret object whatever the API server quotes from the object.
func redacted(err error) error {
	if err == nil || !apierrors.IsInvalid(err) {
		return err
	}
	status, is := err.(apierrors.APIStatus)
	if !is || status.Status().Details == nil {
		return fmt.Errorf("the API server rejected it as invalid")
	}
	var fields []string
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field+" ("+string(cause.Type)+")")
	}
	text, _ := json.Marshal(fields)
	return fmt.Errorf("the API server rejected it as invalid: %s", text)
}

// resources are the typed clients of all kinds that are written here.
type resources struct {
	plans     resource[v1alpha1.Plan]
	approvals resource[v1alpha1.Approval]
	applies   resource[v1alpha1.Apply]
	policies  resource[v1alpha1.SyncPolicy]
	clusters  resource[v1alpha1.ClusterSyncPolicy]
	states    resource[v1alpha1.ResourceState]
	changes   resource[v1alpha1.PlanChanges]
	secrets   resource[v1alpha1.PlanSecrets]
}

func newResources(client dynamic.Interface) resources {
	return resources{
		plans:     newResource[v1alpha1.Plan](client, v1alpha1.PlanResource, "Plan"),
		approvals: newResource[v1alpha1.Approval](client, v1alpha1.ApprovalResource, "Approval"),
		applies:   newResource[v1alpha1.Apply](client, v1alpha1.ApplyResource, "Apply"),
		policies:  newResource[v1alpha1.SyncPolicy](client, v1alpha1.SyncPolicyResource, "SyncPolicy"),
		clusters:  newResource[v1alpha1.ClusterSyncPolicy](client, v1alpha1.ClusterSyncPolicyResource, "ClusterSyncPolicy"),
		states:    newResource[v1alpha1.ResourceState](client, v1alpha1.ResourceStateResource, "ResourceState"),
		changes:   newResource[v1alpha1.PlanChanges](client, v1alpha1.PlanChangesResource, "PlanChanges"),
		secrets:   newResource[v1alpha1.PlanSecrets](client, v1alpha1.PlanSecretsResource, "PlanSecrets"),
	}
}
