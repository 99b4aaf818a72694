package join

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/names"
)

var namespaceKind = schema.GroupKind{Kind: "Namespace"}

// Conflict is an object whose name is taken, in some clusters, by an object that its fleet did not create; or a namespace
// that its fleet did not create there.
type Conflict struct {
	Name
	UID      types.UID
	Resource schema.GroupVersionResource
	Clusters []string
}

// ConflictFilter selects conflicts. Its zero value selects all, in all namespaces and without one.
type ConflictFilter struct {
	// Namespace, if set, excludes objects of other namespaces; and those without one, unless
	// ClusterScoped is set.
	Namespace     string
	ClusterScoped bool
	// Selector, if set, selects objects by their labels.
	Selector labels.Selector
	// Cluster, if set, selects conflicts in this cluster.
	Cluster string
	// Named, if not nil, are the only objects to select.
	Named map[Name]bool
}

// Name is the name of an object. Namespace is empty for cluster-scoped objects.
type Name struct {
	schema.GroupKind
	types.NamespacedName
}

// Conflicts returns the conflicts that a filter selects, sorted by namespace, kind and name. It needs
// permission to list bindings, and to read the objects.
func Conflicts(ctx context.Context, dyn dynamic.Interface, mapper meta.RESTMapper, f ConflictFilter) ([]Conflict, error) {
	bindings, err := listBindings(ctx, dyn, f.Namespace, f.ClusterScoped)
	if err != nil {
		return nil, err
	}
	for name := range f.Named {
		if name.GroupKind == namespaceKind && f.Namespace != "" && name.Name != f.Namespace {
			within, err := listBindings(ctx, dyn, name.Name, false)
			if err != nil {
				return nil, err
			}
			bindings = append(bindings, within...)
		}
	}
	var out []Conflict
	foreign := map[string][]string{}
	for _, b := range bindings {
		clusters, ofNamespace := conflicting(b, f.Cluster)
		foreign[b.Namespace] = append(foreign[b.Namespace], ofNamespace...)
		gvk := b.Spec.Resource.GroupVersionKind()
		name := Name{gvk.GroupKind(), types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.Resource.Name}}
		if len(ofNamespace) > 0 && f.Named[name] && !f.Named[Name{namespaceKind, types.NamespacedName{Name: b.Namespace}}] {
			return nil, fmt.Errorf("%s is not in %s because namespace %s already exists there: adopt the namespace with `atoll adopt namespace/%s`",
				name, names.List(ofNamespace), b.Namespace, b.Namespace)
		}
		if len(clusters) == 0 || f.Named != nil && !f.Named[name] {
			continue
		}
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			return nil, fmt.Errorf("find the resource of %s: %w", gvk.Kind, err)
		}
		obj, err := dyn.Resource(mapping.Resource).Namespace(b.Namespace).Get(ctx, b.Spec.Resource.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("read %s %s: %w", gvk.Kind, b.Spec.Resource.Name, err)
		case obj.GetUID() != b.Spec.Resource.UID, f.Selector != nil && !f.Selector.Matches(labels.Set(obj.GetLabels())):
			continue
		}
		out = append(out, Conflict{name, obj.GetUID(), mapping.Resource, clusters})
	}
	if out, err = addNamespaces(ctx, dyn, f, foreign, out); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Conflict) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name.Name, b.Name.Name))
	})
	return out, nil
}

func listBindings(ctx context.Context, dyn dynamic.Interface, namespace string, clusterScoped bool) (out []*v1alpha1.ResourceBinding, err error) {
	lists := map[schema.GroupVersionResource]string{v1alpha1.ResourceBindingResource: namespace}
	if namespace == "" || clusterScoped {
		lists[v1alpha1.ClusterResourceBindingResource] = ""
	}
	for gvr, namespace := range lists {
		options := metav1.ListOptions{Limit: 500}
		for {
			list, err := dyn.Resource(gvr).Namespace(namespace).List(ctx, options)
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", gvr.Resource, err)
			}
			for i := range list.Items {
				b := new(v1alpha1.ResourceBinding)
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, b); err != nil {
					return nil, fmt.Errorf("read %s %s: %w", gvr.Resource, list.Items[i].GetName(), err)
				}
				out = append(out, b)
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	return out, nil
}

// conflicting returns the clusters that report a conflict for a binding, and those that report one of the object's
// namespace; only that one if cluster is set.
func conflicting(b *v1alpha1.ResourceBinding, cluster string) (own, ofNamespace []string) {
	for i := range b.Status.Clusters {
		c := &b.Status.Clusters[i]
		switch {
		case c.Reason != v1alpha1.StateConflict || cluster != "" && c.Name != cluster:
		case c.OfNamespace(b.Namespace):
			ofNamespace = append(ofNamespace, c.Name)
		default:
			own = append(own, c.Name)
		}
	}
	return own, ofNamespace
}

// addNamespaces adds the namespaces that exist in clusters and keep objects out of them, unless the filter names others or
// selects by labels of objects.
func addNamespaces(ctx context.Context, dyn dynamic.Interface, f ConflictFilter, foreign map[string][]string, out []Conflict) ([]Conflict, error) {
	for namespace, clusters := range foreign {
		name := Name{namespaceKind, types.NamespacedName{Name: namespace}}
		bound := slices.IndexFunc(out, func(c Conflict) bool { return c.Name == name })
		switch {
		case len(clusters) == 0 || f.Selector != nil || f.Named != nil && !f.Named[name]:
			continue
		case bound >= 0:
			clusters = append(clusters, out[bound].Clusters...)
			out = slices.Delete(out, bound, bound+1)
		}
		ns, err := dyn.Resource(namespaceResource).Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read namespace %s: %w", namespace, err)
		}
		slices.Sort(clusters)
		out = append(out, Conflict{name, ns.GetUID(), namespaceResource, slices.Compact(clusters)})
	}
	return out, nil
}

// Adopt lets syncers take over the objects of a conflict. That of a namespace is for its clusters only: the namespace has
// accounts and rights of its own in each.
func (c Conflict) Adopt(ctx context.Context, dyn dynamic.Interface, dryRun []string) error {
	value := "true"
	if c.GroupKind == namespaceKind {
		ns, err := dyn.Resource(c.Resource).Get(ctx, c.Name.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		value = v1alpha1.WithAdopted(ns.GetAnnotations()[v1alpha1.AdoptAnnotation], c.Clusters...)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.UID, "annotations": map[string]any{v1alpha1.AdoptAnnotation: value}}})
	if err != nil {
		return err
	}
	_, err = dyn.Resource(c.Resource).Namespace(c.Namespace).Patch(ctx, c.Name.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dryRun})
	return err
}
