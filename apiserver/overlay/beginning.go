package overlay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/value"
)

// Beginning is what a new workspace has, besides the objects that all workspaces begin with.
type Beginning struct {
	// Owner is the user with the role cluster-admin; "" if only administrators of the whole server may do anything.
	Owner string
	// Namespaces get the objects that every namespace has.
	Namespaces          []*corev1.Namespace
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
	// Custom are cluster-scoped custom resources.
	Custom []CustomObject
}

// CustomObject is a new custom resource, in the version that is stored.
type CustomObject struct {
	Resource schema.GroupResource
	Object   *unstructured.Unstructured
}

// writes returns the writes of all objects of a new workspace.
func (e *Encoder) writes(ctx context.Context, b Beginning) (all []clientv3.Op, err error) {
	var objects []Object
	if b.Owner != "" {
		objects = append(objects, OwnerBinding(b.Owner))
	}
	for _, binding := range b.ClusterRoleBindings {
		objects = append(objects, Object{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, binding})
	}
	for _, given := range b.Namespaces {
		namespace := activeNamespace(given.Name)
		maps.Copy(namespace.Labels, given.Labels)
		namespace.Annotations = given.Annotations
		objects = append(append(objects, Companions(given.Name, e.RootCA)...), Object{Namespaces, namespace})
	}
	for _, o := range objects {
		write, err := e.Put(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, write)
	}
	for _, o := range b.Custom {
		write, err := e.putCustom(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, write)
	}
	return all, nil
}

// activeNamespace returns a namespace as the API stores it.
func activeNamespace(name string) *corev1.Namespace {
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

// putCustom returns the write of a new custom resource.
func (e *Encoder) putCustom(ctx context.Context, o CustomObject) (none clientv3.Op, err error) {
	object := o.Object.DeepCopy()
	object.SetUID(uuid.NewUUID())
	object.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	object.SetGeneration(1)
	encoded, err := json.Marshal(object.Object)
	if err != nil {
		return none, fmt.Errorf("encode %s %s: %w", o.Resource, object.GetName(), err)
	}
	key := CustomKey(o.Resource) + object.GetName()
	stored, err := e.Transformer(o.Resource).TransformToStorage(ctx, encoded, value.DefaultContext(key))
	if err != nil {
		return none, fmt.Errorf("encrypt %s %s: %w", o.Resource, object.GetName(), err)
	}
	return clientv3.OpPut(key, string(stored)), nil
}
