// Package access reads the values that specs take from other objects: from Secrets, from Kubernetes objects,
// and, by the grants of other namespaces, from resources. It implements infra.ValueReader. Each read is made
// for the object whose spec takes the value, and the rights of that object's author decide.
package access

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Kinds returns the kind that serves a type.
type Kinds interface {
	Kind(ref expr.Ref) (*infra.ServedKind, error)
}

// Values reads values for specs. It implements infra.ValueReader:
//
//   - Secrets of the reader's namespace, as a Pod mounts them: the right to write the spec suffices.
//   - Other Kubernetes objects of that namespace, and cluster-scoped ones, with the rights of the author.
//   - Objects of other namespaces that grant it. Secrets have to be named by the grant.
type Values struct {
	kube      kubernetes.Interface
	own       dynamic.Interface // with all rights
	author    dynamic.Interface // with the rights of the author in the context
	discovery discovery.CachedDiscoveryInterface
	kinds     Kinds
}

// NewValues returns Values. config connects with all rights, and may impersonate users.
func NewValues(config *rest.Config, userAgent string, kinds Kinds) (*Values, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	own, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	author, err := controllers.NewAsAuthor(config, userAgent)
	if err != nil {
		return nil, err
	}
	return &Values{kube: kube, own: own, author: author, discovery: memory.NewMemCacheClient(kube.Discovery()), kinds: kinds}, nil
}

// Secret implements infra.ValueReader.
func (s *Values) Secret(ctx context.Context, reader infra.Reader, name, key string) ([]byte, error) {
	namespace := reader.Ref.Namespace
	secret, err := cached(evaluationOf(ctx), func(r *evaluation) map[[2]string]func() (*corev1.Secret, error) { return r.secrets }, [2]string{namespace, name}, func() (*corev1.Secret, error) {
		return s.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("Secret %s not found in namespace %s: create it with the key %s", name, namespace, key)
	case err != nil:
		return nil, fmt.Errorf("read Secret %s of namespace %s: %w", name, namespace, err)
	}
	value, found := secret.Data[key]
	if !found {
		keys := make([]string, 0, len(secret.Data))
		for k := range secret.Data {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		return nil, fmt.Errorf("Secret %s has no key %q, but %s", name, key, joinOrNone(keys))
	}
	return value, nil
}

func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "no keys"
	}
	return strings.Join(names, ", ")
}

// Object implements infra.ValueReader.
func (s *Values) Object(ctx context.Context, reader infra.Reader, ref expr.Ref) (cty.Value, error) {
	found, err := s.find(ctx, ref)
	if err != nil {
		return cty.NilVal, err
	}
	if found.gvr.Group == v1alpha1.Group {
		return cty.NilVal, fmt.Errorf("%s: objects of group %s cannot be referenced: reference the resource itself", ref, v1alpha1.Group)
	}
	way, err := s.permitted(ctx, reader, ref, found)
	if err != nil {
		return cty.NilVal, err
	}
	return cached(evaluationOf(ctx), func(r *evaluation) map[objectKey]func() (cty.Value, error) { return r.kubernetes }, objectKey{ref, way.author}, func() (cty.Value, error) {
		return s.read(way, ref, found)
	})
}

// read reads an object in a permitted way.
func (s *Values) read(way permittedRead, ref expr.Ref, found apiResource) (cty.Value, error) {
	var api dynamic.ResourceInterface = way.client.Resource(found.gvr)
	if found.namespaced {
		api = way.client.Resource(found.gvr).Namespace(ref.Namespace)
	}
	object, err := api.Get(way.ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && found.namespaced:
		return cty.NilVal, fmt.Errorf("%s %s not found in namespace %s", ref.Type, ref.Name, ref.Namespace)
	case apierrors.IsNotFound(err):
		return cty.NilVal, fmt.Errorf("%s %s not found", ref.Type, ref.Name)
	case apierrors.IsForbidden(err) && way.author != "":
		return cty.NilVal, forbidden(way, ref, found)
	case err != nil:
		return cty.NilVal, fmt.Errorf("read %s: %w", ref, err)
	}
	v, err := valueOf(object, found.secret())
	if r := evaluationOf(way.ctx); err == nil && r != nil && r.workloads[change.WorkloadAddress(object.GetNamespace(), object.GetAPIVersion(), object.GetKind(), object.GetName())] {
		return withoutStatus(v), nil
	}
	return v, err
}

// withoutStatus returns a value with its status unknown.
func withoutStatus(v cty.Value) cty.Value {
	fields := v.AsValueMap()
	fields["status"] = cty.DynamicVal
	return cty.ObjectVal(fields)
}

// valueOf converts an object to a value. The data of a Secret is marked sensitive, and the annotation that
// may repeat it is left out.
func valueOf(object *unstructured.Unstructured, secret bool) (cty.Value, error) {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	if annotations := object.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		object.SetAnnotations(annotations)
	}
	text, err := json.Marshal(object.Object)
	if err != nil {
		return cty.NilVal, err
	}
	ty, err := ctyjson.ImpliedType(text)
	if err != nil {
		return cty.NilVal, fmt.Errorf("convert %s %s to a value: %w", object.GetKind(), object.GetName(), err)
	}
	v, err := ctyjson.Unmarshal(text, ty)
	if err != nil {
		return cty.NilVal, fmt.Errorf("convert %s %s to a value: %w", object.GetKind(), object.GetName(), err)
	}
	if !secret {
		return v, nil
	}
	fields := v.AsValueMap()
	for _, name := range []string{"data", "stringData"} {
		if data, found := fields[name]; found {
			fields[name] = data.Mark(providerapi.Sensitive)
		}
	}
	return cty.ObjectVal(fields), nil
}
